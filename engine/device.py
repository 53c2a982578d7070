"""Where the engine computes, and in which dtype."""

from __future__ import annotations

import torch

from engine.errors import RequestError

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def check_dtype(dtype: str) -> None:
    """Raises RequestError unless the engine computes in `dtype`."""
    if dtype not in DTYPES:
        raise RequestError(f"no dtype {dtype!r}; there are {', '.join(DTYPES)}")


def check_device(device: str) -> None:
    """Raises RequestError unless torch can compute on `device`."""
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise RequestError(f"no device {device!r}; there are cpu and cuda") from None
    if kind not in ("cpu", "cuda"):
        raise RequestError(f"the device {device!r} is not supported; there are cpu and cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise RequestError("no CUDA device is available; use the device cpu")
    index, n = torch.device(device).index or 0, torch.cuda.device_count()
    if kind == "cuda" and index >= n:
        raise RequestError(f"there is no device {device!r}: the last one is cuda:{n - 1}")
