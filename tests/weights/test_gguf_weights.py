"""GGUF as a checkpoint: metadata to a config, quantised and reordered tensors to parameters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from engine.errors import ModelFileError
from engine.spec import FrequencyDivisors, LinearScaling
from engine.weights import gguf as reader
from engine.weights import open_checkpoint
from tests.weights import tiny


def _step(values: torch.Tensor, kind: str) -> torch.Tensor:
    """The largest rounding error that the type allows at each number: half a step of its block.

    A block's scale is stored as a float16, which adds 2^-11 of the largest code times the scale.
    """
    blocks = values.reshape(-1, 32)
    low, high = blocks.amin(1, keepdim=True), blocks.amax(1, keepdim=True)
    size = blocks.abs().amax(1, keepdim=True)
    half = {
        "F32": 0 * size,
        "F16": size * 2**-11,
        "BF16": size * 2**-8,
        "Q8_0": size / 127 / 2 + size * 2**-10,
        "Q5_0": size / 16,
        "Q5_1": (high - low) / 31 / 2 + size * 2**-9,
        "Q4_0": size / 8,
        "Q4_1": (high - low) / 15 / 2 + size * 2**-9,
    }[kind]
    return half.expand_as(blocks).reshape(values.shape) + 1e-7


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1"])
def test_a_round_trip_stays_within_the_quantisation_step(tmp_path: Path, kind: str) -> None:
    """q and k rows come back in halves, each with its own head count, and nothing else moves."""
    held = tiny.tensors()
    path = tiny.save_gguf(tmp_path / "tiny.gguf", held, kind)
    assert {tensor.dtype for tensor in open_checkpoint(path).tensors.values()} == {"F32", kind}
    got, want = tiny.parameters(tiny.load(path)), tiny.expected(held)
    assert got.keys() == want.keys()
    for name, value in want.items():
        allowed = _step(value, kind if value.ndim > 1 else "F32")
        assert ((got[name] - value).abs() <= allowed).all(), name
        assert not got[name].requires_grad


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_quantised_rows_are_rounded_once_to_the_dtype_asked_for(tmp_path: Path, kind: str) -> None:
    path = tiny.save_gguf(tmp_path / "tiny.gguf", tiny.tensors(), kind)
    single, half = (
        tiny.parameters(tiny.load(path)),
        tiny.parameters(tiny.load(path, torch.bfloat16)),
    )
    assert all(torch.equal(half[name], single[name].bfloat16()) for name in single)


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_k_types_decode_block_by_block_as_in_one_go(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven rows of 512 numbers, decoded three at a time, so that the last block is a short one."""
    monkeypatch.setattr(reader, "_BLOCK", 3 * 512)
    qtype = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[qtype]
    rows = np.random.default_rng(3).integers(0, 60, (7, 512 // block * size), dtype=np.uint8)
    path = tmp_path / "k.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in tiny.METADATA.items():
        tiny.add(writer, key, value)
    writer.add_tensor("token_embd.weight", rows, raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    decoded = open_checkpoint(path).read("token_embd.weight")
    assert decoded.shape == (7, 512)
    assert torch.equal(decoded, torch.from_numpy(gguf.dequantize(rows, qtype)))


def test_a_head_left_out_is_the_embedding(tmp_path: Path) -> None:
    held = tiny.tensors()
    del held["lm_head.weight"]
    path = tiny.save_gguf(tmp_path / "tied.gguf", held)
    assert open_checkpoint(path).spec.tied_head
    decoder = tiny.load(path)
    assert decoder.logits.weight is decoder.embed.weight
    assert torch.equal(decoder.embed.weight, held["model.embed_tokens.weight"])


def test_a_head_in_the_file_is_read(tmp_path: Path) -> None:
    path = tiny.save_gguf(tmp_path / "untied.gguf", tiny.tensors())
    assert not open_checkpoint(path).spec.tied_head
    decoder = tiny.load(path)
    assert decoder.logits.weight is not decoder.embed.weight


def test_biases_of_q_and_k_are_reordered_with_their_rows(tmp_path: Path) -> None:
    """No GGUF key declares a bias, so the tensors themselves do."""
    held = tiny.tensors(bias=True)
    got = tiny.parameters(tiny.load(tiny.save_gguf(tmp_path / "bias.gguf", held)))
    want = tiny.expected(held)
    assert len(got) == len(held) == len(want)
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_a_bias_in_one_layer_alone_is_not_dropped(tmp_path: Path) -> None:
    held = tiny.tensors()
    held["model.layers.1.self_attn.q_proj.bias"] = torch.ones(tiny.HEADS * tiny.HEAD_DIM)
    path = tiny.save_gguf(tmp_path / "bias.gguf", held)
    with pytest.raises(ModelFileError, match=r"no parameter for: blk\.1\.attn_q\.bias"):
        tiny.load(path)


# -- metadata ------------------------------------------------------------------------------------


def _config(tmp_path: Path, changed: dict[str, Any], **extra: np.ndarray) -> Any:
    metadata = {k: v for k, v in (tiny.METADATA | changed).items() if v is not None}
    named = {name.replace("__", "."): array for name, array in extra.items()}
    path = tiny.save_gguf(tmp_path / "m.gguf", tiny.tensors(), metadata=metadata, extra=named)
    return open_checkpoint(path)


def test_the_metadata_becomes_a_config_of_the_same_model(tmp_path: Path) -> None:
    checkpoint = _config(tmp_path, {"llama.vocab_size": None})
    wanted = {k: v for k, v in tiny.CONFIG.items() if k != "architectures"}
    assert checkpoint.config == wanted | {
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": pytest.approx(1e-5),
        "rope_theta": 10000.0,
    }
    assert checkpoint.spec.vocab_size == tiny.VOCAB  # from the embedding's shape


FACTORS = np.linspace(1, 8, tiny.HEAD_DIM // 2, dtype=np.float32)


@pytest.mark.parametrize(
    ("metadata", "scaling"),
    [
        ({}, None),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, None),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, LinearScaling(4)),
        ({"llama.rope.scaling.factor": 4.0}, LinearScaling(4)),
        ({"llama.rope.scale_linear": 2.0}, LinearScaling(2)),
        ({"llama.rope.scaling.type": "linear"}, None),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 0.0}, None),
    ],
)
def test_rope_scaling_is_read_as_llama_cpp_reads_it(
    tmp_path: Path, metadata: dict[str, Any], scaling: LinearScaling | None
) -> None:
    """A factor without a type is linear; zero means that there is none."""
    assert _config(tmp_path, metadata).spec.layers[0].attn.rope.scaling == scaling


