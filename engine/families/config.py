"""Reads a Hugging Face config.json key by key and remembers which keys were read.

A key that no family reads and no list calls harmless is an error: a silently ignored
`sliding_window` is how engines ship wrong mathematics.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from engine.errors import ModelFileError

# Keys that every config may carry and that change nothing in a decoder's forward pass: bookkeeping,
# training, generation defaults of old transformers versions, and token ids (the tokenizer and
# generation_config.json have them).
HARMLESS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash
    _experts_implementation_internal _model_name_or_path _name_or_path _num_labels architectures
    attention_dropout attn_implementation auto_map bad_words_ids begin_suppress_tokens
    bos_token_id cache_implementation chunk_size_feed_forward cross_attention_hidden_size
    decoder_start_token_id diversity_penalty do_sample dtype early_stopping
    encoder_no_repeat_ngram_size eos_token_id experts_implementation
    exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id
    gradient_checkpointing id2label initializer_range is_decoder is_llama_config label2id
    length_penalty max_length max_sequence_length min_length model_type name_or_path
    no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences
    output_attentions output_hidden_states output_router_logits output_scores pad_token_id
    prefix problem_type remove_invalid_values repetition_penalty return_dict
    return_dict_in_generate router_aux_loss_coef sep_token_id suppress_tokens
    task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class top_k
    top_p torch_dtype torchscript transformers.js_config transformers_version typical_p
    unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache use_return_dict
    """.split()
)
# Keys of which one value alone is supported: any other is another model.
ONLY: Mapping[str, Any] = {
    "add_cross_attention": False,
    "is_causal": True,
    "is_encoder_decoder": False,
    "rope_interleaved": False,
    "use_bidirectional_attention": False,
    "use_mrope": False,
}
# The largest size that a file may ask for. What is beyond it is a damaged file, and building such a
# model would exhaust time or memory before a single tensor is compared with its parameter.
LARGEST_CONTEXT = 2**31
_LARGEST = {
    "num_hidden_layers": 4096,
    "vocab_size": 2**31,
    "max_position_embeddings": LARGEST_CONTEXT,
    "original_max_position_embeddings": LARGEST_CONTEXT,
    "n_layer": 4096,
    "n_positions": LARGEST_CONTEXT,
    # A head or an expert has sizes of its own, by which these are multiplied.
    **dict.fromkeys(("n_head", "num_attention_heads", "num_key_value_heads"), 1024),
    **dict.fromkeys(
        ("n_routed_experts", "n_shared_experts", "num_experts", "num_local_experts"), 4096
    ),
}
_LARGEST_WIDTH = 2**24
# What layer_types may say, the last an older name of full attention: whether a layer has a window.
_LAYER_TYPES = {"sliding_attention": True, "full_attention": False, "attention": False}


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

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A size; a missing or null key gives `default`, or an error where there is none."""
        value: int = self._get(key, int, default)
        largest = _LARGEST.get(key, _LARGEST_WIDTH)
        if not least <= value <= largest:
            raise ModelFileError(
                f"config.json: {key} must be between {least} and {largest:,}, got {value!r:.60}"
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

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.number(key, default)
        if value <= 0:
            raise ModelFileError(f"config.json: {key} must be positive, got {value!r:.60}")
        return value

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

    def optional_integer(self, key: str, absent: int | None) -> int | None:
        """A size that null takes away: None for null, `absent` for a key that is not there."""
        if self.values.get(key, absent) is None:
            self.read.add(key)
            return None
        return self.integer(key, absent)

    def optional_number(self, key: str, absent: float | None = None) -> float | None:
        """The same of a finite number."""
        if self.values.get(key, absent) is None:
            self.read.add(key)
            return None
        return self.number(key, absent)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers, none of them endless."""
        return tuple(self._list(key, (int, float), "numbers"))

    def integers(self, key: str) -> tuple[int, ...] | None:
        """A list of whole numbers; None where the key is absent or null."""
        if self.values.get(key) is None:
            self.read.add(key)
            return None
        return tuple(self._list(key, (int,), "whole numbers"))

    def _list(self, key: str, kinds: tuple[type, ...], what: str) -> list[Any]:
        value = self._get(key, list, None)
        if all(type(entry) in kinds and abs(entry) < 2**62 for entry in value):
            return list(value)
        raise ModelFileError(f"config.json: {key} must be a list of {what}, got {value!r:.60}")

    def table(self, key: str) -> Config:
        """A table of its own keys; an absent or null one is empty."""
        self.read.add(key)
        values = self.values.get(key)
        if values is not None and not isinstance(values, Mapping):
            raise ModelFileError(f"config.json: {key} must be a table, got {values!r:.60}")
        return Config(values or {}, self.family)

    def must_be(self, key: str, only: Any) -> None:
        """Refuses every value but one; absent and null stand for it."""
        self.read.add(key)
        value = self.values.get(key)
        if value is not None and (
            value != only or isinstance(value, bool) != isinstance(only, bool)
        ):
            raise ModelFileError(
                f"config.json: {key} {json.dumps(value):.60} is not supported for {self.family} "
                f"(supported: {json.dumps(only)})"
            )

    def windows(
        self, n_layers: int, window: int | None, default: Callable[[int], bool]
    ) -> tuple[int | None, ...]:
        """Each layer's window: `window` where `layer_types`, or else `default`, says that it slides."""
        sliding = self._sliding(n_layers, default)
        if window is None and any(sliding):
            raise ModelFileError(
                f"config.json of a {self.family} model has sliding layers, but no sliding_window"
            )
        return tuple(window if slides else None for slides in sliding)

    def _sliding(self, n_layers: int, default: Callable[[int], bool]) -> tuple[bool, ...]:
        self.read.add("layer_types")
        given = self.values.get("layer_types")
        if given is None:
            return tuple(default(i) for i in range(n_layers))
        if not isinstance(given, list) or len(given) != n_layers:
            raise ModelFileError(
                f"config.json: layer_types must be a list of {n_layers}, got {given!r:.60}"
            )
        for kind in given:
            if not isinstance(kind, str) or kind not in _LAYER_TYPES:
                raise ModelFileError(
                    f"config.json: layer_types {kind!r:.60} is not supported for {self.family} "
                    "(supported: full_attention, sliding_attention)"
                )
        return tuple(_LAYER_TYPES[kind] for kind in given)

    def finish(self, ignored: frozenset[str], where: str = "config.json") -> None:
        """Raises if a key with a value was neither read nor called harmless."""
        known = self.read | ignored
        unread = sorted(k for k, v in self.values.items() if k not in known and v is not None)
        if unread:
            raise ModelFileError(
                f"{where}: {', '.join(unread)} is not understood for the family {self.family}; "
                "ignoring it could give wrong results"
            )
