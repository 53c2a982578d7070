"""`lockstep logits` and `lockstep trace`: what they write is what the engine computes."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from engine import Engine
from engine.probe import probes
from tests.cli.command_line import PROMPT, PROMPT_IDS, TINY, Call, is_one_sentence


def test_logits_are_those_of_the_engine(
    call: Call, loaded: str, engine: Engine, tmp_path: Path
) -> None:
    out = tmp_path / "logits.safetensors"
    assert call("logits", loaded, "--text", PROMPT, "--out", out) == (0, "", "")
    saved = load_file(out)
    assert saved["ids"].dtype == torch.int64
    assert saved["ids"].tolist() == PROMPT_IDS
    assert saved["logits"].dtype == torch.float32
    assert torch.equal(saved["logits"], engine.logits(PROMPT_IDS))
    assert list(tmp_path.iterdir()) == [out]


def test_logits_in_chunks_and_dtypes_and_by_either_backend(call: Call, tmp_path: Path) -> None:
    ids = list(range(1, 30))
    out = tmp_path / "logits.safetensors"
    for backend, dtype, chunk in (("eager", "float32", 7), ("sdpa", "bfloat16", None)):
        options = ["--backend", backend, "--dtype", dtype]
        options += [] if chunk is None else ["--chunk", str(chunk)]
        status, _, err = call("logits", TINY, "--ids", str(ids)[1:-1], "--out", out, *options)
        assert (status, err) == (0, "")
        saved = load_file(out)["logits"]
        engine = Engine.load(TINY, dtype=dtype, backend=backend)
        assert saved.dtype == torch.float32
        assert torch.equal(saved, engine.logits(ids, chunk=chunk))


def test_trace_holds_every_probe(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "trace.safetensors"
    assert call("trace", TINY, "--ids", "1,2,3", "--out", out) == (0, "", "")
    engine = Engine.load(TINY, backend="eager")
    cache = {f"cache.layers.{i}.{part}" for i in range(engine.spec.n_layers) for part in "kv"}
    traced = load_file(out)
    assert set(traced) == cache | set(probes(engine.decoder))
    assert torch.equal(traced["logits"][0], engine.logits([1, 2, 3]))


def test_a_failed_command_writes_nothing(call: Call, tmp_path: Path) -> None:
    for wrong in (["--ids", "999999"], ["--ids", "1", "--chunk", "0"], ["--text", "no tokenizer"]):
        status, out, err = call("logits", TINY, *wrong, "--out", tmp_path / "f.safetensors")
        assert (status, out) == (2, "")
        assert is_one_sentence(err)
        assert list(tmp_path.iterdir()) == []
