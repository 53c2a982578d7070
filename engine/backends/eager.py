"""Attention step by step, as in the paper (Vaswani et al. 2017): the one backend with all probes."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.probe import Probe


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor,
    scale: float,
    scores: Probe,
    weights: Probe,
    context: Probe,
) -> Tensor:
    B, H, T, D = q.shape
    K, S = k.shape[1:3]
    # Query heads h·H/K … share key/value head h: they become rows of one product, so that k and v
    # are never copied per query head.
    grouped = q.reshape(B, K, H // K * T, D)
    s = (grouped @ k.transpose(-1, -2)).view(B, H, T, S) * scale
    s = scores(s.masked_fill(~visible, -torch.inf))  # [B, H, T, S]
    w = weights(s.softmax(dim=-1, dtype=torch.float32).to(q.dtype))  # [B, H, T, S]
    return context((w.reshape(B, K, H // K * T, S) @ v).view(B, H, T, D))
