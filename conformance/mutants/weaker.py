"""The checks that other projects stop at, on the same goldens: which faults would they have noticed?

Each is given its best chance: every attention kernel, whole prompts and chunks, a fault that raises
counts as noticed, and so does the first difference on any golden. What a check holds against the
engine without a fault (`allclose` in bfloat16, say) is no evidence, and the caller takes it off.

A text golden has no model: of a tokenizer these checks see what their prompts of plain English show.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conformance.engine_candidate import EngineCandidate, candidates
from conformance.golden import REPOSITORY_GOLDENS, Golden, read_manifest
from conformance.goldens import inventory
from engine.assets import KNOWN
from engine.generate import SamplingParams
from engine.models import resolve
from engine.tokenizer import Tokenizer

TEXT = "greedy text equal"
TOP_5 = "first other token in the top 5"
COSINE = "last hidden state, cosine above 0.99"
CLOSE = "logits within 1e-2"
WEAKER = (TEXT, TOP_5, COSINE, CLOSE)

#: A check and the golden on which it noticed something.
Notice = tuple[str, str]

# What such a check's prompts look like: one sentence in plain letters.
_SENTENCE = re.compile(r"[A-Z][a-z]+(,? [a-z]+)+[.?!]")


def notices(cases: str, dtype: str) -> set[Notice]:
    """What the weaker checks notice on the goldens whose names fit the pattern `cases`."""
    found: set[Notice] = set()
    for folder in inventory(REPOSITORY_GOLDENS):
        if not fnmatch(folder.name, cases):
            continue
        manifest = read_manifest(folder)
        if manifest["kind"] == "text":
            found |= {(name, folder.name) for name in _on_text(folder)}
        elif manifest["kind"] == "model":
            checkpoint = str(manifest["checkpoint"])
            model = resolve(checkpoint) if checkpoint in KNOWN else folder / checkpoint
            golden = Golden(folder)
            for candidate in candidates(model, "cpu", dtype):
                found |= {(name, folder.name) for name in _on_model(candidate, golden, dtype)}
    return found


def _on_text(folder: Path) -> Iterator[str]:
    answers = json.loads((folder / "text.json").read_text(encoding="utf-8"))["texts"]
    prompts = [answer for answer in answers if _SENTENCE.fullmatch(answer["text"])]
    if not prompts:  # a golden of chats alone
        return
    try:
        same = _says_the_same(Tokenizer.load(folder), prompts)
    except Exception:  # whatever it raises, nobody needs a check to notice that
        same = False
    if not same:
        yield TEXT


def _says_the_same(tokenizer: Tokenizer, prompts: list[dict[str, Any]]) -> bool:
    """Whether each prompt has the reference's ids, and these its text, whole and streamed."""
    for prompt in prompts:
        ids, text = prompt["post"][1], prompt["decode_skipping"]
        stream = tokenizer.stream(skip_special_tokens=True)
        pieces = [*map(stream.push, prompt["ids"]), stream.flush()]
        ours = tokenizer.decode(prompt["ids"], skip_special_tokens=True)
        if tokenizer.encode(prompt["text"]) != ids or not ours == "".join(pieces) == text:
            return False
    return True


def _on_model(candidate: EngineCandidate, golden: Golden, dtype: str) -> Iterator[str]:
    candidate.begin(len(golden.ids))
    try:
        same, in_top_5 = _generation(candidate, golden)
    except Exception:
        same = in_top_5 = False
    if not same:
        yield TEXT
    if not in_top_5:
        yield TOP_5
    for chunk in candidate.prefill:
        schedule = golden.schedule_in(chunk)
        try:
            near, close = _numbers(candidate, golden, schedule)
        except Exception:
            near = close = False
        if not near:
            yield COSINE
        if not close:
            yield CLOSE


def _generation(candidate: EngineCandidate, golden: Golden) -> tuple[bool, bool]:
    """Whether the greedy tokens are the golden's, and its first other one among the five best here."""
    count = golden.schedule[0]
    expected = golden.manifest["greedy"]  # 32 tokens
    params = SamplingParams(max_tokens=len(expected), ignore_eos=True, logprobs=5)
    prompt = (
        str(golden.manifest["text"]) if "text" in golden.manifest else golden.ids[:count].tolist()
    )
    done = candidate.engine.generate(prompt, params)
    assert done.logprobs is not None
    if done.token_ids == expected:
        return True, True
    for n, (ours, theirs) in enumerate(zip(done.token_ids, expected, strict=False)):
        if ours != theirs:
            our_five = [token for token, _ in done.logprobs[n].top]
            return False, theirs in our_five
    return False, True  # one is shorter: no token to look for


def _numbers(candidate: EngineCandidate, golden: Golden, schedule: list[int]) -> tuple[bool, bool]:
    """Whether the hidden state at the last position and all logits are close enough."""
    shown: dict[str, list[Tensor]] = {"final_norm": [], "logits": []}

    def keep(probe: str, value: Tensor) -> Tensor:
        if probe in shown:
            shown[probe].append(golden.kept(probe, value[0]).double())
        return value

    candidate.begin(len(golden.ids))
    for ids in golden.ids.split(schedule):
        candidate.step(ids, keep)
    n = len(golden.ids)
    last, truth = shown["final_norm"][-1][-1], golden.truth("final_norm", n - 1, n)[0]
    logits, expected = torch.cat(shown["logits"]), golden.truth("logits", 0, n)
    near = bool(torch.cosine_similarity(last, truth, dim=0) > 0.99)
    return near, torch.allclose(logits, expected, rtol=1e-2, atol=1e-2)
