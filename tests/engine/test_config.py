"""config.json to a spec: every spelling read, everything else refused in one sentence with its key."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies import llama_configs
from engine.errors import ModelFileError
from engine.families import read_spec
from engine.families.config import HARMLESS
from engine.spec import DenseMLP, GroupedQueryAttention, LayerSpec, ModelSpec, RMSNorm, Rope
from tests.engine import tiny

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no model_type": ({"model_type": None}, "model_type must be one of gpt2, llama, .* got None"),
    "model_type a list": ({"model_type": ["llama"]}, "model_type must be one of gpt2, llama"),
    "unknown model_type": ({"model_type": "mamba"}, "'mamba' is not supported .*llama"),
    "unknown class": (
        {"architectures": ["LlamaForSequenceClassification"]},
        "LlamaForSequenceClassification is not supported.*LlamaForCausalLM",
    ),
    "architectures no list": ({"architectures": 3}, "architectures must be a list, got 3"),
    "missing": ({"hidden_size": None}, "llama model lacks hidden_size"),
    "text for a number": ({"hidden_size": "32"}, "hidden_size must be of type int, got '32'"),
    "bool for a number": ({"num_hidden_layers": True}, "num_hidden_layers must be of type int"),
    "fraction for a number": ({"vocab_size": 50.0}, "vocab_size must be of type int, got 50.0"),
    "list for a number": ({"intermediate_size": [48]}, "intermediate_size must be of type int"),
    "number for a flag": ({"attention_bias": 1}, "attention_bias must be of type bool, got 1"),
    "text for a flag": ({"tie_word_embeddings": "true"}, "tie_word_embeddings must be of type"),
    "bool for eps": ({"rms_norm_eps": True}, "rms_norm_eps must be of type float, got True"),
    "NaN eps": ({"rms_norm_eps": math.nan}, "rms_norm_eps must be a finite number, got nan"),
    "infinite eps": ({"rms_norm_eps": math.inf}, "rms_norm_eps must be a finite number"),
    "endless eps": ({"rms_norm_eps": 10**400}, "rms_norm_eps must be a finite number"),
    "negative eps": ({"rms_norm_eps": -1e-6}, "eps must be 0 or more, got -1e-06"),
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers must be between 1 and 4,096"),
    "absurd layers": ({"num_hidden_layers": 10**9}, "num_hidden_layers must be between 1 and"),
    "absurd vocabulary": ({"vocab_size": 10**12}, "vocab_size must be between .*1000000000000"),
    "absurd width": ({"intermediate_size": 10**10}, "intermediate_size must be between"),
    "absurd context": ({"max_position_embeddings": 10**30}, "max_position_embeddings must be"),
    "negative heads": ({"num_attention_heads": -4}, "num_attention_heads must be between 1"),
    "no heads": ({"num_attention_heads": 0}, "num_attention_heads must be between 1 and"),
    "heads that do not divide": (
        {"num_attention_heads": 4, "num_key_value_heads": 3},
        "4 query heads cannot share 3 key/value heads",
    ),
    "more kv heads than heads": ({"num_key_value_heads": 8}, "4 query heads cannot share 8"),
    "odd head_dim": ({"head_dim": 7}, "even head_dim, got 7"),
    "activation": ({"hidden_act": "mish"}, "hidden_act 'mish' is not supported for llama.*silu"),
    "window": ({"sliding_window": 4096}, "sliding_window is not understood for the family llama"),
    "quantised": ({"quantization_config": {"bits": 4}}, "quantization_config is not understood"),
    "two unread keys": ({"b_key": 1, "a_key": 2}, "a_key, b_key is not understood"),
    "partial rotary": (
        {"partial_rotary_factor": 0.5},
        r"partial_rotary_factor 0.5 is not supported for llama \(supported: 1.0\)",
    ),
    "interleaved rope": ({"rope_interleaved": True}, "rope_interleaved true is not supported"),
    "rope a number": ({"rope_scaling": 2.0}, "rope_scaling must be a table, got 2.0"),
    "theta 0": ({"rope_theta": 0}, "rope_theta must be positive, got 0"),
    "unknown rope_type": (
        {"rope_scaling": {"rope_type": "spiral"}},
        r"rope_type 'spiral' is not supported for llama \(supported: default, linear, dynamic, yarn",
    ),
    "rope_type a number": ({"rope_scaling": {"type": 3}}, "type must be of type str, got 3"),
    "gguf's own rope_type": ({"rope_scaling": {"rope_type": "gguf"}}, "'gguf' is not supported"),
    "divisors no numbers": (
        {"rope_scaling": {"rope_type": "gguf", "divisors": ["a"]}},
        "divisors must be a list of numbers",
    ),
    "multimodal rope": (
        {"rope_scaling": {"type": "default", "mrope_section": [2, 1, 1]}},
        "mrope_section is not understood",
    ),
    "multimodal positions": ({"use_mrope": True}, "use_mrope true is not supported for llama"),
    "longrope without divisors": (
        {"rope_scaling": {"type": "longrope", "factor": 2.0, "short_factor": [1.0] * 4}},
        "lacks long_factor",
    ),
    "longrope with too few": (
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
        "short_factor has 1 entries, not 4",
    ),
    "not causal": ({"is_causal": False}, "is_causal false is not supported for llama"),
    "bidirectional": (
        {"use_bidirectional_attention": True},
        "use_bidirectional_attention true is not supported",
    ),
    "cross-attention": ({"add_cross_attention": True}, "add_cross_attention true is not"),
    "layers of their own": ({"per_layer_config": {"0": {}}}, "per_layer_config is not understood"),
    "linear without factor": ({"rope_scaling": {"type": "linear"}}, "lacks factor"),
    "unread rope key": (
        {"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 32}},
        "rope parameters of config.json: beta_fast is not understood",
    ),
    "rope of Gemma 3": (
        {"rope_parameters": {"full_attention": {}, "sliding_attention": {}}},
        "full_attention, sliding_attention is not understood",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=list(BAD))
def test_what_is_wrong_is_refused_by_its_key(changes: dict[str, Any], message: str) -> None:
    """One sentence each, and no memory spent on a size that a file merely claims."""
    config = {**tiny.CASE, **changes}
    tracemalloc.start()
    with pytest.raises(ModelFileError, match=message) as raised:
        read_spec(config)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    sentence = str(raised.value)
    assert "\n" not in sentence
    assert len(sentence) < 300
    assert peak < 2**20


@given(
    key=st.sampled_from(sorted(tiny.CASE)),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=4,
    ),
)
def test_any_value_of_any_key_is_read_or_refused(key: str, value: Any) -> None:
    """Never a TypeError, an OverflowError or a KeyError out of a file's contents."""
    config = json.loads(json.dumps({**tiny.CASE, key: value}))
    try:
        read_spec(config)
    except ModelFileError as error:
        assert len(str(error)) < 300  # noqa: PT017


