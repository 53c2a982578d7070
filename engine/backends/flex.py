"""Attention by torch's flex_attention, which compiles what is done to a score into its kernel.

On CUDA that is Triton's, and no scores exist outside of it. On a CPU the scores are formed in full: torch
2.13 compiles no kernel there that takes every length. Source: Dong et al. 2024 (FlexAttention).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from engine.backends.scored import Scored
from engine.layers import softcap
from engine.mask import View, visible
from engine.spec import ModelSpec

#: What becomes of a score, by its sequence, head, query and key.
Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
#: Graphs of a process at most. There is one for each size of heads, window, softcap and custom part, and
#: for whole prompts, chunks and single tokens, of one sequence and of more, but none for a new length.
GRAPHS = 256


def attend(q: Tensor, k: Tensor, v: Tensor, view: View, attn: Scored) -> Tensor:
    inside = torch.compiler.is_dynamo_compiling()  # a graph of the whole pass, which takes it in
    kernel = flex_attention if inside else compiled("inductor" if q.is_cuda else "eager")
    score = _score(view, attn.softcap, q.shape[1])
    if attn.sinks is not None:
        # A sink is a key behind the others, without a value. Its share cannot come from the log-sum-exp,
        # whose rounding all of a context would have.
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        score = _beside_sinks(score, attn.sinks, view.k_pos)
    context = kernel(q, k, v, score_mod=score, scale=attn.scale, enable_gqa=True)
    return attn.context(context)


def refusal(model: ModelSpec, device: torch.device, dtype: torch.dtype) -> str | None:
    if device.type == "cuda" and find_spec("triton") is None:
        return "needs Triton on CUDA"
    return None


@cache
def compiled(compiler: str | Callable[..., Any]) -> Any:
    """flex_attention by one of torch's compilers, for passes of every length."""
    kernel = torch.compile(flex_attention, backend=compiler, dynamic=True, fullgraph=True)
    return torch._dynamo.config.patch(recompile_limit=GRAPHS)(kernel)


def _beside_sinks(score: Score, sinks: Tensor, k_pos: Tensor) -> Score:
    """The same for the keys, and each head's sink behind the last of them."""

    def beside(s: Tensor, b: Tensor, h: Tensor, t: Tensor, key: Tensor) -> Tensor:
        last = k_pos.shape[1] - 1
        known = score(s, b, h, t, key.clamp(max=last))
        return torch.where(key > last, sinks[h].to(known.dtype), known)

    return beside


def _score(view: View, cap: float | None, heads: int) -> Score:
    """What becomes of a score, a single number, by its sequence, head, query and key."""
    q_pos, k_pos, window = view.q_pos, view.k_pos, view.window
    full = (len(q_pos), heads, q_pos.shape[1], k_pos.shape[1])
    bias = None if view.bias is None else view.bias.expand(full)
    sees = None if view.custom.mask is None else view.visible.expand(full)

    def seen(b: Tensor, h: Tensor, t: Tensor, key: Tensor) -> Tensor:
        if sees is not None:
            return sees[b, h, t, key]
        return visible(q_pos[b, t], k_pos[b, key], window)

    def score(s: Tensor, b: Tensor, h: Tensor, t: Tensor, key: Tensor) -> Tensor:
        s = softcap(s, cap)
        s = s if bias is None else s + bias[b, h, t, key]
        return s.masked_fill(~seen(b, h, t, key), -torch.inf)

    return score
