"""Reads a Hugging Face config.json key by key and remembers which keys were read.

A key that no family reads and no list calls harmless is an error: a silently ignored
`sliding_window` is how engines ship wrong mathematics.
"""

from __future__ import annotations

import math
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
    _attn_implementation_autoset _model_name_or_path _name_or_path add_cross_attention architectures
    auto_map bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward
    cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype
    early_stopping encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty
    finetuning_task forced_bos_token_id forced_eos_token_id id2label initializer_range is_decoder
    is_encoder_decoder is_llama_config label2id length_penalty max_length max_sequence_length
    min_length model_type no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
    output_attentions output_hidden_states output_scores pad_token_id prefix problem_type
    remove_invalid_values repetition_penalty return_dict return_dict_in_generate
    sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss
    tie_encoder_decoder tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config
    transformers_version typical_p unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache
    """.split()
)
# The largest size that a file may ask for. What is beyond it is a damaged file, and building such a
# model would exhaust time or memory before a single tensor is compared with its parameter.
_LARGEST = {
    "num_hidden_layers": 4096,
    "vocab_size": 2**31,
    "max_position_embeddings": 2**31,
    "original_max_position_embeddings": 2**31,
}
_LARGEST_WIDTH = 2**24
_ORIGINAL_CONTEXT = "original_max_position_embeddings"


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
        # bool is a kind of int to Python, and never what a file means by a number.
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ModelFileError(
                f"config.json: {key} must be of type {kind.__name__}, got {value!r:.60}"
            )
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """A size, at least 1; a missing or null key gives `default`, or an error where there is none."""
        value: int = self._get(key, int, default)
        largest = _LARGEST.get(key, _LARGEST_WIDTH)
        if not 1 <= value <= largest:
            raise ModelFileError(
                f"config.json: {key} must be between 1 and {largest:,}, got {value!r:.60}"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value: float = self._get(key, float, default)
        try:
            if math.isfinite(value):
                return float(value)
        except OverflowError:  # a whole number of hundreds of digits
            pass
        raise ModelFileError(f"config.json: {key} must be a finite number, got {value!r:.60}")

    def flag(self, key: str, default: bool | None = None) -> bool:
        value: bool = self._get(key, bool, default)
        return value

    def one_of(self, key: str, allowed: Mapping[str, Any], default: str | None = None) -> Any:
        """The value that `allowed` has for the key's string; any other string is an error."""
        value = self._get(key, str, default)
        if value not in allowed:
            raise ModelFileError(
                f"config.json: {key} {value!r:.60} is not supported for {self.family} "
                f"(supported: {', '.join(allowed)})"
            )
        return allowed[value]

    def rope(self, head_dim: int, context: int) -> Rope:
        """The rotary embedding, in transformers 5's spelling or the hub's theta + `rope_scaling`."""
        if self.flag("rope_interleaved", False):
            raise ModelFileError(
                f"config.json: rope_interleaved true is not supported for {self.family}; "
                "convert the model to Hugging Face's half-split layout"
            )
        self.read |= {"rope_parameters", "rope_scaling", "rope_theta", _ORIGINAL_CONTEXT}
        # The order of precedence is transformers': the older name wins where both are filled.
        given = self.values.get("rope_scaling") or self.values.get("rope_parameters") or {}
        if not isinstance(given, Mapping):
            raise ModelFileError(
                f"config.json: the rope parameters must be a table, got {given!r:.60}"
            )
        # Beside the table, the theta is a default, but the original context has priority.
        values = {"rope_theta": self.values.get("rope_theta"), **given}
        if self.values.get(_ORIGINAL_CONTEXT) is not None:
            values[_ORIGINAL_CONTEXT] = self.values[_ORIGINAL_CONTEXT]
        table = Config(values, self.family)
        theta = table.number("rope_theta", 10000.0)
        spelling = "rope_type" if "rope_type" in given else "type"
        # Not a Hugging Face type: the GGUF reader writes it for `rope_freqs.weight`.
        known = {**_SCALINGS, "gguf": _divisors} if "divisors" in given else _SCALINGS
        scaling = table.one_of(spelling, known, "default")(table, context)
        table.finish(
            frozenset({"type", _ORIGINAL_CONTEXT}), where="the rope parameters of config.json"
        )
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
    table.read.add("divisors")
    divisors = table.values["divisors"]
    if not isinstance(divisors, list) or not all(type(d) is float for d in divisors):
        raise ModelFileError(f"the rope divisors must be a list of numbers, got {divisors!r:.60}")
    return FrequencyDivisors(tuple(divisors))


_SCALINGS = {"default": _unscaled, "linear": _linear, "llama3": _llama3}
