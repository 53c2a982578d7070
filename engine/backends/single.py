"""Attention of one query of each sequence as sums of products: what a compiler makes loops of.

It is part of a graph of steps and no backend of its own. Kernels that are called from a graph, sdpa's for
one, cost a call each, and end a loop that the compiler would go on with.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.backends.eager import softmax
from engine.backends.scored import Scored
from engine.layers import softcap
from engine.linear import written
from engine.mask import View


def attend(q: Tensor, k: Tensor, v: Tensor, view: View, attn: Scored) -> Tensor:
    """The context [B, H, 1, D'] of queries [B, H, 1, D]; sums are float32."""
    B, H, _, D = q.shape
    K, S = k.shape[1:3]
    queries = written(q.reshape(B, K, H // K, 1, D)).float().unbind(2)  # each [B, K, 1, D]
    s = torch.stack([(k.float() * query).sum(-1) for query in queries], 2)  # [B, K, H / K, S]
    s = softcap(s.view(B, H, 1, S) * attn.scale, attn.softcap)
    s = s if view.bias is None else s + view.bias
    w = softmax(s.masked_fill(~view.visible, -torch.inf), attn.sinks)  # [B, H, 1, S]
    weights = written(w.reshape(B, K, H // K, S, 1)).unbind(2)  # each [B, K, S, 1]
    context = torch.stack([(v.float() * weight).sum(-2) for weight in weights], 2)
    return attn.context(context.view(B, H, 1, -1).to(q.dtype))
