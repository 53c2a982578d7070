"""What a family's config may not say, and text models nested in multimodal configs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.errors import ModelFileError
from engine.families import read_spec, text_config
from tests.engine.families.configs import CONFIGS, attention, spec_of

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "tokens that see ahead": (
        "gemma3_text",
        {"use_bidirectional_attention": True},
        "use_bidirectional_attention true is not supported for gemma3_text",
    ),
    "cross-attention": ("gpt2", {"add_cross_attention": True}, "add_cross_attention true"),
    "heads of unequal size": ("gpt2", {"n_head": 5}, "n_embd 24 cannot be shared by 5 heads"),
    "other quantisation": (
        "gpt_oss",
        {"quantization_config": {"quant_method": "gptq"}},
        "quantization_config .*gptq.* is not supported for gpt_oss",
    ),
    "quantised": (
        "deepseek_v3",
        {"quantization_config": {"quant_method": "fp8"}},
        "quantization_config is not understood for the family deepseek_v3",
    ),
    "other routing": ("deepseek_v3", {"topk_method": "greedy"}, 'topk_method "greedy" is not'),
    "heads that share values": ("deepseek_v3", {"num_key_value_heads": 2}, "num_key_value_heads 2"),
    "kind of layer": (
        "qwen3",
        {"layer_types": ["full_attention"] * 3 + ["chunked_attention"]},
        "layer_types 'chunked_attention' is not supported for qwen3",
    ),
    "too few kinds": ("qwen2", {"layer_types": ["full_attention"]}, "must be a list of 4"),
    "no window to slide": (
        "gemma2",
        {"sliding_window": None},
        "gemma2 model has sliding layers, but no sliding_window",
    ),
    "a rope of others": (
        "phi3",
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        r"'linear' is not supported for phi3 \(supported: default, longrope, su, yarn\)",
    ),
    "su outside phi3": ("qwen2", {"rope_scaling": {"type": "su"}}, "'su' is not supported for"),
    "part of a head": ("qwen2", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    "a bias of its own code": ("phi3", {"lm_head_bias": True}, "lm_head_bias true is not"),
    "activation": ("olmo2", {"hidden_act": "mish"}, "'mish' is not supported for olmo2"),
    "layer_types where all slide": (
        "mistral",
        {"layer_types": ["sliding_attention"] * 4},
        "layer_types is not understood for the family mistral",
    ),
    "absurd heads": ("gpt2", {"n_head": 2**20}, "n_head must be between 1 and 1,024"),
    "absurd experts": ("mixtral", {"num_local_experts": 2**24}, "experts must be between 1 and 4,096"),
    "absurd shared experts": ("deepseek_v3", {"n_shared_experts": 2**24}, "between 1 and 4,096"),
    "logits divided by nothing": ("granite", {"logits_scaling": 0}, "logits_scaling divides"),
}  # fmt: skip


@pytest.mark.parametrize(("family", "changes", "message"), REFUSED.values(), ids=list(REFUSED))
def test_what_would_be_another_model_is_refused(
    family: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelFileError, match=message):
        spec_of(family, **changes)


# -- a text model beside others --------------------------------------------------------------------

OUTER = {
    "gemma3": ("gemma3_text", "Gemma3ForConditionalGeneration"),
    "mistral3": ("mistral", "Mistral3ForConditionalGeneration"),
}


def nested(kind: str, **changes: Any) -> dict[str, Any]:
    family, architecture = OUTER[kind]
    return {
        "model_type": kind,
        "architectures": [architecture],
        "text_config": {**CONFIGS[family]["hub"], "architectures": None},
        "vision_config": {"hidden_size": 9},
        "image_token_index": 5,
        **changes,
    }


@pytest.mark.parametrize("kind", OUTER)
def test_the_text_part_of_a_multimodal_model_is_a_model(kind: str) -> None:
    """Whether its head is tied is said outside of it; silence means that it is."""
    family, _ = OUTER[kind]
    found, spec = read_spec(nested(kind))
    assert found.name == family
    assert spec == replace(spec_of(family), tied_head=True)
    assert not read_spec(nested(kind, tie_word_embeddings=False))[1].tied_head
    assert text_config(nested(kind, text_config={"eos_token_id": 7}))["eos_token_id"] == 7


@pytest.mark.parametrize("kind", OUTER)
def test_what_a_multimodal_config_says_besides_is_read_strictly(kind: str) -> None:
    with pytest.raises(ModelFileError, match=f"a_new_trick is not understood .* {kind};"):
        read_spec(nested(kind, a_new_trick=1))
    text = {**nested(kind)["text_config"], "a_new_trick": 1}
    with pytest.raises(ModelFileError, match=f"a_new_trick is not .* {OUTER[kind][0]};"):
        read_spec(nested(kind, text_config=text))
    for text in (None, [], {"model_type": "llama"}, {"model_type": []}):
        with pytest.raises(ModelFileError, match=f"text_config must be .* {OUTER[kind][0]}"):
            read_spec(nested(kind, text_config=text))
    with pytest.raises(ModelFileError, match="ForImageClassification is not supported"):
        read_spec(nested(kind, architectures=["ForImageClassification"]))


def test_a_multimodal_gemma_3_leaves_out_what_is_the_class_s_own() -> None:
    text = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6}
    text |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 9}
    _, spec = read_spec(nested("gemma3", text_config=text))
    attn = attention(spec)
    assert (attn.n_heads, attn.n_kv_heads, attn.head_dim) == (8, 4, 256)
    assert (spec.vocab_size, spec.context, spec.tied_head) == (262208, 131072, True)
