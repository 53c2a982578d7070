"""Whole random architectures: tiny config.json's with all that a family may vary.

A config holds what its author wrote and no more, so the family's defaults take part, too. Windows and
the original contexts of rope scalings are shorter than `tokens`, the length of the run, so a run
crosses them. Every draw shrinks to its plainest value: one layer, one head, no key that may be absent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from conformance.strategies.positions import ropes

Config = dict[str, Any]
Draw = st.DrawFn

# A row of few numbers may lie wholly in the tail of gelu, where 1 + erf cancels: kernels that are vectorised
# otherwise then differ by far more than a re-ordering of sums shows.
_FFN_DIMS = st.integers(12, 40)
_EPS = st.sampled_from([1e-2, 1e-5, 1e-6])
_FLAG = st.booleans()
_ACTIVATIONS = st.sampled_from(["silu", "gelu_pytorch_tanh", "gelu", "relu"])
_FACTORS = st.sampled_from([1.0, 0.25, 3.0, 0.7])
_SOFTCAPS = st.sampled_from([None, 2.0, 4.5])


@st.composite
def architectures(draw: Draw, family: str, tokens: int = 16) -> Config:
    """Configs of a family, without `model_type`, for runs of up to `tokens` tokens."""
    config = _FAMILIES[family](draw, tokens)
    return config | dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))


def _some(draw: Draw, **keys: st.SearchStrategy[Any]) -> Config:
    """Any of the keys, each absent or drawn."""
    return draw(st.fixed_dictionaries({}, optional=keys))


def _decoder(draw: Draw) -> Config:
    """Sizes and heads; the size of a head follows from the two until `_given_head` says it."""
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 3))
    return {
        "vocab_size": draw(st.integers(2, 40)),
        "hidden_size": heads * 2 * draw(st.integers(1, 4)),
        "intermediate_size": draw(_FFN_DIMS),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }


def _given_head(draw: Draw, multiple: bool = True) -> Config:
    """A config whose heads have a size of their own; the model's is a multiple of them or any."""
    config = _decoder(draw) | {"head_dim": 2 * draw(st.integers(1, 6))}
    return config if multiple else config | {"hidden_size": draw(st.integers(2, 24))}


def _any_head(draw: Draw) -> Config:
    return _given_head(draw) if draw(_FLAG) else _decoder(draw)


def _common(draw: Draw, config: Config, tokens: int, **more: st.SearchStrategy[Any]) -> Config:
    """What nearly all families may say besides: eps, activation, tying, rope; and `more`."""
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config | _some(
        draw,
        rms_norm_eps=_EPS,
        hidden_act=_ACTIVATIONS,
        tie_word_embeddings=_FLAG,
        max_position_embeddings=st.integers(4, 4 * tokens),
        rope_parameters=ropes(head_dim, tokens),
        **more,
    )


def _window(tokens: int) -> st.SearchStrategy[int]:
    # Of one key the reference has two opinions: its cache keeps all of them, its mask shows one.
    return st.integers(2, tokens - 4)


def _windows(tokens: int) -> st.SearchStrategy[int | None]:
    return st.none() | _window(tokens)


def _layer_types(n_layers: int) -> st.SearchStrategy[list[str]]:
    kinds = st.sampled_from(["full_attention", "sliding_attention"])
    return st.lists(kinds, min_size=n_layers, max_size=n_layers)


def _gpt2(draw: Draw, tokens: int) -> Config:
    heads = draw(st.integers(1, 4))
    return {
        "vocab_size": draw(st.integers(2, 40)),
        "n_embd": heads * draw(st.integers(2, 8)),
        "n_head": heads,
        "n_layer": draw(st.integers(1, 3)),
        "n_positions": 3 * tokens,
    } | _some(
        draw,
        n_inner=st.none() | _FFN_DIMS,
        layer_norm_epsilon=_EPS,
        activation_function=st.sampled_from(["gelu_new", "gelu", "relu", "silu"]),
        tie_word_embeddings=_FLAG,
        scale_attn_weights=_FLAG,
        scale_attn_by_inverse_layer_idx=_FLAG,
    )


