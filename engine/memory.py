"""How much memory a device has left, so that a large allocation is refused before it is tried."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on `device`: file caches count as free.

    Where the system does not say (neither CUDA nor Linux), all of its memory.
    """
    if device.type == "meta":  # where tensors have no numbers
        return sys.maxsize
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def mebibytes(n: int) -> str:
    return f"{n / 2**20:,.0f} MiB"
