"""The limits' arithmetic, against what torch counts in a forward pass and what a decoder holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from conformance.bench.ours import step_bytes
from conformance.bench.random_llama import write_model
from conformance.bench.work import Work, work
from conformance.golden import REPOSITORY_GOLDENS
from engine import Engine

#: One of every kind of attention, feed-forward and head; none has experts that are left out.
GOLDENS = (
    "llama-gqa",
    "llama-tied",
    "gpt2",
    "gemma3",
    "phi3-longrope-long",
    "deepseek-v3-all-experts",
)


@pytest.mark.parametrize("name", GOLDENS)
def test_operations_are_those_that_torch_counts(name: str) -> None:
    """In one pass over T tokens without a cache: all pairs of a query and a key are formed, masked or not."""
    folder = REPOSITORY_GOLDENS / name
    engine = Engine.load(folder, backend="eager")
    T = 5
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        engine.decoder(torch.arange(T)[None], engine.new_cache(T))
    counted = work(folder, "float32")
    scored = sum(layer.per_key for layer in counted.layers) * T * T
    assert counter.get_total_flops() == T * (counted.per_token + counted.head) + scored


@pytest.mark.parametrize("name", ["llama-gqa", "llama-tied", "gpt2", "gemma3", "olmo2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_reads_the_weights_that_a_decoder_holds(name: str, dtype: str) -> None:
    folder = REPOSITORY_GOLDENS / name
    engine = Engine.load(folder, dtype=dtype)
    learned = engine.decoder.embed.positions  # looked up as well
    taken = step_bytes(engine.decoder) - (0 if learned is None else learned.nbytes)
    assert work(folder, dtype).weights == taken


@pytest.mark.parametrize(("kind", "least", "most"), [("int8", 0.25, 0.3), ("int4", 0.14, 0.2)])
def test_quantised_weights_count_as_what_is_kept(
    tmp_path: Path, kind: str, least: float, most: float
) -> None:
    """A quarter of float32 and a step for each row, or a bit more than an eighth with two for each 32."""
    write_model("tiny", tmp_path, "float32", "cpu")
    whole = step_bytes(Engine.load(tmp_path).decoder)
    kept = step_bytes(Engine.load(tmp_path, quantization=kind).decoder)
    assert least < kept / whole < most


def test_of_experts_a_token_has_some() -> None:
    """Two of four in every layer: half of what they hold is read."""
    folder = REPOSITORY_GOLDENS / "mixtral"
    decoder = Engine.load(folder).decoder
    spec = decoder.spec.layers[0].mlp
    share = spec.top_k / spec.n_experts  # type: ignore[union-attr]
    assert share < 1
    experts = sum(p.nbytes for name, p in decoder.named_parameters() if ".experts." in name)
    assert experts > 0
    assert work(folder, "float32").weights == step_bytes(decoder) - experts * (1 - share)


@pytest.mark.parametrize("length", [1, 5, 8, 9, 30])
def test_pairs_of_queries_and_keys_are_those_in_view(length: int) -> None:
    counted = work(REPOSITORY_GOLDENS / "gemma3", "float32")
    assert {layer.window for layer in counted.layers} == {8, None}
    pairs = sum(
        layer.per_key
        for layer in counted.layers
        for query in range(length)
        for key in range(query + 1)
        if layer.window is None or key > query - layer.window
    )
    _, operations = counted.prefill(length)
    assert operations == length * counted.per_token + counted.head + pairs


def test_a_step_reads_what_the_cache_keeps(tmp_path: Path) -> None:
    counted: Work = work(REPOSITORY_GOLDENS / "gemma3", "float32")
    by_length = [counted.decode(1, n)[0] - counted.weights for n in (1, 8, 9)]
    per_token = sum(layer.kept for layer in counted.layers)
    unbounded = sum(layer.kept for layer in counted.layers if layer.window is None)
    assert by_length == [per_token, 8 * per_token, 8 * per_token + unbounded]
    assert counted.decode(3, 8)[0] - counted.weights == 3 * 8 * per_token
