"""FlashAttention-2 (Dao 2023) by torch's own kernels, and by no other.

On CUDA the sequences of a pass lie one behind another without padding, each with a length of its own,
and the kernel forms causal mask and window from lengths alone. On a CPU it takes a mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn

from engine.backends import sdpa
from engine.backends.scored import Scored
from engine.mask import View
from engine.spec import GroupedQueryAttention, LatentAttention, ModelSpec

#: What the kernels for CUDA take: numbers of a head, a multiple and at most, and the oldest device.
MULTIPLE, WIDEST, CAPABILITY = 8, 256, (8, 0)


def attend(q: Tensor, k: Tensor, v: Tensor, view: View, attn: Scored) -> Tensor:
    width = max(q.shape[-1], v.shape[-1])
    kernel = _masked
    if q.is_cuda:
        width, kernel = width + -width % MULTIPLE, _ragged
    # Zeros add nothing to q·k, and what becomes of them in v is cut off.
    wide = kernel(_padded(q, width), _padded(k, width), _padded(v, width), view, attn.scale)
    return attn.context(wide[..., : v.shape[-1]])


def refusal(model: ModelSpec, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels do not take this model's heads there, as the end of a sentence about them."""
    if device.type != "cuda":
        return None
    if dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 and bfloat16 on CUDA, not {str(dtype).removeprefix('torch.')}"
    if (widest := max(_width(layer.attn) for layer in model.layers)) > WIDEST:
        return f"takes heads of up to {WIDEST} numbers on CUDA, not {widest}"
    if torch.cuda.get_device_capability(device) < CAPABILITY:
        return "needs a CUDA device of compute capability {}.{} or later".format(*CAPABILITY)
    if not torch.backends.cuda.is_flash_attention_available():
        return "is not part of this build of torch"
    return None


def _width(attn: GroupedQueryAttention | LatentAttention) -> int:
    """Numbers of a head's query, or of its value where those are more."""
    match attn:
        case GroupedQueryAttention():
            return attn.head_dim
        case LatentAttention():
            return max(attn.nope_dim + attn.rope_dim, attn.v_dim)


def _padded(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


def _masked(q: Tensor, k: Tensor, v: Tensor, view: View, scale: float) -> Tensor:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return sdpa.mix(q, k, v, view, scale)


# -- on CUDA ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lengths:
    """Where each of B sequences begins among all queries and all keys, int32 [B + 1].

    `held` is how many of its keys there are, int32 [B]: the last of them belongs to its last query.
    """

    queries: Tensor
    keys: Tensor
    held: Tensor


def _lengths(view: View) -> Lengths:
    """Computed where the positions are, so that nobody waits for a device."""
    (B, T), S = view.q_pos.shape, view.k_pos.shape[1]
    rows = torch.arange(B + 1, dtype=torch.int32, device=view.q_pos.device)
    held = (view.k_pos >= 0) & (view.k_pos <= view.q_pos[:, -1:])
    return Lengths(rows * T, rows * S, held.sum(1, dtype=torch.int32))


def _ragged(q: Tensor, k: Tensor, v: Tensor, view: View, scale: float) -> Tensor:
    lengths = view.once(_lengths)
    context = varlen_attn(
        _in_a_row(q),
        _in_a_row(k),
        _in_a_row(v),
        lengths.queries,
        lengths.keys,
        q.shape[2],
        k.shape[2],
        scale=scale,
        # How many keys before its own a query sees at most; -1 is all of them.
        window_size=(-1 if view.window is None else view.window - 1, 0),
        enable_gqa=q.shape[1] != k.shape[1],
        seqused_k=lengths.held,
    )
    assert isinstance(context, Tensor)  # the log-sum-exp was not asked for
    return context.view(*view.q_pos.shape, *context.shape[1:]).transpose(1, 2)  # [B, H, T, D]


def _in_a_row(x: Tensor) -> Tensor:
    """The tokens [B * N, heads, D] of B sequences [B, heads, N, D]."""
    return x.transpose(1, 2).flatten(0, 1)
