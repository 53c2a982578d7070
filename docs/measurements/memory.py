"""The engine's peak memory against what it must hold: `python docs/measurements/memory.py [MODEL]`.

What it must hold are the weights, the cache, and all that one layer computes in a pass, probe by probe. Each
point is a process of its own, which loads the model from a mapped safetensors file, and reads a prompt or
also decodes; of its peak (VmHWM) goes what a process has that has computed with a tiny model. The goal is
1.15 times what must be held. MODEL is smollm2-135m by default; a GGUF file is written as safetensors first.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

GOAL = 1.15
MIB = 2**20
DECODED = 32  # tokens after the prompt
#: Tokens of the prompt, and whether decoding follows.
POINTS = ((512, False), (2048, False), (512, True), (2048, True))


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line
    )
    return int(line.split()[1]) * 1024


def compute_a_little(dtype: str) -> None:
    """What any process does that computes: torch, its threads, and the code of all operations are loaded."""
    import torch

    from engine.cache import ContiguousCache
    from engine.device import DTYPES
    from tests.engine import tiny
    from tests.engine.zoo import ZOO

    made = tiny.decoder_of(ZOO["plain"]).to(DTYPES[dtype])
    with torch.inference_mode():
        cache = ContiguousCache(made.spec, 32, dtype=DTYPES[dtype])
        made(torch.arange(24)[None], cache, last=1)


def child(model: str, dtype: str, backend: str, tokens: int, decodes: bool) -> None:
    """Prints the bytes of weights, cache and one layer, and by how much the peak rose, as JSON."""
    import torch

    from engine import Engine
    from engine.generate.loaded import STEP_TOKENS
    from engine.probe import attached

    compute_a_little(dtype)
    before = peak()
    engine = Engine.load(model, dtype=dtype, backend=backend)
    ids = [i * 7 % engine.spec.vocab_size for i in range(tokens)]
    capacity = tokens + DECODED
    with torch.inference_mode():
        cache = engine.new_cache(capacity, 1, STEP_TOKENS)
        logits = engine.prefill(ids, cache)
        for _ in range(DECODED if decodes else 0):
            logits = engine.decode(int(logits.argmax()), cache)
    rose = peak() - before
    weights = sum(p.nbytes for p in set(engine.decoder.parameters()))
    # A slot that nobody has written to takes no memory yet.
    kept = sum(store.data.nbytes for store in cache.stores()) * cache.length // capacity
    sizes: dict[str, int] = {}

    def keep(probe: str, value: torch.Tensor) -> torch.Tensor:
        sizes[probe] = max(sizes.get(probe, 0), value.nbytes)
        return value

    with torch.inference_mode(), attached(keep, ("", engine.decoder.layers[0])):
        engine.prefill(ids, engine.new_cache(capacity, 1, STEP_TOKENS))
    print(json.dumps([weights, kept, sum(sizes.values()), rose]))


def row(model: Path, dtype: str, backend: str, tokens: int, decodes: bool) -> str:
    command = [sys.executable, __file__, "--child", str(model), dtype, backend, str(tokens)]
    done = subprocess.run(
        [*command, str(int(decodes))], capture_output=True, text=True, check=True, cwd=ROOT
    )
    weights, kept, layer, rose = json.loads(done.stdout)
    share = rose / (weights + kept + layer)
    what = f"{tokens} tokens" + (f", then {DECODED} decoded" if decodes else "")
    sizes = " | ".join(f"{size / MIB:.0f}" for size in (weights, kept, layer, rose))
    return f"| {dtype} | {backend} | {what} | {sizes} | {share:.2f} |"


def as_safetensors(model: str, dtype: str, folder: Path) -> Path:
    """The model's weights in `dtype` as a folder in Hugging Face layout, which can be mapped."""
    from safetensors.torch import save_file

    from engine import Engine
    from engine.families import read_spec
    from engine.weights.arrange import sources
    from engine.weights.plan import in_layout

    engine = Engine.load(model, dtype=dtype)
    family, spec = read_spec(engine.checkpoint.config)
    verbs = family.layout(spec).verbs
    tensors: dict[str, Any] = {}
    for name, parameter in engine.decoder.named_parameters():
        number = name.split(".")[1] if name.startswith("layers.") else ""
        (source,) = sources(verbs[in_layout(name)])
        tensors[source.replace("{i}", number)] = parameter.data.contiguous()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(engine.checkpoint.config)))
    save_file(tensors, folder / "model.safetensors")
    return folder


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        model, dtype, backend, tokens, decodes = sys.argv[2:]
        child(model, dtype, backend, int(tokens), decodes == "1")
        return
    model = sys.argv[1] if sys.argv[1:] else "smollm2-135m"
    print("| dtype | backend | pass | weights, MiB | cache | one layer | peak | peak / the three |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for dtype in ("float32", "bfloat16"):
            folder = as_safetensors(model, dtype, Path(scratch) / dtype)
            for backend in ("eager", "sdpa"):
                for tokens, decodes in POINTS:
                    print(row(folder, dtype, backend, tokens, decodes), flush=True)


if __name__ == "__main__":
    main()