@given(value=st.dictionaries(
    st.sampled_from(["rope_type", "type", "factor", "rope_theta", "low_freq_factor", "divisors",
                     "high_freq_factor", "original_max_position_embeddings", "short_factor",
                     "long_factor", "attention_factor", "mscale", "mscale_all_dim", "other"]),
    st.none() | st.booleans() | st.integers(-2, 10**20) | st.floats() | st.lists(st.integers())
    | st.sampled_from(["default", "linear", "dynamic", "llama3", "gguf", "yarn", "longrope"]),
))  # fmt: skip
def test_any_rope_table_is_read_or_refused(value: dict[str, Any]) -> None:
    for spelling in ("rope_scaling", "rope_parameters"):
        try:
            read_spec({**tiny.CASE, spelling: value})
        except ModelFileError as error:
            assert len(str(error)) < 300  # noqa: PT017


def test_an_int_stands_for_a_float_of_the_same_value() -> None:
    """The hub's SmolLM2 has `"rope_theta": 100000`."""
    _, as_int = read_spec({**tiny.CASE, "rope_theta": 100000})
    _, as_float = read_spec({**tiny.CASE, "rope_theta": 100000.0})
    assert as_int == as_float


def test_what_is_absent_or_null_has_transformers_default() -> None:
    config = {**tiny.CASE, "num_key_value_heads": None, "head_dim": None}
    for key in ("max_position_embeddings", "rms_norm_eps", "rope_theta"):
        del config[key]
    _, spec = read_spec(config)
    attn = spec.layers[0].attn
    assert (attn.n_kv_heads, attn.head_dim, attn.rope.theta) == (4, 8, 10000.0)
    assert (spec.context, spec.final_norm.eps, spec.tied_head) == (2048, 1e-6, False)
    assert (attn.qkv_bias, attn.out_bias, spec.layers[0].mlp.bias) == (False, False, False)


