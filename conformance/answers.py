"""Goldens of what a real model says to long prompts: its logits far from position 0, and its greedy answers.

    answers.safetensors
        ids                    the longest prompt; the others are its beginnings (`PROMPTS` tokens each)
        random                 tokens that are looked at after every position
        rows.ids, .logits      [T, BEST] the best tokens after each position in float32, eager attention
        rows.random            [T, n] the logits of the random ones there
        rows.difference        [T] by how much the reference's other legal runs (sdpa, other orders of its
                               sums) move any logit of the row, of the whole vocabulary
        answer.{n}.ids, .logits    [ANSWER, BEST] the same at each step of the greedy answer to a prompt
                               of n tokens, past any end token; the first one is the answer's
        {dtype}.noise          [T] how far in that dtype any of the logits of rows is, eager and sdpa

The oracle alone writes them. An engine is asked through its own loop's `prefill` and `decode`; in the
answer it is handed the reference's tokens, so that a tie is not the end of the comparison. float32 is
the truth in bfloat16, too, where the reference itself answers otherwise now and then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from conformance.cases.answers import PROMPTS
from conformance.envelope import K, half_step
from conformance.golden import read_manifest, verify_hashes
from conformance.text import TextFinding
from engine.generate import Engine
from engine.probe import attached

#: How many times the difference of the reference's own runs an engine's logits may show.
TIMES = 2.0

_BLOCK = 128  # positions whose logits are formed at once


class Answers:
    """A golden of answers, opened and verified."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: Mapping[str, Any] = read_manifest(folder)
        verify_hashes(folder, self.manifest)

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        return load_file(self.folder / "answers.safetensors")

    @property
    def dtypes(self) -> list[str]:
        return [name.removesuffix(".noise") for name in self.tensors if name.endswith(".noise")]

    def prompt(self, n: int) -> list[int]:
        ids: list[int] = self.tensors["ids"][:n].tolist()
        return ids

    def greedy(self, n: int) -> list[int]:
        """The reference's float32 answer to the prompt of n tokens."""
        ids: list[int] = self.tensors[f"answer.{n}.ids"][:, 0].tolist()
        return ids


@dataclass
class Heard:
    """What was wrong, how many tokens were compared, and at how many the engine chose another at a tie."""

    findings: list[TextFinding] = field(default_factory=list)
    tokens: int = 0
    ties: int = 0


def check_answers(
    engine: Engine, golden: Answers, dtype: str, prompts: Sequence[int] = PROMPTS
) -> Heard:
    """Judges the answers to some of the prompts in `dtype`; in float32 the rows of the longest, too.

    What follows a prompt whose rows are wrong is no news, and is not asked for.
    """
    heard = Heard()
    if dtype == "float32" and PROMPTS[-1] in prompts:
        heard.findings += check_rows(engine, golden, PROMPTS[-1])
    if not heard.findings:
        for n in prompts:
            _hear(engine, golden, dtype, n, heard)
    return heard


@torch.inference_mode()
def check_rows(engine: Engine, golden: Answers, n: int) -> list[TextFinding]:
    """The first of n positions at which float32 logits are off by more than the reference's own may be.

    Allowed is `TIMES` the difference of its own runs, and half a rounding: the largest error is held
    against the largest difference, the second against the second, and so on. How far a rounding grows
    hangs on the position, and on chance: the few runs of one position do not show all that it may do.
    """
    far = list(_rows(engine, golden, n))
    off = torch.stack([(ours - expected).abs().amax() for _, ours, expected in far])
    errors, order = off.nan_to_num(torch.inf).sort(descending=True)
    scale = torch.stack([expected.abs().amax() for _, _, expected in far]).amax()
    differences = golden.tensors["rows.difference"][:n].sort(descending=True).values
    allowed = TIMES * differences + half_step(torch.float32) * scale
    outside = errors > allowed
    if not outside.any():
        return []
    at = int(order[outside].min())
    tokens, ours, expected = far[at]
    worst = int((ours - expected).abs().nan_to_num(torch.inf).argmax())
    where = f"{n} ids, token {tokens[worst]} at position {at}"
    return [_far_off(where, "logits", ours, expected, worst, allowed[order == at])]


