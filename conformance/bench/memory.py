"""The most memory that this process, or its part of a GPU, has held."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Peak:
    """Of a CPU the resident memory, mapped files included; of a GPU what torch has allocated."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def bytes(self) -> int:
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        if _STATUS.exists():
            for line in _STATUS.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024

    def reset(self) -> None:
        """From now on; where the system cannot forget (neither CUDA nor Linux), from the start."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        elif _RESET.exists():
            try:
                _RESET.write_text("5")  # see proc(5)
            except PermissionError:
                pass  # not ours to say in some containers
