"""The memory of long prompts: `python docs/measurements/long_inputs.py [MODEL]`.

Each point is a process of its own that loads the model, makes the cache, and reads a prompt in one pass
or in the engine's chunks; its peak (VmHWM) is shown, and by how much the prompt raised it. MODEL, by
default smollm2-135m, at 2k to 8k tokens; a tiny model of one layer at 2k to 32k.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

KERNELS = ("eager", "sdpa", "tiled")
CHUNK = 512
MIB = 2**20


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line
    )
    return int(line.split()[1]) * 1024


def child(model: str, kernel: str, tokens: int, chunk: int) -> None:
    """Prints the peak before and after a prompt, and the seconds it took, as JSON."""
    import torch

    from engine import Engine
    from engine.cache import ContiguousCache
    from tests.engine import tiny
    from tests.engine.zoo import LAYER
    from tests.engine.zoo import model as shape

    torch.set_num_threads(1)
    decoder = (
        tiny.decoder_of(shape(LAYER), kernel)
        if model == "tiny"
        else Engine.load(model, backend=kernel).decoder
    )
    ids = torch.arange(tokens)[None] % decoder.spec.vocab_size
    with torch.inference_mode():
        cache = ContiguousCache(decoder.spec, tokens)
        decoder(ids[:, :64], ContiguousCache(decoder.spec, 64), last=1)
        before, start = peak(), time.perf_counter()
        for part in ids.split(chunk, dim=1):
            decoder(part, cache, last=1)
    print(json.dumps([before, peak(), time.perf_counter() - start]))


def measured(model: str, kernel: str, tokens: int, chunk: int) -> tuple[float, float, float]:
    """Peak and growth in MiB, and seconds."""
    command = [sys.executable, __file__, "--child", model, kernel, str(tokens), str(chunk)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    before, after, seconds = json.loads(done.stdout)
    return after / MIB, (after - before) / MIB, seconds


def table(model: str, lengths: tuple[int, ...], kernels: tuple[str, ...]) -> None:
    print(f"\n{model}: peak MiB (of which the prompt added), seconds")
    print("| kernel | pass | " + " | ".join(f"{n:,}" for n in lengths) + " |")
    print("|---|---|" + "---|" * len(lengths))
    peaks: dict[tuple[str, str, int], float] = {}
    for way in ("whole", f"chunks of {CHUNK}"):
        for kernel in kernels:
            cells = []
            for n in lengths:
                highest, added, seconds = measured(model, kernel, n, n if way == "whole" else CHUNK)
                peaks[kernel, way, n] = highest
                cells.append(f"{highest:,.0f} ({added:,.0f}), {seconds:.1f} s")
            print(f"| {kernel} | {way} | " + " | ".join(cells) + " |", flush=True)
    if "eager" in kernels:
        n = lengths[-1]
        less = 1 - peaks["tiled", "whole", n] / peaks["eager", "whole", n]
        print(
            f"\nat {n:,} tokens the whole process has {100 * less:.0f} % less with tiles than eager"
        )


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        table("tiny", (2048, 4096, 8192, 16384, 32768), ("sdpa", "tiled"))
        table((sys.argv[1:] or ["smollm2-135m"])[0], (2048, 4096, 8192), KERNELS)
