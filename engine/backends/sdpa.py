"""Attention in one call of torch's scaled_dot_product_attention; scores and weights never exist."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.backends.scored import Scored
from engine.mask import View


def attend(q: Tensor, k: Tensor, v: Tensor, view: View, attn: Scored) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    mask = view.visible
    if view.bias is not None:
        mask = view.bias.to(q.dtype).masked_fill(~mask, -torch.inf)
    return attn.context(
        F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=attn.scale, enable_gqa=grouped
        )
    )
