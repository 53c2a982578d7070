"""The naive run of a model, which every cell is held against, and what legal re-orderings do to it.

A sequence alone, whole, in one pass, eagerly, with nothing kept of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from conformance.envelope import Envelope, Noise, half_step, row_errors
from conformance.experts import is_expert_choice, router_of
from conformance.invariance.scripts import Script
from conformance.reorder import PLAIN, Variant
from engine.cache import ContiguousCache
from engine.cache.store import Store, StoreKind
from engine.decoder import Decoder
from engine.probe import Tap, attached

#: Legal ways to run the same: each row of a batch in an order of its own, and partial sums that are rounded.
VARIANTS = (
    Variant(permute=1, each=True, batch=8),
    Variant(split_k=2),
    Variant(split_k=4),
)
_NUDGED = 32  # times that a router's logits are moved by what they may be off

Values = Mapping[str, Tensor]  # by probe, [B, T, n]


@dataclass(frozen=True)
class Reference:
    """A sequence's logits [T, V], and by probe the experts of its tokens [T, k].

    `near` says of which tokens they hang on the last bits [T].
    """

    logits: Tensor
    experts: Mapping[str, Tensor]
    near: Mapping[str, Tensor]


class Naive:
    """The references of sequences, and the envelope: measured on all of them together, unless it is given.

    Keys and values are kept in `store`.
    """

    def __init__(
        self,
        decoder: Decoder,
        scripts: Iterable[Script],
        store: StoreKind = Store,
        envelope: Envelope | None = None,
    ) -> None:
        self._decoder, self._store = decoder, store
        plain = {script: self._run(script, PLAIN) for script in scripts}
        self.envelope = envelope or self._measured(plain)
        self.references = {script: self._reference(script, run) for script, run in plain.items()}

    def _measured(self, plain: Mapping[Script, Values]) -> Envelope:
        varied = {script: [self._run(script, variant) for variant in VARIANTS] for script in plain}
        half = half_step(self._decoder.embed.weight.dtype)
        return Envelope("free", half, _noise(plain, varied))

    def _reference(self, script: Script, plain: Values) -> Reference:
        experts = {probe: value[0] for probe, value in plain.items() if is_expert_choice(probe)}
        nudged = self._nudged(script, plain) if experts else plain
        near = {p: (nudged[p] != ids).any(-1).any(0) for p, ids in experts.items()}
        return Reference(plain["logits"][0], experts, near)

    def _nudged(self, script: Script, plain: Values) -> Values:
        """The run with the logits of its routers off by what they are allowed to be, this way or that."""
        draw = torch.Generator().manual_seed(1)

        def nudge(probe: str, value: Tensor) -> Tensor:
            if not probe.endswith(".router_logits"):
                return value
            exact = plain[probe]
            move = self.envelope.allowance(probe) * exact.abs().amax(-1, keepdim=True)
            signs = torch.randint(0, 2, value.shape, generator=draw) * 2 - 1
            return exact + move * signs

        return self._run(script, Variant(batch=_NUDGED), nudge)

    @torch.inference_mode()
    def _run(
        self, script: Script, variant: Variant, change: Tap = lambda _, value: value
    ) -> Values:
        """The logits of a sequence, its routers' logits and the experts, in that variant."""
        seen: dict[str, Tensor] = {}

        def keep(probe: str, value: Tensor) -> Tensor:
            if probe == "logits" or is_expert_choice(probe) or probe.endswith(".router_logits"):
                value = seen[probe] = change(probe, value)
            return value

        decoder = self._decoder
        cache = ContiguousCache(
            decoder.spec,
            len(script.ids),
            batch=variant.batch,
            dtype=decoder.embed.weight.dtype,
            store=self._store,
        )
        with variant.in_force(), attached(keep, ("", decoder)):
            decoder(torch.tensor([script.ids] * variant.batch), cache)
        return seen


def _same_experts(plain: Values, others: Iterable[Values]) -> int:
    """How many tokens from the first on have the same experts in all of these runs."""
    n = plain["logits"].shape[1]
    differs = torch.zeros(n, dtype=torch.bool)
    for other in others:
        for probe in filter(is_expert_choice, plain):
            differs |= (other[probe] != plain[probe]).any(-1).any(0)
    return int(differs.int().argmax()) if differs.any() else n


def _noise(
    plain: Mapping[Script, Values],
    varied: Mapping[Script, Sequence[Values]],
) -> Mapping[str, Noise]:
    """What the variants were off, by probe, over all sequences up to where their experts were the same."""
    found: dict[str, list[Noise]] = {}
    for script, run in plain.items():
        n = _same_experts(run, varied[script])
        for probe, exact in run.items():
            if n and not is_expert_choice(probe):
                errors = (row_errors(v[probe][:, :n], exact[0, :n]).noise() for v in varied[script])
                found.setdefault(probe, []).extend(errors)
    noise = {probe: reduce(Noise.merge, each) for probe, each in found.items()}
    return noise | {
        p: noise[router_of(p)] for p in next(iter(plain.values())) if is_expert_choice(p)
    }