def _llama(draw: Draw, tokens: int) -> Config:
    return _common(draw, _any_head(draw), tokens, attention_bias=_FLAG, mlp_bias=_FLAG)


def _mistral(draw: Draw, tokens: int) -> Config:
    head = _given_head(draw, multiple=False) if draw(_FLAG) else _decoder(draw)
    return _common(draw, head, tokens, sliding_window=_windows(tokens))


def _with_windows_from(draw: Draw, config: Config, tokens: int) -> Config:
    """Qwen's windows: switched on as a whole, from a layer on or in the layers that are listed."""
    n_layers = config["num_hidden_layers"]
    if not draw(_FLAG):
        # A window that is switched off is written all the same.
        return config | _some(draw, sliding_window=_windows(tokens), max_window_layers=st.just(0))
    return (
        config
        | {"use_sliding_window": True, "sliding_window": draw(_window(tokens))}
        | draw(
            st.one_of(
                st.fixed_dictionaries({"max_window_layers": st.integers(0, n_layers)}),
                st.fixed_dictionaries({"layer_types": _layer_types(n_layers)}),
            )
        )
    )


def _qwen2(draw: Draw, tokens: int) -> Config:
    return _with_windows_from(draw, _common(draw, _any_head(draw), tokens), tokens)


def _qwen3(draw: Draw, tokens: int) -> Config:
    head = _given_head(draw, multiple=False)
    return _with_windows_from(draw, _common(draw, head, tokens, attention_bias=_FLAG), tokens)


def _gemma(draw: Draw, tokens: int) -> Config:
    return _common(draw, _given_head(draw, multiple=False), tokens, attention_bias=_FLAG)


def _gemma2(draw: Draw, tokens: int) -> Config:
    config = _common(draw, _given_head(draw), tokens, attention_bias=_FLAG)
    if "hidden_act" in config:
        config["hidden_activation"] = config.pop("hidden_act")
    return config | _some(
        draw,
        query_pre_attn_scalar=st.integers(1, 30),
        sliding_window=_window(tokens),
        layer_types=_layer_types(config["num_hidden_layers"]),
        final_logit_softcapping=_SOFTCAPS,
        attn_logit_softcapping=_SOFTCAPS,
    )


def _gemma3_text(draw: Draw, tokens: int) -> Config:
    config = _gemma2(draw, tokens)
    config.pop("rope_parameters", None)
    if draw(_FLAG):
        rope = ropes(config["head_dim"], tokens)
        config["rope_parameters"] = {"sliding_attention": draw(rope), "full_attention": draw(rope)}
    if "layer_types" not in config:
        config |= _some(draw, sliding_window_pattern=st.integers(1, 3))
    return config


