"""Attention in one call of torch's scaled_dot_product_attention; scores and weights never exist."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.backends.scored import Scored
from engine.mask import View

#: Queries per call with a mask: so that none of all queries and all keys of a long pass is ever made,
#: and few keys are read that the first of them do not see.
QUERIES = 256


def attend(q: Tensor, k: Tensor, v: Tensor, view: View, attn: Scored) -> Tensor:
    return attn.context(mix(q, k, v, view, attn.scale))


def mix(q: Tensor, k: Tensor, v: Tensor, view: View, scale: float) -> Tensor:
    """The context [B, H, T, D'], before it is shown."""
    T = q.shape[2]
    if T <= QUERIES or view.whole:
        return _call(q, k, v, view, scale)
    context = q.new_empty(*q.shape[:3], v.shape[-1])  # [B, H, T, D']
    for first in range(0, T, QUERIES):
        queries = slice(first, min(first + QUERIES, T))
        keys = view.keys(queries)
        part = view.part(queries, keys)
        context[:, :, queries] = _call(q[:, :, queries], k[:, :, keys], v[:, :, keys], part, scale)
    return context


def _call(q: Tensor, k: Tensor, v: Tensor, view: View, scale: float) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    if view.whole:  # then kernels that know of causality leave half of the work out
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=grouped
        )
    mask = view.visible
    if view.bias is not None:
        mask = view.bias.masked_fill(~mask, -torch.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
