"""Seconds by the machine's clock, with a device's work done before it is read."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def now(device: torch.device) -> float:
    """Once all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def seconds(call: Callable[[], object], device: torch.device) -> float:
    start = now(device)
    call()
    return now(device) - start
