"""The choice of experts: what a router of the reference computes, shown in the order of the experts.

A router gives its logits, the weights and the ids of the chosen; it lists the chosen from the best down,
the probes by id. What a tap hands back goes to the places that the router had chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from conformance.candidate import layer_of
from conformance.experts import is_expert_choice, router_of
from conformance.golden import Golden
from conformance.oracle.attention import Show
from conformance.oracle.doors import by_token, decoder_of, layout_of
from conformance.reorder import Function, FunctionMode

_TOP = (torch.topk, torch.Tensor.topk)


@contextmanager
def watched(router: Any, show: Show, at: str, batch: int) -> Iterator[None]:
    """Shows the logits, ids and weights of `router` under the name `at` while it is open."""
    plain = router.forward

    def forward(hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with _Choice(router, show, at, batch) as choice:
            logits, weights, ids = plain(hidden)
        choice.weigh(weights)
        return logits, weights, ids

    router.forward = forward
    try:
        yield
    finally:
        del router.forward


class _Choice(FunctionMode):
    """Shows a router's logits and, where it takes the best of all its experts, the chosen ones."""

    def __init__(self, router: Any, show: Show, at: str, batch: int) -> None:
        super().__init__()
        self.experts, self.show, self.at, self.batch = router.num_experts, show, at, batch
        self.order: Tensor | None = None  # by which a token's chosen experts ascend

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if func is torch.nn.functional.linear:
            self.show(self.at + "router_logits", by_token(result, self.batch))
        if func in _TOP and args[0].dim() == 2 and args[0].shape[-1] == self.experts:
            ids = result.indices
            self.order = ids.argsort(-1)
            self._show_sorted("expert_ids", ids)
            return args[0].gather(-1, ids), ids
        return result

    def weigh(self, weights: Tensor) -> None:
        """Shows the weights of the chosen, and writes back what is handed on."""
        self._show_sorted("expert_weights", weights)

    def _show_sorted(self, probe: str, chosen: Tensor) -> None:
        assert self.order is not None
        ascending = chosen.gather(-1, self.order)
        self.show(self.at + probe, by_token(ascending, self.batch))
        chosen.scatter_(-1, self.order, ascending)


def expert_margins(golden: Golden, model: Any) -> dict[str, list[float]]:
    """How near each token's choice of experts was, by probe of their ids (see `Golden.expert_margins`)."""
    layers, _ = decoder_of(model)
    found = {}
    total = len(golden.ids)
    for probe in golden.manifest["probes"]:
        if is_expert_choice(probe):
            layer = layers[layer_of(probe) or 0]
            router = layer.get_submodule(layout_of(model.config).router)
            logits = golden.truth(router_of(probe), 0, total)
            scale = golden.scale(router_of(probe), 0, total)
            moves = _least_move(router, logits)
            relative = moves / (logits.abs().amax(-1) if scale is None else scale)
            found[probe] = [float(f"{margin:.3e}") for margin in relative.tolist()]
    return found


def _least_move(router: Any, logits: Tensor) -> Tensor:
    """How far logits [T, E] must move before `router` can choose otherwise: [T], no more than that.

    Two logits that move against each other change their order at half their gap. A sigmoid's slope is a
    quarter at most, so that a gap of corrected scores closes at no less than twice itself, and one of
    groups, each the sum of two scores, at no less than itself.
    """
    if not hasattr(router, "e_score_correction_bias"):
        return _gap(logits, router.top_k) / 2
    scores = logits.sigmoid() + router.e_score_correction_bias.to(logits)
    grouped = scores.unflatten(-1, (router.num_group, -1))
    groups = grouped.topk(2, dim=-1).values.sum(-1)
    left_out = groups < groups.topk(router.topk_group, dim=-1).values[..., -1:]
    scores = grouped.masked_fill(left_out[..., None], -torch.inf).flatten(-2)
    return torch.minimum(_gap(groups, router.topk_group), 2 * _gap(scores, router.top_k))


def _gap(values: Tensor, chosen: int) -> Tensor:
    """What lies between the last that is chosen and the first that is not; infinite where all are."""
    if chosen == values.shape[-1]:
        return torch.full(values.shape[:-1], math.inf, dtype=values.dtype)
    best = values.topk(chosen + 1, dim=-1).values
    return best[..., -2] - best[..., -1]
