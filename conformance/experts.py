"""Experts are chosen as tokens are: a set that differs is held against how near the choice was.

The golden says how much each token's router logits must move, relative to their row's scale, before
another set could be chosen. A set that differs is an error of that size in the router's logits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.envelope import RowErrors

_IDS = ".mlp.expert_ids"


def is_expert_choice(probe: str) -> bool:
    """Whether a probe shows the ids of chosen experts, whole numbers in which order says nothing."""
    return probe.endswith(_IDS)


def router_of(probe: str) -> str:
    """The probe of the logits by which the experts of a probe were chosen."""
    return probe.removesuffix(_IDS) + ".mlp.router_logits"


def choice_errors(chosen: Tensor, expected: Tensor, margins: Tensor, n_experts: int) -> RowErrors:
    """Of ids [B, T, k] and [T, k], each row ascending: 0 for the same set, for another its margin [T].

    What no router can choose, an expert twice or one that there is not, is beyond every margin.
    """
    differs = (chosen != expected).any(-1)
    possible = (chosen >= 0).all(-1) & (chosen < n_experts).all(-1)
    possible &= (chosen.diff(dim=-1) > 0).all(-1)
    largest = (margins * differs).masked_fill(differs & ~possible, torch.inf)
    nothing = torch.zeros_like(largest)
    return RowErrors(largest, rms=nothing, along=nothing, count=torch.ones_like(largest))
