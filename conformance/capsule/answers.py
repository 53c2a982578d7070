"""The capsules of what is no operation: a stage of the tokenizer or of sampling, a candidate's own loop."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conformance.candidate import Candidate, said
from conformance.capsule.cut import Cut, write
from conformance.capsule.draft import LIMIT, Left, Run, size, write_about, write_words
from conformance.capsule.replay import Capsule
from conformance.decisions import check_decisions
from conformance.golden import Golden, read_manifest, write_manifest
from conformance.text import TextFinding, judge_text
from engine.errors import LockstepError
from engine.tokenizer import Tokenizer

_SECTIONS = ("texts", "pairs", "sequences", "stops", "chats")
_LISTS = ("followed", "endings", "logprobs")  # what can be left out of a decisions golden


def pack_text(draft: Path, folder: Path, found: TextFinding, run: Run) -> None:
    """The shortest of a text golden's entries at which the same stage goes wrong, with the tokenizer."""
    whole = json.loads((folder / "text.json").read_text(encoding="utf-8"))
    entries = [(section, entry) for section in _SECTIONS for entry in whole[section]]
    kept, finding = _shortest_entry(Tokenizer.load(folder), entries, found.stage) or (whole, found)
    out = draft / "golden"
    shutil.copytree(folder, out)
    (out / "text.json").write_text(json.dumps(kept, ensure_ascii=False) + "\n", encoding="utf-8")
    write_manifest(out, _without_files(read_manifest(folder)))
    left = sum(len(kept[section]) for section in _SECTIONS)
    _describe(
        draft, "text", folder.name, "tokenizer", finding, Left(texts=(len(entries), left)), run
    )
    _confirm(draft, finding)


def _shortest_entry(
    tokenizer: Tokenizer, entries: list[tuple[str, Any]], stage: str
) -> tuple[dict[str, Any], TextFinding] | None:
    for section, entry in sorted(entries, key=lambda pair: len(json.dumps(pair[1]))):
        alone: dict[str, Any] = {**{name: [] for name in _SECTIONS}, section: [entry]}
        same = [f for f in judge_text(tokenizer, alone) if f.stage == stage]
        if same:
            return alone, same[0]
    return None


def pack_decision(draft: Path, folder: Path, found: TextFinding, run: Run) -> None:
    """The fewest questions of a decisions golden at which the same stage goes wrong."""
    out = draft / "golden"
    shutil.copytree(folder, out)
    path = out / "decisions.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    finding, before = found, _questions(kept)
    for section, values in [(s, kept[s]) for s in _LISTS]:
        # Nothing of it, or one: what comes first and still fails is kept.
        for fewer in ([], *([value] for value in values), values):
            path.write_text(json.dumps({**kept, section: fewer}) + "\n", encoding="utf-8")
            same = [f for f in check_decisions(out) if f.stage == found.stage]
            if same:
                kept, finding = {**kept, section: fewer}, same[0]
                break
    path.write_text(json.dumps(kept, ensure_ascii=False) + "\n", encoding="utf-8")
    write_manifest(out, _without_files(read_manifest(folder)))
    left = Left(texts=(before, _questions(kept)))
    _describe(draft, "decisions", folder.name, "decisions", finding, left, run)
    _confirm(draft, finding)


def _questions(golden: dict[str, Any]) -> int:
    return sum(len(golden[section]) for section in _LISTS)


def pack_generation(
    draft: Path, candidate: Candidate, found: TextFinding, golden: Golden, model: Path, run: Run
) -> None:
    """The shortest prompt after which the candidate's own loop leaves the reference's."""
    for cut, changes, finding, left in _shorter(candidate, found, golden):
        shutil.rmtree(draft / "golden", ignore_errors=True)
        (draft / "golden").mkdir()
        write(cut, golden, model, run.dtype, draft / "golden", changes)
        _describe(draft, "generation", golden.case, candidate.name, finding, left, run)
        try:
            _confirm(draft, finding)
        except LockstepError:
            continue
        return
    raise LockstepError(f"{golden.case}: the answer does not differ again in a folder of 1 MB")


_Attempt = tuple[Cut, dict[str, Any], TextFinding, Left]


def _shorter(candidate: Candidate, found: TextFinding, golden: Golden) -> Iterator[_Attempt]:
    """Prompts to try, shortest first, then the golden's own.

    The reference's answer to a prefix of the golden's ids is known as far as its best tokens are those
    that the golden was fed.
    """
    ids = golden.ids.tolist()
    total, prompt = len(ids), golden.schedule[0]
    if isinstance(found.expected, list) and found.stage == "generate":
        best = golden.tokens(golden.trace["logits"].argmax(-1)).tolist()
        for count in range(1, prompt + 1):
            expected = [best[count - 1]]
            while count + len(expected) < total and expected[-1] == ids[count + len(expected) - 1]:
                expected.append(best[count + len(expected) - 1])
            for n in range(1, len(expected) + 1):
                got = _greedy(candidate, ids[:count], n)
                if got == expected[:n]:
                    continue
                yield (
                    Cut(count + n - 1, {"logits": "logits"}),
                    {
                        "ids": ids[:count] + expected[:n],
                        "prompt_tokens": count,
                        "margins": golden.manifest["margins"][: count + n],
                    },
                    TextFinding("generate", f"{count} ids", expected[:n], got),
                    Left(tokens=(total, count + n)),
                )
    kept = {key: golden.manifest[key] for key in ("text", "continuation") if key in golden.manifest}
    for probes in ({"logits": "logits"}, {}):
        yield Cut(total, probes), kept | {"prompt_tokens": prompt}, found, Left()


def _greedy(candidate: Candidate, ids: list[int], count: int) -> Any:
    try:
        return candidate.greedy(ids, count)
    except Exception as error:  # it has answered so
        return said(error)


def _describe(
    draft: Path, kind: str, case: str, name: str, finding: TextFinding, left: Left, run: Run
) -> None:
    write_about(
        draft,
        run,
        kind=kind,
        case=case,
        name=name,
        failure=str(finding),
        left=left,
        stage=finding.stage,
        expected=finding.expected,
        got=finding.got,
    )
    write_words(draft, left, [])


def _confirm(draft: Path, finding: TextFinding) -> None:
    """A capsule that does not show the failure again, or is too large, is none."""
    failures = Capsule(draft).failures()
    if not any(line.startswith(finding.stage) for line in failures):
        raise LockstepError(
            f"{finding.stage} of {finding.text!r} does not go wrong again on its own"
        )
    if size(draft) > LIMIT:
        raise LockstepError(f"the capsule of {finding.stage} would be larger than 1 MB")


def _without_files(manifest: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in manifest.items() if key not in ("files", "format")}
