"""How much memory a device has left, and what the process does with what it has freed."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

#: mallopt(3): the numbers of two of glibc's settings, and how the environment spells them.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
ENVIRONMENT = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
LARGEST = 32 * 2**20  # bytes of an allocation that glibc can be told to keep


def keep_what_is_freed() -> None:
    """Has this process keep the memory of one forward pass for the next one, instead of giving it back.

    The system would hand out the same pages in the next pass, zeroed, one fault for each. What a pass took
    stays with the process, also when an engine is gone (but see `give_back`). Nothing is changed where the
    environment says otherwise, or where there is no glibc.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is not None and not any(name in os.environ for name in ENVIRONMENT):
        mallopt(M_MMAP_THRESHOLD, LARGEST)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def give_back() -> None:
    """Gives the system what is kept and not in use, where there is glibc."""
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on `device`, so that what is larger is refused before it is tried.

    File caches count as free. Where the system does not say (neither CUDA nor Linux), all of its memory.
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
