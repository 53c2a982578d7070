"""Each family that has GGUF files: the same model from a folder and from GGUF, key by key.

Tensors get their GGUF names from the `gguf` package, which has them from llama.cpp's converters.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from engine import Engine, SamplingParams
from engine.backends import backend
from engine.decoder import Decoder
from engine.errors import ModelFileError
from engine.families import read_spec
from engine.spec import GroupedQueryAttention, LinearScaling, ModelSpec
from engine.weights import open_checkpoint
from engine.weights.arrange import sources
from tests.weights import tiny

# Heads of 16 numbers in a dim of 96, so that nothing follows from something else.
SIZES: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 0.5,
    "rope_theta": 5000.0,
    "vocab_size": 40,
}
METADATA: dict[str, Any] = {
    "block_count": 7,
    "context_length": 128,
    "embedding_length": 96,
    "feed_forward_length": 160,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "attention.layer_norm_rms_epsilon": 0.5,
    "rope.freq_base": 5000.0,
}
GEMMA: dict[str, Any] = {"query_pre_attn_scalar": 16, "sliding_window": 8}

# Architecture in GGUF: the family, its config.json beside the sizes, its metadata beside theirs.
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", "llama", {}, {}),
    "llama with biases": ("llama", "llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "qwen2": ("qwen2", "qwen2", {"tie_word_embeddings": True}, {}),
    "qwen3": ("qwen3", "qwen3", {}, {}),
    "gemma3": ("gemma3", "gemma3_text", GEMMA, {"attention.sliding_window": 8}),
    "gemma3 of 4 billion": (
        "gemma3",
        "gemma3_text",
        GEMMA | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {
            "attention.sliding_window": 8,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    "gemma3 that says all": (
        "gemma3",
        "gemma3_text",
        GEMMA
        | {
            "final_logit_softcapping": 2.0,
            "sliding_window_pattern": 3,
            "rope_local_base_freq": 500.0,
        },
        {
            "attention.sliding_window": 8,
            "attention.sliding_window_pattern": 3,
            "final_logit_softcapping": 2.0,
            "rope.freq_base_swa": 500.0,
        },
    ),
    "gemma3 without windows": (
        "gemma3",
        "gemma3_text",
        GEMMA | {"layer_types": ["full_attention"] * 7},
        {},
    ),
}


def _config(case: str) -> dict[str, Any]:
    _, family, own, _ = CASES[case]
    return {"model_type": family, **SIZES, **own}


def _drawn(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Every tensor of the model by its Hugging Face name, at random.

    In steps of 1/64, so that nothing is lost where Gemma's norms carry a 1.
    """
    family, spec = read_spec(config)
    verbs = family.layout(spec).verbs
    rng = torch.Generator().manual_seed(11)
    held: dict[str, torch.Tensor] = {}
    for name, parameter in Decoder(spec, backend(None, spec)).named_parameters():
        layer = re.match(r"layers\.(\d+)\.", name)
        (source,) = sources(verbs[re.sub(r"^layers\.\d+\.", "layers.{i}.", name)])
        source = source.replace("{i}", layer[1] if layer else "")
        if not source.startswith(("model.", "lm_head.")):
            source = "model." + source
        if not (spec.tied_head and name == "logits.weight"):
            held[source] = (torch.randn(parameter.shape, generator=rng) * 64).round() / 64
    return held


