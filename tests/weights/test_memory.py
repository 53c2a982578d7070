"""A load needs little memory beside the model itself, whatever has to be done to its tensors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.families.family import (
    Deinterleave,
    Either,
    Microscaled,
    Rename,
    Split,
    Stack,
    Transpose,
    Verb,
)

DIM, FFN, E, LAYERS = 1024, 1536, 8, 2
FUSED = Deinterleave(Transpose(Rename("{i}.fused")), 1, axis=1)
PACKED = Deinterleave(Microscaled("{i}.blocks", "{i}.scales"), 1, axis=1)

VERBS: dict[str, Verb] = {
    "layers.{i}.qkv.q": Split(Transpose(Rename("{i}.c_attn")), 0, DIM),
    "layers.{i}.qkv.k": Split(Transpose(Rename("{i}.c_attn")), DIM, 2 * DIM),
    "layers.{i}.qkv.v": Split(Transpose(Rename("{i}.c_attn")), 2 * DIM, 3 * DIM),
    "layers.{i}.mlp.gate": Split(Rename("{i}.gate_up"), 0, 4 * FFN),
    "layers.{i}.mlp.up": Split(Rename("{i}.gate_up"), 4 * FFN, 8 * FFN),
    "layers.{i}.stacked.down": Either((Rename("{i}.down"), Stack(Rename("{i}.{e}.down"), E))),
    "layers.{i}.fused.gate": Split(FUSED, 0, FFN, axis=1),
    "layers.{i}.fused.up": Split(FUSED, FFN, 2 * FFN, axis=1),
    "layers.{i}.packed.gate": Split(PACKED, 0, FFN, axis=1),
    "layers.{i}.packed.up": Split(PACKED, FFN, 2 * FFN, axis=1),
}
ONE = {
    "qkv.q": (DIM, DIM), "qkv.k": (DIM, DIM), "qkv.v": (DIM, DIM),
    "mlp.gate": (4 * FFN, DIM), "mlp.up": (4 * FFN, DIM),
    "stacked.down": (E, DIM, FFN),
    "fused.gate": (E, FFN, DIM), "fused.up": (E, FFN, DIM),
    "packed.gate": (E, FFN, DIM), "packed.up": (E, FFN, DIM),
}  # fmt: skip
SHAPES = {f"layers.{i}.{name}": shape for i in range(LAYERS) for name, shape in ONE.items()}


def measure(folder: Path, dtype: torch.dtype) -> dict[str, float]:
    """Bytes of the model, and by how much the process grew at most while it was loaded and read."""
    import engine.weights.microscaled  # noqa: F401  what is imported later is not the model's
    from engine.weights import load_parameters
    from tests.weights import made

    model, checkpoint = made.decoder(SHAPES), made.checkpoint(folder, VERBS)
    before = _status("VmRSS")
    load_parameters(model, checkpoint, "cpu", dtype)
    for parameter in model.parameters():  # what is mapped takes its memory when it is read
        parameter.sum()
    size = sum(p.nbytes for p in model.parameters())
    return {"size": size, "grown": _status("VmHWM") - before}


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) * 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """240 MB in bfloat16 and MXFP4, in every layout that is not one tensor per parameter."""
    held: dict[str, torch.Tensor] = {}
    for i in range(LAYERS):
        shapes = {"c_attn": (DIM, 3 * DIM), "gate_up": (8 * FFN, DIM), "fused": (E, DIM, 2 * FFN)}
        shapes |= {f"{e}.down": (DIM, FFN) for e in range(E)}
        held |= {f"{i}.{k}": torch.ones(shape).bfloat16() for k, shape in shapes.items()}
        held[f"{i}.blocks"] = torch.full((E, 2 * FFN, DIM // 32, 16), 0x22, dtype=torch.uint8)
        held[f"{i}.scales"] = torch.full((E, 2 * FFN, DIM // 32), 127, dtype=torch.uint8)
    path = tmp_path_factory.mktemp("large")
    save_file(held, path / "model.safetensors")
    yield path
    (path / "model.safetensors").unlink()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system says no peak")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_peak_memory_is_at_most_1_3_times_the_model(folder: Path, dtype: str) -> None:
    """In the stored dtype, of which much stays mapped, and in another; in a process of its own."""
    code = (
        "import json, pathlib, torch; from tests.weights.test_memory import measure; "
        f"print(json.dumps(measure(pathlib.Path({str(folder)!r}), torch.{dtype})))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    measured = json.loads(run.stdout)
    assert measured["size"] > 250_000_000
    assert 0.9 * measured["size"] < measured["grown"] < 1.3 * measured["size"]
