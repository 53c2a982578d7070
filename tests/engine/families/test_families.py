"""Each family's config: both spellings, transformers' defaults, and every key read or called harmless."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ModelFileError
from engine.families import FAMILIES, read_spec
from engine.families.config import HARMLESS
from engine.spec import (
    DenseMLP,
    DynamicScaling,
    LatentAttention,
    LongRopeScaling,
    MoE,
    Router,
    Scale,
    YarnScaling,
)
from tests.engine import tiny
from tests.engine.families.configs import CONFIGS, attention, each_family, rope, spec_of, windows


def test_every_family_has_a_config_of_either_spelling() -> None:
    assert CONFIGS.keys() == FAMILIES.keys()


@each_family
def test_both_spellings_say_the_same_model(family: str) -> None:
    assert spec_of(family, spelling="written") == spec_of(family, spelling="hub")


@each_family
def test_an_unknown_key_is_refused_with_its_name_and_the_family_s(family: str) -> None:
    with pytest.raises(ModelFileError, match=f"a_new_trick is not understood .* {family};"):
        spec_of(family, a_new_trick=1)


def _another(key: str, value: Any) -> Any:
    """Another value of the same kind; of a list or a table, one entry of it."""
    match value:
        case bool():
            return not value
        case int() | float():
            return 0 if value == 1 else value * 2 or 1
        case "silu" | "gelu_new" | "gelu_pytorch_tanh":
            return "relu"
        case "gelu":
            return "silu"
        case str():
            return "linear" if value == "default" else "another"
        case list():
            return [_another(key, value[0]), *value[1:]] if value else [0]
        case dict():
            first = next(iter(value))
            return {**value, first: _another(first, value[first])}
    return 3


# Each stands for another key that the same file has: what layer_types came from, how many heads share
# latents, how often one reads the same number.
IMPLIED = {
    "qwen2": {"max_window_layers"},
    "qwen3": {"max_window_layers"},
    "smollm3": {"no_rope_layer_interval", "use_sliding_window", "sliding_window"},
    "qwen3_moe": {"decoder_sparse_step"},
}


@each_family
def test_every_key_that_is_read_changes_the_model_or_is_refused(family: str) -> None:
    """So no key is read for show, and none that matters hides among the harmless."""
    config = CONFIGS[family]["written"]
    harmless = HARMLESS | FAMILIES[family].ignored
    before = spec_of(family, spelling="written")
    idle = set()
    for key in config.keys() - harmless:
        try:
            after = read_spec({**config, key: _another(key, config[key])})[1]
        except ModelFileError:
            continue
        if after == before:
            idle.add(key)
    assert idle <= IMPLIED.get(family, set())


@each_family
def test_no_family_calls_a_key_harmless_that_others_read(family: str) -> None:
    """Save those that the family's own code in transformers leaves aside, whatever they say."""
    telling = ("window", "rope", "rotary", "softcap", "scale", "bias", "norm", "quant", "expert")
    left_aside = {
        "attn_logit_softcapping",
        "experts_per_token",
        "max_window_layers",
        "sliding_window_size",
        "_sliding_window_pattern",
    }
    named = {k for k in FAMILIES[family].ignored if any(word in k for word in telling)}
    assert named <= left_aside


@tiny.examples(60)
@given(data=st.data())
def test_any_value_of_any_key_is_read_or_refused(data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(sorted(CONFIGS)))
    spelling = data.draw(st.sampled_from(["written", "hub"]))
    key = data.draw(st.sampled_from(sorted(CONFIGS[family][spelling])))
    value = data.draw(st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(["rope_type", "full_attention", "x"]), inner),
        max_leaves=6,
    ))  # fmt: skip
    try:
        spec_of(family, spelling=spelling, **{key: value})
    except ModelFileError as error:
        assert len(str(error)) < 300  # noqa: PT017


# -- what transformers takes for a key that is not there -------------------------------------------


def test_mistral_has_its_first_model_s_window_unless_null_says_none() -> None:
    assert windows(spec_of("mistral", "sliding_window")) == [4096] * 4
    assert windows(spec_of("mistral", sliding_window=None)) == [None] * 4
    assert windows(spec_of("mixtral", "sliding_window")) == [None] * 4


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen3_moe"])
def test_qwen_s_window_is_off_unless_switched_on(family: str) -> None:
    assert windows(spec_of(family, use_sliding_window=False)) == [None] * 4
    assert windows(spec_of(family, "use_sliding_window")) == [None] * 4


def test_qwen_s_window_starts_at_a_layer_or_lies_where_layer_types_says() -> None:
    assert windows(spec_of("qwen2", max_window_layers=3)) == [None, None, None, 7]
    assert windows(spec_of("qwen2", max_window_layers=0)) == [7] * 4
    assert windows(spec_of("qwen2", "max_window_layers")) == [None] * 4
    types = ["sliding_attention", "full_attention", "attention", "sliding_attention"]
    assert windows(spec_of("qwen2", layer_types=types)) == [7, None, None, 7]
    assert windows(spec_of("qwen3_moe", max_window_layers=3)) == [7] * 4