def _rows(engine: Engine, golden: Answers, n: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """At each of n positions: the tokens that are looked at, the engine's logits and the reference's, [k]."""
    shown: list[Tensor] = []
    last = f"layers.{engine.spec.n_layers - 1}.out"

    def keep(probe: str, value: Tensor) -> Tensor:
        if probe == last:
            shown.append(value[0].clone())
        return value

    with attached(keep, ("", engine.decoder)):
        engine.prefill(golden.prompt(n), engine.new_cache(n))
    kept = golden.tensors
    hidden = torch.cat(shown)
    random = kept["random"].long()
    for start in range(0, n, _BLOCK):
        here = slice(start, min(start + _BLOCK, n))
        best = kept["rows.ids"][here].long()
        tokens = torch.cat([best, random.expand(len(best), -1)], dim=1)
        expected = torch.cat([kept["rows.logits"][here], kept["rows.random"][here]], dim=1)
        ours = _logits_of(engine, hidden[here], tokens)
        yield from zip(tokens, ours, expected, strict=True)


def _logits_of(engine: Engine, hidden: Tensor, tokens: Tensor) -> Tensor:
    """The engine's head on rows [T, dim], for the tokens [T, n] alone: float32 [T, n]."""
    decoder = engine.decoder
    some, places = tokens.unique(return_inverse=True)
    weight = decoder.logits.get_parameter("weight")[some.to(hidden.device)]
    normed = decoder.final_norm(hidden)
    logits: Tensor = torch.func.functional_call(decoder.logits, {"weight": weight}, (normed,))
    return logits.float().cpu().gather(1, places)


@torch.inference_mode()
def _hear(engine: Engine, golden: Answers, dtype: str, n: int, heard: Heard) -> None:
    """The answer to n tokens, up to the first step that is wrong.

    Errors are held against noise of the same rank: few positions are so unstable that their noise would
    excuse everything elsewhere.
    """
    kept = golden.tensors
    best, logits = kept[f"answer.{n}.ids"].long(), kept[f"answer.{n}.logits"]
    ranks = torch.tensor([0.5, 0.9, 1.0])
    floor = half_step(engine.dtype) * float(logits.abs().max())
    limits = K["free"] * kept[f"{dtype}.noise"].quantile(ranks) + floor
    offs = []
    cache = engine.new_cache(n + len(best))
    row = engine.prefill(golden.prompt(n), cache)
    for step, (tokens, expected) in enumerate(zip(best, logits, strict=True)):
        heard.tokens += 1
        row = row.float().cpu()
        ours = row[tokens]
        where = f"{n} ids, step {step} of the answer in {dtype}"
        off = (ours - expected).abs()
        offs.append(off.max())
        if not (off <= limits[-1]).all():
            worst = int(off.nan_to_num(torch.inf).argmax())
            heard.findings.append(_far_off(where, "generate", ours, expected, worst, limits[-1]))
            return
        chosen = int(row.argmax())
        if chosen != tokens[0]:
            # A token that is not among the best is behind the last of them at least.
            among = (tokens == chosen).nonzero()
            margin = float(expected[0] - expected[int(among) if len(among) else -1])
            if margin > 2 * limits[-1]:  # both logits may be off, in opposite directions
                heard.findings.append(TextFinding("generate", where, int(tokens[0]), chosen))
                return
            heard.ties += 1
        row = engine.decode(int(tokens[0]), cache)
    found = torch.stack(offs).quantile(ranks)
    for rank, error, limit in zip(ranks.tolist(), found.tolist(), limits.tolist(), strict=True):
        if error > limit:
            where = f"{n} ids, the answer in {dtype}, error of rank {rank}"
            heard.findings.append(TextFinding("generate", where, f"at most {limit:.2e}", error))
            return


def _far_off(
    where: str, stage: str, ours: Tensor, expected: Tensor, worst: int, allowed: Tensor | float
) -> TextFinding:
    error = float((ours[worst] - expected[worst]).abs())
    text = f"{where}: off by {error:.2e}, allowed {float(allowed):.2e}"
    return TextFinding(stage, text, float(expected[worst]), float(ours[worst]))


def moves(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """The tensors of a golden made again that are not what they were, within the noise that it stores."""
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if was is None or now is None or was.shape != now.shape:
            yield name, "is not of the same kind any more"
        elif not was.is_floating_point():
            if not torch.equal(was, now):
                yield name, "holds other ids"
        else:
            dtype = name.removesuffix(".noise") if name.endswith(".noise") else "float32"
            allowed = K["free"] * float(before[f"{dtype}.noise"].max())
            if float((now - was).abs().max()) > allowed:
                yield name, f"moved by more than {allowed:.2e}"