def _save_gguf(path: Path, case: str, held: dict[str, torch.Tensor], **changed: Any) -> Path:
    arch, _, _, own = CASES[case]
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {**METADATA, **own, **changed}.items():
        if value is not None:
            tiny.add(writer, f"{arch}.{key}", value)
    (number,) = (n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, SIZES["num_hidden_layers"])
    for name, tensor in held.items():
        if arch == "llama" and (part := re.search(r"\b[qk]_proj", name)):
            heads = SIZES["num_attention_heads" if part[0] == "q_proj" else "num_key_value_heads"]
            tensor = tiny.interleaved(tensor, heads)
        if arch == "gemma3" and name.endswith("norm.weight"):
            tensor = tensor + 1
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        writer.add_tensor(stored, tensor.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("case", CASES)
def test_a_gguf_file_holds_the_same_model_as_a_folder(tmp_path: Path, case: str) -> None:
    config = _config(case)
    held = _drawn(config)
    folder = tiny.save_folder(tmp_path / "folder", held, config)
    path = _save_gguf(tmp_path / "m.gguf", case, held)
    ours, theirs = open_checkpoint(path), open_checkpoint(folder)
    assert ours.config["model_type"] == theirs.config["model_type"] == CASES[case][1]
    assert ours.spec == theirs.spec
    got, want = tiny.parameters(tiny.load(path)), tiny.parameters(tiny.load(folder))
    assert got.keys() == want.keys()
    assert len({p.data_ptr() for p in got.values()}) == len(held)
    for name, value in want.items():
        assert torch.equal(got[name], value), name


# -- what the file does not say, llama.cpp knows -----------------------------------------------------


def _spec(tmp_path: Path, case: str, **changed: Any) -> ModelSpec:
    held = _drawn(_config(case))
    return open_checkpoint(_save_gguf(tmp_path / "m.gguf", case, held, **changed)).spec


def _attention(spec: ModelSpec) -> list[GroupedQueryAttention]:
    return [layer.attn for layer in spec.layers if isinstance(layer.attn, GroupedQueryAttention)]


def test_gemma3_has_every_sixth_layer_full_with_a_base_and_a_scaling_of_its_own(
    tmp_path: Path,
) -> None:
    layers = _attention(_spec(tmp_path, "gemma3 of 4 billion"))
    assert [attn.window for attn in layers] == [8, 8, 8, 8, 8, None, 8]
    ropes = [attn.rope for attn in layers]
    assert [rope and rope.theta for rope in ropes] == [1e4, 1e4, 1e4, 1e4, 1e4, 5000, 1e4]
    assert [rope and rope.scaling for rope in ropes] == [None] * 5 + [LinearScaling(8), None]


def test_gemma3_without_a_window_has_full_layers_alone(tmp_path: Path) -> None:
    """The class's default, 4096, would be another model."""
    layers = _attention(_spec(tmp_path, "gemma3 without windows"))
    assert {attn.window for attn in layers} == {None}
    assert {attn.rope and attn.rope.theta for attn in layers} == {5000.0}


@pytest.mark.parametrize(("n_layers", "divisor"), [(7, 16), (62, 24)])
def test_the_largest_gemma3_scales_scores_by_its_width_over_its_heads(
    tmp_path: Path, n_layers: int, divisor: int
) -> None:
    spec = _spec(tmp_path, "gemma3", block_count=n_layers)
    assert {attn.scale for attn in _attention(spec)} == {divisor**-0.5}


@pytest.mark.parametrize("case", ["llama", "qwen2", "qwen3", "gemma3"])
def test_what_a_file_leaves_out_is_what_llama_cpp_takes_it_for(tmp_path: Path, case: str) -> None:
    """Not what a config class in transformers has as its default: 32 heads, or a base of a million."""
    left_out = {
        "attention.head_count_kv": None,
        "attention.key_length": None,
        "rope.freq_base": None,
    }
    attn = _attention(_spec(tmp_path, case, **left_out))[5]
    assert (attn.n_kv_heads, attn.head_dim) == (4, 24)
    assert attn.rope is not None
    assert attn.rope.theta == 10000.0


@pytest.mark.parametrize(
    ("case", "left_out", "message"),
    [
        ("qwen2", "model.layers.6.self_attn.k_proj.bias", "(for layers.6.attn.k.bias, which the"),
        ("qwen3", "model.layers.0.self_attn.q_norm.weight", "(for layers.0.attn.q_norm.weight)"),
        (
            "gemma3",
            "model.layers.3.post_feedforward_layernorm.weight",
            "missing tensors: blk.3.post",
        ),
    ],
)
def test_a_tensor_that_the_family_needs_is_missed(
    tmp_path: Path, case: str, left_out: str, message: str
) -> None:
    held = _drawn(_config(case))
    del held[left_out]
    with pytest.raises(ModelFileError) as refusal:
        tiny.load(_save_gguf(tmp_path / "m.gguf", case, held))
    assert message in str(refusal.value)


def test_a_tensor_of_another_family_is_not_left_aside(tmp_path: Path) -> None:
    """A q norm in a file that says llama: skipping it would be another model."""
    extra = {"blk.1.attn_q_norm.weight": np.ones(tiny.HEAD_DIM, dtype=np.float32)}
    path = tiny.save_gguf(tmp_path / "m.gguf", tiny.tensors(), extra=extra)
    with pytest.raises(ModelFileError) as refusal:
        tiny.load(path)
    assert "blk.1.attn_q_norm.weight (the config declares no layers.1.attn.q_norm.weight)" in str(
        refusal.value
    )


# -- a real model ------------------------------------------------------------------------------------


def test_gemma3_270m_goes_on_as_it_should(asset: Any) -> None:
    """Five types of quantisation in one file; greedy, from ids, after "The capital of France is"."""
    engine = Engine.load(asset("gemma3-270m"), dtype="bfloat16")
    assert sum(p.numel() for p in engine.decoder.parameters()) == 268_098_176
    # The file has 16, 16.875 and 10.8125 in the first norm, with the 1.
    norm = engine.decoder.layers[0].pre_attn_norm.weight
    assert norm[:3].tolist() == [15, 15.875, 9.8125]
    done = engine.generate([2, 818, 5279, 529, 7001, 563], SamplingParams(max_tokens=8))
    assert done.text == " the capital of the country of France."
