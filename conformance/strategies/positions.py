"""Random rope parameters, in transformers 5's spelling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")

_THETAS = st.sampled_from([10000.0, 100.0, 500000.0])
_FACTORS = st.sampled_from([2.0, 1.5, 8.0])


def ropes(dim: int, tokens: int, kinds: Sequence[str] = KINDS) -> st.SearchStrategy[dict[str, Any]]:
    """Rope parameters that turn `dim` numbers of a head; original contexts are below `tokens`."""
    # Dynamic NTK divides by dim - 2.
    allowed = [kind for kind in kinds if kind != "dynamic" or dim > 2]
    return st.one_of(*(_rope(kind, dim, tokens) for kind in allowed))


def _rope(kind: str, dim: int, tokens: int) -> st.SearchStrategy[dict[str, Any]]:
    original = st.integers(2, tokens - 4)
    divisors = st.lists(st.sampled_from([1.0, 1.5, 4.0]), min_size=dim // 2, max_size=dim // 2)
    magnitude = st.sampled_from([1.0, 0.8, 1.3])
    needed: dict[str, dict[str, st.SearchStrategy[Any]]] = {
        "default": {},
        "linear": {"factor": _FACTORS},
        "dynamic": {"factor": _FACTORS},
        "yarn": {"factor": _FACTORS, "original_max_position_embeddings": original},
        "longrope": {
            "short_factor": divisors,
            "long_factor": divisors,
            "original_max_position_embeddings": original,
        },
        "llama3": {
            "factor": _FACTORS,
            "low_freq_factor": st.just(1.0),
            "high_freq_factor": st.sampled_from([2.0, 4.0]),
            "original_max_position_embeddings": original,
        },
    }
    optional: dict[str, dict[str, st.SearchStrategy[Any]]] = {
        "yarn": {
            # So few turns that in short contexts, too, some pairs lie on the ramp.
            "beta_fast": st.sampled_from([32.0, 1.0, 0.5]),
            "beta_slow": st.sampled_from([1.0, 0.1, 0.02]),
            "attention_factor": magnitude,
            "mscale": st.sampled_from([1.0, 0.7]),
            "mscale_all_dim": st.sampled_from([1.0, 0.5]),
            "truncate": st.booleans(),
        },
        "longrope": {"attention_factor": magnitude, "factor": _FACTORS},
    }
    return st.fixed_dictionaries(
        {"rope_type": st.just(kind), "rope_theta": _THETAS, **needed[kind]},
        optional=optional.get(kind, {}),
    )


def follows_length(config: dict[str, Any]) -> bool:
    """Whether a config's frequencies follow the number of tokens in view, so that chunks change results."""
    rope = config.get("rope_parameters") or {}
    kinds = {table["rope_type"] for table in rope.values() if isinstance(table, dict)}
    return bool({"dynamic", "longrope"} & (kinds | {rope.get("rope_type")}))
