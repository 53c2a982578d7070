"""Attention step by step, as in the paper (Vaswani et al. 2017): the one backend with all probes."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.backends.scored import Scored
from engine.layers import softcap
from engine.mask import View


def attend(q: Tensor, k: Tensor, v: Tensor, view: View, attn: Scored) -> Tensor:
    B, H, T, D = q.shape
    K, S = k.shape[1:3]
    # Query heads h·H/K … share key/value head h: they become rows of one product, so that k and v
    # are never copied per query head.
    grouped = q.reshape(B, K, H // K * T, D)
    s = softcap((grouped @ k.transpose(-1, -2)).view(B, H, T, S) * attn.scale, attn.softcap)
    s = s if view.bias is None else s + view.bias
    s = attn.scores(s.masked_fill(~view.visible, -torch.inf))  # [B, H, T, S]
    w = attn.weights(softmax(s, attn.sinks).to(q.dtype))  # [B, H, T, S]
    return attn.context((w.reshape(B, K, H // K * T, S) @ v).view(B, H, T, -1))


def softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """In float32, over the keys and a head's sink, which takes its share and gives nothing."""
    if sinks is None:
        return scores.softmax(dim=-1, dtype=torch.float32)
    share = sinks.view(-1, 1, 1).expand(*scores.shape[:-1], 1)  # [B, H, T, 1]
    return torch.cat((scores, share), dim=-1).softmax(dim=-1, dtype=torch.float32)[..., :-1]