def test_rope_freqs_are_a_scaling_and_no_surplus_tensor(tmp_path: Path) -> None:
    """Llama 3.1's scaling is a tensor in GGUF files; an engine that skips it is wrong past 8192."""
    checkpoint = _config(tmp_path, {}, rope_freqs__weight=FACTORS)
    scaling = checkpoint.spec.layers[-1].attn.rope.scaling
    assert scaling == FrequencyDivisors(tuple(FACTORS.tolist()))
    tiny.load(checkpoint.path)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, np.ndarray], str]] = {
    "unknown key": ({"llama.logit_scale": 2.0}, {}, "llama.logit_scale is not understood"),
    "experts": ({"llama.expert_count": 8}, {}, "llama.expert_count is not understood"),
    "two keys that disagree": (
        {"llama.rope.dimension_count": 12},
        {},
        "llama.attention.key_length is 24 but llama.rope.dimension_count is 12; both say head_dim",
    ),
    "yarn": ({"llama.rope.scaling.type": "yarn"}, {}, "rope.scaling.type 'yarn' is not supported"),
    "bad factor": ({"llama.rope.scaling.factor": float("nan")}, {}, "factor nan is not usable"),
    "two scalings": (
        {"llama.rope.scaling.factor": 4.0},
        {"rope_freqs__weight": FACTORS},
        "has both rope_freqs.weight and a linear rope scaling",
    ),
    "rope_freqs of another type": (
        {},
        {"rope_freqs__weight": FACTORS.astype(np.float16)},
        "rope_freqs.weight must be a list of F32 numbers, not F16 [12]",
    ),
    "rope_freqs of another length": (
        {},
        {"rope_freqs__weight": FACTORS[:5]},
        "rope_freqs.weight has 5 entries, not 12",
    ),
    "heads per layer": ({"llama.attention.head_count": [4, 2]}, {}, "must be a whole number"),
    "no heads": ({"llama.attention.head_count": 0}, {}, "must be a whole number from 1, got 0"),
    "a key left out": ({"llama.embedding_length": None}, {}, "lacks llama.embedding_length"),
    "no eps": (
        {"llama.attention.layer_norm_rms_epsilon": None},
        {},
        "lacks llama.attention.layer_norm_rms_epsilon",
    ),
    "surplus tensor": ({}, {"blk__0__extra": FACTORS}, "no parameter for: blk.0.extra"),
    "type without decoder": (
        {},
        {"blk__0__ids": np.zeros(4, dtype=np.int32)},
        "blk.0.ids is of type I32, which is not supported (supported: F32, F16, BF16, Q4_0,",
    ),
    "split file": ({"split.count": 3}, {}, "one part of a split GGUF model"),
    "adapter": ({"general.type": "adapter"}, {}, "holds a GGUF 'adapter', not a model"),
    "wrong size": ({"llama.feed_forward_length": 128}, {}, "wrong shapes: blk.0.ffn_gate.weight"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_understood_is_refused_by_name(tmp_path: Path, case: str) -> None:
    metadata, extra, message = REFUSED[case]
    with pytest.raises(ModelFileError, match=re.escape(message)) as refusal:
        tiny.load(_config(tmp_path, metadata, **extra).path)
    assert "m.gguf" in str(refusal.value)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = tiny.save_gguf(tmp_path / "m.gguf", tiny.tensors(), architecture="mamba")
    with pytest.raises(ModelFileError, match=r"architecture 'mamba' are not supported.*llama"):
        open_checkpoint(path)


# -- a real model --------------------------------------------------------------------------------


def test_smollm2_loads_whole(asset: Any) -> None:
    decoder = tiny.load(asset("smollm2-135m"))
    assert len(decoder.layers) == 30
    assert decoder.embed.weight.shape == (49152, 576)
    assert decoder.logits.weight is decoder.embed.weight
    parameters = list(decoder.parameters())
    assert sum(p.numel() for p in parameters) == 134_515_008
    assert not any(p.is_meta for p in parameters)
    assert all(p.std() > 0 for p in parameters)  # false for a constant, and for a NaN anywhere
