"""Attention in one call of torch's scaled_dot_product_attention; scores and weights never exist."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from engine.backends.scored import Scored


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, attn: Scored) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    return attn.context(
        F.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, scale=attn.scale, enable_gqa=grouped
        )
    )