def _phi3(draw: Draw, tokens: int) -> Config:
    config = _common(draw, _decoder(draw), tokens, sliding_window=_windows(tokens))
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    turned = 2 * draw(st.integers(1, head_dim // 2))
    rope = draw(ropes(turned, tokens, ("default", "longrope")))
    original = rope.pop("original_max_position_embeddings", None)
    if original is not None:
        config["original_max_position_embeddings"] = original
    config["rope_parameters"] = rope | {"partial_rotary_factor": turned / head_dim}
    return config


def _olmo2(draw: Draw, tokens: int) -> Config:
    return _common(draw, _any_head(draw), tokens, attention_bias=_FLAG)


def _smollm3(draw: Draw, tokens: int) -> Config:
    config = _common(draw, _any_head(draw), tokens, attention_bias=_FLAG, mlp_bias=_FLAG)
    n_layers = config["num_hidden_layers"]
    config |= draw(
        st.one_of(
            st.fixed_dictionaries({}, optional={"no_rope_layer_interval": st.integers(1, 3)}),
            st.fixed_dictionaries(
                {
                    "no_rope_layers": st.lists(
                        st.integers(0, 1), min_size=n_layers, max_size=n_layers
                    )
                }
            ),
        )
    )
    if draw(_FLAG):
        window = draw(_window(tokens))
        config |= {"use_sliding_window": True, "sliding_window": window}
        config |= _some(draw, layer_types=_layer_types(n_layers))
    return config


def _granite(draw: Draw, tokens: int) -> Config:
    return _common(
        draw,
        _any_head(draw),
        tokens,
        attention_bias=_FLAG,
        mlp_bias=_FLAG,
        embedding_multiplier=_FACTORS,
        logits_scaling=_FACTORS,
        residual_multiplier=_FACTORS,
        attention_multiplier=_FACTORS,
    )


def _experts(draw: Draw, count: str) -> Config:
    n_experts = draw(st.integers(1, 6))
    return {count: n_experts, "num_experts_per_tok": draw(st.integers(1, n_experts))}


def _mixtral(draw: Draw, tokens: int) -> Config:
    config = _given_head(draw, multiple=False) | _experts(draw, "num_local_experts")
    return _common(draw, config, tokens, sliding_window=_windows(tokens))


def _qwen3_moe(draw: Draw, tokens: int) -> Config:
    config = _any_head(draw) | _experts(draw, "num_experts")
    config["moe_intermediate_size"] = draw(st.integers(1, 12))
    if draw(_FLAG):
        config |= {"use_sliding_window": True, "sliding_window": draw(_window(tokens))}
    return _common(
        draw,
        config,
        tokens,
        attention_bias=_FLAG,
        norm_topk_prob=_FLAG,
        decoder_sparse_step=st.integers(1, 2),
        mlp_only_layers=st.lists(st.integers(0, config["num_hidden_layers"] - 1), unique=True),
    )


def _gpt_oss(draw: Draw, tokens: int) -> Config:
    config = _given_head(draw, multiple=False) | _experts(draw, "num_local_experts")
    config = _common(
        draw,
        config,
        tokens,
        attention_bias=_FLAG,
        sliding_window=_window(tokens),
        layer_types=_layer_types(config["num_hidden_layers"]),
        swiglu_alpha=st.sampled_from([1.702, 1.0]),
        swiglu_limit=st.sampled_from([7.0, 1.0]),
    )
    config.pop("hidden_act", None)  # it has one activation, whatever the config says
    return config


def _deepseek_v3(draw: Draw, tokens: int) -> Config:
    config = _decoder(draw)
    turned = 2 * draw(st.integers(1, 4))
    groups = draw(st.integers(1, 3))
    kept = draw(st.integers(1, groups))
    size = draw(st.integers(2, 3))
    heads = config["num_attention_heads"]
    config |= {
        "num_key_value_heads": heads,
        "moe_intermediate_size": draw(st.integers(1, 12)),
        "n_routed_experts": groups * size,
        "n_group": groups,
        "topk_group": kept,
        "num_experts_per_tok": draw(st.integers(1, kept * size)),
        "n_shared_experts": draw(st.integers(1, 2)),
        "first_k_dense_replace": draw(st.integers(0, config["num_hidden_layers"])),
        "q_lora_rank": draw(st.none() | st.integers(2, 12)),
        "kv_lora_rank": draw(st.integers(2, 12)),
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": draw(st.integers(1, 8)),
        "v_head_dim": draw(st.integers(1, 9)),
    }
    config |= _common(
        draw,
        config | {"head_dim": turned},
        tokens,
        attention_bias=_FLAG,
        norm_topk_prob=_FLAG,
        routed_scaling_factor=_FACTORS,
        rope_interleave=_FLAG,
    )
    del config["head_dim"]
    return config


_FAMILIES: Mapping[str, Callable[[Draw, int], Config]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3_text,
    "phi3": _phi3,
    "olmo2": _olmo2,
    "smollm3": _smollm3,
    "granite": _granite,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "gpt_oss": _gpt_oss,
    "deepseek_v3": _deepseek_v3,
}

#: The families that `architectures` knows.
FAMILIES: Sequence[str] = tuple(_FAMILIES)