@pytest.mark.parametrize(
    ("kind", "factor", "context"),
    [("dynamic", 2.5, 160), ("dynamic", 0.5, 64), ("linear", 2.5, 64)],
)
def test_a_base_that_grows_with_the_length_is_for_more_than_the_config_says(
    kind: str, factor: float, context: int
) -> None:
    """Its max_position_embeddings is where the growth begins; a linear scaling's is the stretched one."""
    rope = {"rope_type": kind, "factor": factor}
    _, spec = read_spec({**tiny.CASE, "max_position_embeddings": 64, "rope_scaling": rope})
    assert spec.context == context


def test_head_dim_of_the_file_wins_over_the_quotient() -> None:
    _, spec = read_spec({**tiny.CASE, "head_dim": 24})
    assert spec.layers[0].attn.head_dim == 24
    assert spec.layers[0].attn.scale == 24**-0.5
    assert spec.layers[0].attn.rope.dim == 24


def test_the_hub_s_smollm2_config_is_read() -> None:
    """Its own keys for other programs change nothing here."""
    extra = {
        "is_llama_config": True,
        "rope_interleaved": False,
        "rope_scaling": None,
        "pretraining_tp": 1,
        "attention_dropout": 0.0,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
        "torch_dtype": "bfloat16",
        "transformers_version": "4.42.3",
    }
    assert read_spec({**tiny.CASE, **extra})[1] == read_spec(tiny.CASE)[1]


def test_nothing_that_changes_the_forward_pass_counts_as_harmless() -> None:
    telling = ("window", "rope", "rotary", "softcap", "scale", "bias", "norm", "prun", "quant")
    assert not [key for key in HARMLESS if any(word in key for word in telling)]


@tiny.examples(50)
@given(config=llama_configs())
def test_every_generated_config_is_read(config: dict[str, Any]) -> None:
    _, spec = read_spec(config)
    assert spec.n_layers == config["num_hidden_layers"]


ROPE = Rope(8, 10000.0)
ATTN = GroupedQueryAttention(4, 2, 8, 8**-0.5, ROPE)
MLP = DenseMLP(48, bias=False)
LAYER = LayerSpec(RMSNorm(1e-6), ATTN, RMSNorm(1e-6), MLP)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModelSpec(0, 32, 64, (LAYER,), RMSNorm(0.0), False), "vocab_size must be"),
        (lambda: ModelSpec(50, -1, 64, (LAYER,), RMSNorm(0.0), False), "dim must be positive"),
        (lambda: ModelSpec(50, 32, 0, (LAYER,), RMSNorm(0.0), False), "context must be positive"),
        (lambda: ModelSpec(50, 32, 64, (), RMSNorm(0.0), False), "at least one layer"),
        (lambda: RMSNorm(math.nan), "eps must be 0 or more, got nan"),
        (lambda: DenseMLP(0, bias=False), "ffn_dim must be positive, got 0"),
        (lambda: GroupedQueryAttention(4, 0, 8, 1.0, ROPE), "positive n_heads"),
        (lambda: GroupedQueryAttention(4, 3, 8, 1.0, ROPE), "4 query heads cannot"),
    ],
)
def test_a_spec_checks_itself(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ModelFileError, match=message):
        make()
