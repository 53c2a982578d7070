"""Reads a Hugging Face config.json key by key and remembers which keys were read.

A key that no family reads and no list calls harmless is an error: a silently ignored
`sliding_window` is how engines ship wrong mathematics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import ModelFileError
from engine.spec import (
    FrequencyDivisors,
    LinearScaling,
    Llama3Scaling,
    Rope,
    RopeScaling,
)

# Keys that every config may carry and that change nothing in a decoder's forward pass: bookkeeping,
# training, generation defaults of old transformers versions, and token ids (the tokenizer and
# generation_config.json have them).
HARMLESS = frozenset(
    """
    _attn_implementation_autoset _model_name_or_path _name_or_path architectures auto_map bos_token_id
    chunk_size_feed_forward
    dtype eos_token_id id2label initializer_range is_decoder label2id model_type output_attentions
    output_hidden_states pad_token_id problem_type return_dict torch_dtype transformers_version
    unk_token_id use_cache
    """.split()
)


class Config:
    """A config.json as typed reads. `family` names the reader in messages."""

    def __init__(self, values: Mapping[str, Any], family: str) -> None:
        self.values = values
        self.family = family
        self.read: set[str] = set()

    def _get(self, key: str, kind: type, default: Any) -> Any:
        self.read.add(key)
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ModelFileError(f"config.json of a {self.family} model lacks {key}")
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ModelFileError(
                f"config.json: {key} must be of type {kind.__name__}, got {value!r}"
            )
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer; a missing or null key gives `default`, or an error where there is none."""
        value: int = self._get(key, int, default)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value: float = self._get(key, float, default)
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        value: bool = self._get(key, bool, default)
        return value

    def one_of(self, key: str, allowed: Mapping[str, Any], default: str | None = None) -> Any:
        """The value that `allowed` has for the key's string; any other string is an error."""
        value = self._get(key, str, default)
        if value not in allowed:
            raise ModelFileError(
                f"config.json: {key} {value!r} is not supported for {self.family} "
                f"(supported: {', '.join(allowed)})"
            )
        return allowed[value]

    def rope(self, head_dim: int, context: int, default_theta: float = 10000.0) -> Rope:
        """The rotary embedding, in transformers 5's spelling or the hub's theta + `rope_scaling`."""
        self.read |= {"rope_parameters", "rope_scaling", "rope_theta", _ORIGINAL_CONTEXT}
        # The order of precedence is transformers': the older name wins where both are filled.
        given = self.values.get("rope_scaling") or self.values.get("rope_parameters") or {}
        if not isinstance(given, Mapping):
            raise ModelFileError(f"config.json: the rope parameters must be a table, got {given!r}")
        outer = {k: self.values[k] for k in ("rope_theta", _ORIGINAL_CONTEXT) if k in self.values}
        table = Config({**outer, **given}, self.family)
        theta = table.number("rope_theta", default_theta)
        spelling = "rope_type" if "rope_type" in given else "type"
        scaling = table.one_of(spelling, _SCALINGS, "default")(table, context)
        table.finish(frozenset({"type", _ORIGINAL_CONTEXT}), where="the rope parameters of config.json")
        return Rope(dim=head_dim, theta=theta, scaling=scaling)

    def finish(self, ignored: frozenset[str], where: str = "config.json") -> None:
        """Raises if a key with a value was neither read nor called harmless."""
        known = self.read | ignored
        unread = sorted(k for k, v in self.values.items() if k not in known and v is not None)
        if unread:
            raise ModelFileError(
                f"{where}: {', '.join(unread)} is not understood for the family {self.family}; "
                "ignoring it could give wrong results"
            )


def _unscaled(table: Config, context: int) -> RopeScaling | None:
    return None


def _linear(table: Config, context: int) -> RopeScaling | None:
    return LinearScaling(factor=table.number("factor"))


def _llama3(table: Config, context: int) -> RopeScaling | None:
    return Llama3Scaling(
        factor=table.number("factor"),
        low_freq_factor=table.number("low_freq_factor"),
        high_freq_factor=table.number("high_freq_factor"),
        original_context=table.integer(_ORIGINAL_CONTEXT, context),
    )


def _divisors(table: Config, context: int) -> RopeScaling | None:
    # Not a Hugging Face type: the GGUF reader writes it for `rope_freqs.weight`.
    table.read.add("divisors")
    return FrequencyDivisors(tuple(table.values["divisors"]))


_ORIGINAL_CONTEXT = "original_max_position_embeddings"
_SCALINGS = {"default": _unscaled, "linear": _linear, "llama3": _llama3, "gguf": _divisors}
