"""Runs of a model: ids to feed it, ways to cut them into steps, and tiny llama configs."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import strategies as st


def ids(vocab_size: int, min_size: int = 1, max_size: int = 24) -> st.SearchStrategy[list[int]]:
    """Token ids below `vocab_size`."""
    return st.lists(st.integers(0, vocab_size - 1), min_size=min_size, max_size=max_size)


def splits(n: int) -> st.SearchStrategy[list[int]]:
    """Every way to cut n >= 1 tokens into chunks: positive sizes that add up to n, one chunk first."""

    def sizes(cuts: list[bool]) -> list[int]:
        at = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), n]
        return [stop - start for start, stop in itertools.pairwise(at)]

    return st.lists(st.booleans(), min_size=n - 1, max_size=n - 1).map(sizes)


@st.composite
def schedules(draw: st.DrawFn, n: int) -> list[int]:
    """Steps that fill a cache with n >= 1 tokens: a prompt in any chunks, then one token at a time."""
    prompt = draw(st.integers(1, n))
    return draw(splits(prompt)) + [1] * (n - prompt)


@st.composite
def requests(draw: st.DrawFn, capacity: int, most: int = 4) -> list[list[int]]:
    """Schedules of requests that follow each other, none longer than `capacity`."""
    lengths = draw(st.lists(st.integers(1, capacity), min_size=1, max_size=most))
    return [draw(schedules(n)) for n in lengths]


@st.composite
def llama_configs(draw: st.DrawFn, context: int = 64) -> dict[str, Any]:
    """Tiny config.json's that transformers accepts: every head layout, bias, tying and rope scaling.

    The head size is derived in some and given in others; no two sizes need be equal.
    """
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 3))
    derived = 2 * draw(st.integers(1, 4))
    config: dict[str, Any] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": draw(st.integers(2, 40)),
        "hidden_size": heads * derived,
        "intermediate_size": draw(st.integers(1, 40)),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": context,
        "rms_norm_eps": draw(st.sampled_from([1e-6, 1e-5, 1e-2])),
        "attention_bias": draw(st.booleans()),
        "mlp_bias": draw(st.booleans()),
        "tie_word_embeddings": draw(st.booleans()),
        "rope_parameters": draw(_rope_parameters(context)),
    }
    if draw(st.booleans()):
        config["head_dim"] = 2 * draw(st.integers(1, 8))
    return config


def _rope_parameters(context: int) -> st.SearchStrategy[dict[str, Any]]:
    theta = st.sampled_from([100.0, 10000.0, 500000.0])
    factor = st.sampled_from([1.5, 2.0, 8.0])
    scalings: list[dict[str, Any]] = [
        {"rope_type": st.just("default")},
        {"rope_type": st.just("linear"), "factor": factor},
        {
            "rope_type": st.just("llama3"),
            "factor": factor,
            "low_freq_factor": st.just(1.0),
            "high_freq_factor": st.sampled_from([2.0, 4.0]),
            "original_max_position_embeddings": st.integers(2, context // 2),
        },
    ]
    return st.one_of(
        *(st.fixed_dictionaries({"rope_theta": theta, **scaling}) for scaling in scalings)
    )
