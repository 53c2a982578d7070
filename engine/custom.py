"""Whether a user's own attention is what it must be: tried out before a model is loaded."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.errors import RequestError
from engine.mask import Custom, PositionFunction, visible
from engine.spec import ModelSpec

_TRIED = 96  # tokens at the beginning and at the end of the context


def check_custom(custom: Custom, spec: ModelSpec, device: torch.device) -> None:
    """Raises RequestError, one sentence, unless `custom` fits its contract and the model's heads.

    Both functions are tried on positions at the beginning and at the end of the context, whole and in
    pieces.
    """
    n = min(_TRIED, spec.context)
    rows = torch.arange(n, device=device) + torch.tensor([[0], [spec.context - n]], device=device)
    q, k = rows[:, None, :, None], rows[:, None, None, :]
    heads = min(layer.attn.n_heads for layer in spec.layers)
    if custom.mask is not None:
        mask = _tried("mask", custom.mask, q, k, heads)
        if mask.dtype != torch.bool:
            raise RequestError(f"the custom mask must give bool, True where seen, not {mask.dtype}")
        for window in {layer.attn.window for layer in spec.layers}:
            # At the beginning alone: of positions at the end not all keys are tried.
            blind = ~(visible(q, k, window) & mask)[0].any(-1)
            if blind.any():
                raise RequestError(
                    f"the custom mask hides every key from the token at position "
                    f"{int(blind.nonzero()[0, -1])}; let each token see itself"
                )
    if custom.bias is not None:
        bias = _tried("bias", custom.bias, q, k, heads)
        if not bias.is_floating_point():
            raise RequestError(f"the custom bias must give floating numbers, not {bias.dtype}")
        if (bias.isnan() & visible(q, k, None)).any():
            raise RequestError("the custom bias gives NaN for a key that is seen")


def _tried(name: str, function: PositionFunction, q: Tensor, k: Tensor, heads: int) -> Tensor:
    """What it gives, if that has the right shape and hangs on positions alone."""
    full = (len(q), heads, q.shape[2], k.shape[3])
    whole = _called(name, function, q, k, full)
    at, n = q.shape[2] // 3, q.shape[2]
    for b in range(len(q)):
        for queries, keys in ((slice(at, at + 1), slice(0, at + 1)), (slice(at, n), slice(at, n))):
            some_q, some_k = q[b : b + 1, :, queries], k[b : b + 1, ..., keys]
            shape = (1, heads, some_q.shape[2], some_k.shape[3])
            piece = _called(name, function, some_q, some_k, shape)
            same = piece.double(), whole[b : b + 1, :, queries, keys].double()
            if not torch.allclose(*same, rtol=1e-4, equal_nan=True):  # bits may differ
                raise RequestError(
                    f"the custom {name} must hang on the positions of queries and keys alone: "
                    "it gives other values when they come in pieces"
                )
    return whole


def _called(
    name: str, function: PositionFunction, q: Tensor, k: Tensor, full: tuple[int, ...]
) -> Tensor:
    """What it gives, broadcast to `full` [B, H, T, S]; RequestError where it is no tensor or does not fit."""
    given = function(q, k)
    if not isinstance(given, Tensor):
        raise RequestError(f"the custom {name} must give a tensor, not a {type(given).__name__}")
    try:
        return given.expand(full)
    except RuntimeError:
        raise RequestError(
            f"the custom {name} must fit [batch, heads, queries, keys] = {list(full)}, "
            f"it gives {list(given.shape)}"
        ) from None
