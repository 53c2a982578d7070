"""A golden made again beside the committed one: what moved, by how much, and what to do about it.

On the same versions a golden comes out the same to the bit. On others it must lie within the noise that it
stores, and that noise must be what is measured now: too small would blame the innocent, too large
would let the guilty go. Nothing here writes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from safetensors.torch import load_file
from torch import Tensor

from conformance import beams
from conformance.answers import moves
from conformance.difference import row_differences
from conformance.envelope import K, Noise, half_step
from conformance.golden import Golden, read_manifest, remake

#: Stored noise may be this many times what is measured now, plus the floor; more was not measured.
INFLATED = 3.0

#: The keys of a manifest that a newer reference may change without the golden being another.
_FREE = {"format", "files", "versions", "margins", "logsumexp", "command", "ensemble"}
#: The versions that make a golden stale: of what computes it.
_COMPUTES = ("transformers", "torch", "tokenizers")

#: The stage whose answer each key of a text sample is.
_STAGES = {
    "added_normalized": "tokenizer.added",
    "tokens": "tokenizer.offsets",
    "type_ids": "tokenizer.offsets",
    "special_tokens_mask": "tokenizer.offsets",
    "alone": "tokenizer.encode",
    "streamed": "tokenizer.stream",
    "ids": "tokenizer.encode",
    "decode_skipping": "tokenizer.decode",
    "shown": "tokenizer.stop",
    "matched": "tokenizer.stop",
    "rendered": "tokenizer.chat",
}


@dataclass(frozen=True)
class Move:
    """A probe, a stage or a file that moved further than it may; `moved` and `allowed` where it is measured."""

    what: str
    how: str
    moved: float | None = None
    allowed: float | None = None

    @property
    def share(self) -> float:
        """How many times what is allowed; infinite where nothing is."""
        return self.moved / self.allowed if self.moved is not None and self.allowed else math.inf

    def __str__(self) -> str:
        figures = ""
        if self.moved is not None and self.allowed is not None:
            figures = f" {self.moved:.2e}, allowed {self.allowed:.2e}"
        return f"{self.what}  {self.how}{figures}"


@dataclass(frozen=True)
class Verification:
    """How a golden made again compares with the committed one.

    `made` and `running` are the versions of what computed them, `changed` the files that are not the
    same to the bit, `moves` what left its allowance, worst first.
    """

    case: str
    made: Mapping[str, str]
    running: Mapping[str, str]
    changed: tuple[str, ...]
    moves: tuple[Move, ...]

    @property
    def stale(self) -> bool:
        return self.made != self.running

    @property
    def status(self) -> str:
        """ "moved", "stale", "within noise" or "bit-identical"; a stale golden that moved has moved."""
        if self.moves:
            return "moved"
        if self.stale:
            return "stale"
        return "within noise" if self.changed else "bit-identical"

    @property
    def sentence(self) -> str:
        """What was found, in words."""
        parts = [f"{len(self.moves)} moved beyond what is allowed" if self.moves else ""]
        if self.stale:
            others = [name for name in self.made if self.made[name] != self.running.get(name)]
            made, running = (
                ", ".join(f"{name} {versions.get(name, 'none')}" for name in others)
                for versions in (self.made, self.running)
            )
            parts.append(f"golden is stale: made with {made}, running {running}")
        if self.changed and not self.moves:
            parts.append(f"within its noise, other bits in {', '.join(self.changed)}")
        elif not self.changed:
            parts.append("the same to the bit" if self.stale else "")
        return "; ".join(filter(None, parts))

    @property
    def advice(self) -> str | None:
        """What to do next, where there is something to do."""
        if self.moves and self.stale:
            return (
                "the reference itself changed: find out why in its release notes; if it is right now, "
                f"{remake(self.case)}, and review the difference before it is committed"
            )
        if self.moves:
            return (
                "its versions are the same, so the case, the golden or this machine is at fault: "
                f"look at what git says of golden/{self.case}; if the case was changed on purpose, "
                f"{remake(self.case)}"
            )
        return (
            f"it still holds; to record the new versions, {remake(self.case)}"
            if self.stale
            else None
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "case": self.case,
            "status": self.status,
            "stale": self.stale,
            "made": dict(self.made),
            "running": dict(self.running),
            "changed": list(self.changed),
            "moves": [{**asdict(move), "share": move.share} for move in self.moves],
            "sentence": self.sentence,
            "advice": self.advice,
        }


@dataclass(frozen=True)
class VerifyReport:
    """All goldens that were made again."""

    goldens: tuple[Verification, ...]

    @property
    def exit_status(self) -> int:
        """1 where anything moved; a stale golden that still holds is none."""
        return 1 if any(g.moves for g in self.goldens) else 0

    def to_json(self) -> dict[str, Any]:
        """The document of `lockstep golden verify --json`."""
        return {
            "verdict": "moved" if self.exit_status else "agrees",
            "goldens": [golden.to_json() for golden in self.goldens],
        }


def compare(old: Path, new: Path) -> Verification:
    """Compares two golden folders of one case, each with its hashes already verified."""
    before, after = read_manifest(old), read_manifest(new)
    changed = sorted(
        name
        for name in before["files"] | after["files"]
        if before["files"].get(name) != after["files"].get(name)
    )
    moves = [*_manifest_moves(before, after)]
    for name in changed:
        if name not in before["files"] or name not in after["files"]:
            moves.append(Move(name, "is new" if name in after["files"] else "is not made any more"))
        else:
            moves += _file_moves(name, old, new)
    made, running = (
        {k: v for k, v in m["versions"].items() if k in _COMPUTES} for m in (before, after)
    )
    worst_first = sorted(moves, key=lambda move: move.share, reverse=True)
    return Verification(old.name, made, running, tuple(changed), tuple(worst_first))


def _manifest_moves(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Move]:
    for key in sorted((before.keys() | after.keys()) - _FREE):
        if before.get(key) != after.get(key):
            yield Move(key, f"is {_short(after.get(key))}, was {_short(before.get(key))}")


def _file_moves(name: str, old: Path, new: Path) -> Iterator[Move]:
    match name:
        case "trace.safetensors":
            yield from _truth_moves(Golden(old), Golden(new))
        case "scales.safetensors":
            yield from _scale_moves(Golden(old), Golden(new))
        case "noise.json":
            yield from _noise_moves(Golden(old), Golden(new))
        case "decisions.safetensors":
            yield from _tensor_moves(old / name, new / name, half_step(torch.float32))
        case "answers.safetensors":
            for what, how in moves(load_file(old / name), load_file(new / name)):
                yield Move(what, how)
        case "beams.json":
            before, after = _json(old / name), _json(new / name)
            yield from _noise_move(
                "beams", "noise", before["noise"], after["noise"], "free", half_step(torch.float32)
            )
            for what, how in beams.moves(before, after):
                yield Move(what, how)
        case "text.json":
            yield from _text_moves(_json(old / name), _json(new / name))
        case "decisions.json":
            before, after = _json(old / name), _json(new / name)
            yield from _stage_noise_moves(before.pop("noise"), after.pop("noise"))
            yield from _json_moves(name, before, after)
        case _ if name.endswith(".safetensors"):
            yield from _tensor_moves(old / name, new / name, 0.0)
        case _ if name.endswith(".json"):
            yield from _json_moves(name, _json(old / name), _json(new / name))
        case _:
            yield Move(name, "is not the same")


# -- tensors -------------------------------------------------------------------------------------


def _truth_moves(old: Golden, new: Golden) -> Iterator[Move]:
    """Probes whose truth left what a free run in float32 is allowed around the stored truth."""
    envelope = old.envelope("free", torch.float32)
    for probe, before in old.trace.items():
        how = "its truth moved, relative to its row, by"
        scale = old.scales.get(probe)
        allowed = envelope.allowance(probe)
        yield from _moved(probe, how, before, new.trace.get(probe), allowed, scale)


def _scale_moves(old: Golden, new: Golden) -> Iterator[Move]:
    """Rows that cancel are judged by scales of their own, which may move as little as the truth."""
    envelope = old.envelope("free", torch.float32)
    for probe in sorted(old.scales.keys() | new.scales.keys()):
        if probe not in old.scales:
            yield Move(probe, "has scales of its rows now, and had none")
            continue
        allowed = envelope.allowance(probe)
        how = "the scales of its rows moved by"
        yield from _moved(probe, how, old.scales[probe], new.scales.get(probe), allowed)


def _tensor_moves(old: Path, new: Path, allowed: float) -> Iterator[Move]:
    before, after = load_file(old), load_file(new)
    for name in before:
        yield from _moved(name, f"in {old.name} moved by", before[name], after.get(name), allowed)
    for name in after.keys() - before.keys():
        yield Move(name, f"is new in {old.name}")


def _moved(
    what: str,
    how: str,
    before: Tensor,
    after: Tensor | None,
    allowed: float,
    scale: Tensor | None = None,
) -> Iterator[Move]:
    if after is None:
        yield Move(what, "is not there any more")
    elif before.shape != after.shape:
        yield Move(what, f"has the shape {tuple(after.shape)}, was {tuple(before.shape)}")
    else:
        moved = float(row_differences(before, after, scale).max())
        if moved > allowed:
            yield Move(what, how, moved, allowed)


def _noise_moves(old: Golden, new: Golden) -> Iterator[Move]:
    """The noise of each probe, in every dtype, kind of run and kind of error."""
    kinds = [field.name for field in fields(Noise) if field.name != "rows"]
    for dtype in old.manifest["dtypes"]:
        for run in K:
            before, after = (g.envelope(run, getattr(torch, dtype)) for g in (old, new))
            for probe, stored in before.noise.items():
                again = after.noise.get(probe)
                if again is None:
                    yield Move(probe, f"has no noise in {dtype}, {run}, any more")
                    continue
                for kind in kinds:
                    where = f"noise in {dtype}, {run}, {kind}"
                    was, now = getattr(stored, kind), getattr(again, kind)
                    yield from _noise_move(probe, where, was, now, run, before.floor)


def _stage_noise_moves(before: Mapping[str, float], after: Mapping[str, float]) -> Iterator[Move]:
    """The noise of the stages of sampling, which are compared in float32."""
    floor = half_step(torch.float32)
    for stage, was in before.items():
        name, now = f"sampling.{stage}", after.get(stage, math.inf)
        yield from _noise_move(name, "noise", was, now, "lockstep", floor)


def _noise_move(
    what: str, where: str, was: float, now: float, run: str, floor: float
) -> Iterator[Move]:
    """Noise that was stored smaller, or larger, than what is measured now can explain."""
    if now > K[run] * was + floor:
        yield Move(what, f"its {where} is now", now, K[run] * was + floor)
    if was > INFLATED * now + floor:
        yield Move(
            what, f"its stored {where} is more than was measured:", was, INFLATED * now + floor
        )


# -- texts ---------------------------------------------------------------------------------------


def _text_moves(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Move]:
    """The stages whose answers moved, each with the samples."""
    samples: dict[str, list[str]] = {}
    for group in sorted(before.keys() | after.keys()):
        old, new = before.get(group, []), after.get(group, [])
        if len(old) != len(new):
            yield Move(f"text.json, {group}", f"holds {len(new)} samples, were {len(old)}")
            continue
        for was, now in zip(old, new, strict=True):
            shown = _short(next(was[key] for key in ("text", "pair", "chat", "ids") if key in was))
            for key in sorted(k for k in was.keys() | now.keys() if was.get(k) != now.get(k)):
                stage = _STAGES.get(key, f"tokenizer.{key}")
                if shown not in samples.setdefault(stage, []):
                    samples[stage].append(shown)
    for stage, moved in samples.items():
        more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
        noun = "sample" if len(moved) == 1 else "samples"
        yield Move(stage, f"moved in {len(moved)} {noun}: {', '.join(moved[:3])}{more}")


def _json_moves(name: str, before: Any, after: Any, path: str = "") -> Iterator[Move]:
    """The values that differ; a version that the reference signs its files with is none."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted((before.keys() | after.keys()) - {"transformers_version"}):
            yield from _json_moves(
                name, before.get(key), after.get(key), f"{path}.{key}".lstrip(".")
            )
    elif before != after:
        yield Move(f"{name}, {path}", f"is {_short(after)}, was {_short(before)}")


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- the terminal --------------------------------------------------------------------------------

SHOWN = 12  # moves of a golden; the JSON report has all

_STYLES = {"moved": "bold red", "stale": "yellow"}


def print_verification(report: VerifyReport, console: Console) -> None:
    """A line for each golden, with what moved, worst first, and what to do."""
    width = max(len(golden.case) for golden in report.goldens)
    for golden in report.goldens:
        status = Text(f"{golden.status:14}", style=_STYLES.get(golden.status, "green"))
        line = Text.assemble(f"{golden.case:{width}}  ", status, f" {golden.sentence}")
        console.print(line, soft_wrap=True)
        for move in golden.moves[:SHOWN]:
            console.print(f"    {move}", soft_wrap=True, markup=False, highlight=False)
        if len(golden.moves) > SHOWN:
            console.print(f"    ... and {len(golden.moves) - SHOWN} more; --json has them all")
        if golden.advice:
            console.print(f"    {golden.advice}", style="dim", soft_wrap=True, markup=False)
    moved = sum(1 for golden in report.goldens if golden.moves)
    stale = sum(1 for golden in report.goldens if golden.stale)
    summary = f"{len(report.goldens)} goldens made again: {moved} moved, {stale} stale"
    console.print(summary, style="bold red" if moved else "bold green", highlight=False)