def test_gemma_2_slides_in_even_layers_and_gemma_3_in_all_but_every_sixth() -> None:
    assert windows(spec_of("gemma2")) == [7, None, 7, None]
    assert windows(spec_of("gpt_oss")) == [7, None, 7, None]
    deep = spec_of("gemma3_text", "sliding_window_pattern", num_hidden_layers=12)
    assert windows(deep) == ([7] * 5 + [None]) * 2


def test_gemma_3_scales_the_rope_of_full_layers_alone() -> None:
    spec = spec_of("gemma3_text", "rope_theta rope_local_base_freq rope_scaling")
    assert [rope(spec, i).theta for i in (0, 2)] == [1e4, 1e6]
    scaled = spec_of("gemma3_text")
    assert rope(scaled, 0).scaling is None
    assert rope(scaled, 2).scaling.factor == 8.0
    with pytest.raises(ModelFileError, match="factor is not understood for the family gemma3"):
        spec_of("gemma3_text", rope_scaling={"type": "linear", "factor": 8.0})
    flat = {"rope_theta": 1e5, "rope_type": "default"}
    with pytest.raises(ModelFileError, match="rope_theta, rope_type is not understood"):
        spec_of("gemma3_text", rope_parameters=flat)


def test_gemma_3_has_a_cap_on_logits_and_none_on_scores() -> None:
    spec = spec_of("gemma3_text", attn_logit_softcapping=2.0, final_logit_softcapping=3.0)
    assert (attention(spec).softcap, spec.logit_softcap) == (None, 3.0)
    caps = spec_of("gemma2", "attn_logit_softcapping final_logit_softcapping")
    assert (attention(caps).softcap, caps.logit_softcap) == (50.0, 30.0)
    none = spec_of("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (attention(none).softcap, none.logit_softcap) == (None, None)


def test_gemma_means_the_tanh_form_by_gelu_and_its_successors_do_not() -> None:
    assert spec_of("gemma", hidden_act="gelu").layers[0].mlp.activation == "gelu_tanh"
    assert spec_of("gemma2", hidden_activation="gelu").layers[0].mlp.activation == "gelu"
    assert spec_of("gemma3_text", "hidden_activation").layers[0].mlp.activation == "gelu_tanh"


def test_phi3_s_longrope_goes_by_what_stands_beside_the_table() -> None:
    factors = {"type": "yarn", "short_factor": [1.0] * 3, "long_factor": [2.0] * 3}
    given = {"rope_scaling": {**factors, "original_max_position_embeddings": 8}}
    scaling = rope(spec_of("phi3", **given)).scaling
    assert scaling == LongRopeScaling((1.0,) * 3, (2.0,) * 3, original_context=16)
    unsaid = spec_of("phi3", "original_max_position_embeddings", **given)
    assert rope(unsaid).scaling.original_context == 4096
    # 64 positions from 16: sqrt(1 + ln 4 / ln 16)
    assert rope(spec_of("phi3")).magnitude == pytest.approx(1.5**0.5)


def test_phi3_turns_part_of_a_head() -> None:
    part = spec_of("phi3", "rope_scaling", partial_rotary_factor=0.7, head_dim=9)
    assert rope(part).dim == 6


def test_a_growing_base_and_yarn_follow_the_table() -> None:
    dynamic = spec_of("llama", rope_scaling={"type": "dynamic", "factor": 2.0})
    assert rope(dynamic).scaling == DynamicScaling(2.0, context=64)
    yarn = {"rope_type": "yarn", "original_max_position_embeddings": 16, "factor": None}
    turned = rope(spec_of("llama", rope_scaling=yarn))
    assert turned.scaling == YarnScaling(4.0, 16, beta_fast=32.0, beta_slow=1.0, truncate=True)
    assert turned.magnitude == pytest.approx(1.1386294)  # 0.1 ln 4 + 1
    told = {**yarn, "attention_factor": 0.5, "mscale": 2.0, "mscale_all_dim": 1.0}
    assert rope(spec_of("llama", rope_scaling=told)).magnitude == 0.5


def test_smollm3_leaves_rope_out_of_every_fourth_layer_or_where_told() -> None:
    """Layers without rope are those that slide, where sliding is switched on."""
    spec = spec_of("smollm3", "no_rope_layers layer_types no_rope_layer_interval")
    assert [layer.attn.rope is None for layer in spec.layers] == [False, False, False, True]
    window = {"use_sliding_window": True, "sliding_window": 5, "no_rope_layers": [1, 0, 0, 1, 7]}
    told = spec_of("smollm3", "layer_types", **window)
    assert [layer.attn.rope is None for layer in told.layers] == [False, True, True, False]
    assert windows(told) == [None, 5, 5, None]
    with pytest.raises(ModelFileError, match="no_rope_layers has 2 entries for 4 layers"):
        spec_of("smollm3", no_rope_layers=[1, 1])


def test_granite_s_factors_are_one_where_the_file_is_silent() -> None:
    silent = spec_of(
        "granite",
        "embedding_multiplier residual_multiplier attention_multiplier logits_scaling",
    )
    assert (silent.embed_scale, silent.logits_scale) == (Scale(1.0), Scale(1.0))
    assert silent.layers[0].post_attn_norm == silent.layers[0].post_mlp_norm == Scale(1.0)
    assert attention(silent).scale == 1.0
    assert spec_of("granite", logits_scaling=8.0).logits_scale == Scale(0.125)


def test_gpt2_scales_scores_by_head_and_by_layer_as_told() -> None:
    scales = [layer.attn.scale for layer in spec_of("gpt2").layers]
    assert scales == pytest.approx([6**-0.5, 6**-0.5 / 2, 6**-0.5 / 3])
    bare = spec_of("gpt2", scale_attn_weights=False, scale_attn_by_inverse_layer_idx=False)
    assert attention(bare).scale == 1.0
    assert spec_of("gpt2", n_inner=None).layers[0].mlp == DenseMLP(96, "gelu_tanh", False, True)


@pytest.mark.parametrize(
    ("changes", "experts"),
    [
        ({}, [True, False, True, True]),
        ({"mlp_only_layers": []}, [True] * 4),
        ({"mlp_only_layers": None, "decoder_sparse_step": 2}, [False, True, False, True]),
    ],
)
def test_qwen3_moe_has_dense_layers_where_told(changes: Any, experts: list[bool]) -> None:
    spec = spec_of("qwen3_moe", **changes)
    assert [isinstance(layer.mlp, MoE) for layer in spec.layers] == experts


def test_experts_are_counted_under_either_name() -> None:
    told = spec_of("qwen3_moe", "num_experts", num_local_experts=6)
    assert isinstance(told.layers[0].mlp, MoE)
    assert told.layers[0].mlp.n_experts == 6
    both = spec_of("mixtral", num_local_experts=6, num_experts=9).layers[0].mlp
    assert isinstance(both, MoE)
    assert both.n_experts == 9


def test_gpt_oss_has_an_untruncated_yarn_where_the_file_is_silent() -> None:
    spec = spec_of("gpt_oss", "rope_scaling rope_theta")
    assert rope(spec).theta == 150000.0
    assert rope(spec).scaling == YarnScaling(32.0, 4096, 32.0, 1.0, truncate=False)
    empty = spec_of("gpt_oss", "rope_scaling rope_theta", rope_parameters={})
    assert (rope(empty).theta, rope(empty).scaling) == (150000.0, None)


def test_deepseek_s_mscale_enters_the_scale_of_scores_and_the_rope() -> None:
    """(0.1 * 0.7 * ln 4 + 1) squared, and the quotient of 1.0's and 0.7's."""
    attn = spec_of("deepseek_v3").layers[0].attn
    assert isinstance(attn, LatentAttention)
    assert attn.scale == pytest.approx(15**-0.5 * 1.0970406**2)
    assert attn.rope.magnitude == pytest.approx(1.1386294 / 1.0970406)
    plain = spec_of("deepseek_v3", rope_scaling=None).layers[0].attn
    assert plain.scale == 15**-0.5
    assert attn.latent_norm.eps == 1e-6  # though rms_norm_eps is 1e-2


def test_deepseek_starts_dense_and_may_do_without_a_latent_of_queries() -> None:
    spec = spec_of("deepseek_v3", first_k_dense_replace=0, q_lora_rank=None)
    assert all(isinstance(layer.mlp, MoE) for layer in spec.layers)
    assert isinstance(spec.layers[0].attn, LatentAttention)
    assert spec.layers[0].attn.q_rank is None
    dense = spec_of("deepseek_v3", first_k_dense_replace=9)
    assert not any(isinstance(layer.mlp, MoE) for layer in dense.layers)


def test_a_router_is_as_its_family_s() -> None:
    def router(family: str, **changes: Any) -> Router:
        mlp = spec_of(family, **changes).layers[2].mlp
        assert isinstance(mlp, MoE)
        return replace(mlp.router, groups=None)

    assert router("mixtral") == Router("softmax", normalise=True)
    assert router("qwen3_moe", norm_topk_prob=False) == Router("softmax", normalise=False)
    assert router("gpt_oss") == Router("softmax", normalise=True, bias=True)
    assert router("deepseek_v3") == Router("sigmoid", True, scale=2.5, correction=True)
