"""GGUF as a checkpoint: its metadata as a config.json, its quantised tensors as floating point.

A metadata key of the model's architecture that no table knows is an error, like an unread key of a
config.json.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from engine.errors import ModelFileError
from engine.families.family import GGUFNames
from engine.files import few
from engine.gguf import GGUFFile, GGUFTensor
from engine.weights.tensors import StoredTensor

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
# Numbers decoded at once: the work copies of one block (4 MiB each) are all the memory that a load
# needs beside the model itself and the mapped pages of the file.
_BLOCK = 1 << 20


class GGUFTensors:
    """The tensors of a GGUF file, decoded to the dtype asked for."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        for tensor in file.tensors.values():
            if tensor.type_name not in _PLAIN and tensor.type_name not in _QUANTISED:
                raise ModelFileError(
                    f"{file.path}: {tensor.name} is of type {tensor.type_name}, which is not "
                    f"supported (supported: {', '.join((*_PLAIN, *_QUANTISED))})"
                )
        self.tensors: Mapping[str, StoredTensor] = {
            name: StoredTensor(tensor.shape, tensor.type_name, tensor.data.nbytes, file.path)
            for name, tensor in file.tensors.items()
        }

    def stored(self, name: str, dtype: torch.dtype, *, kept: bool) -> torch.Tensor:
        tensor = self._file.tensors[name]
        if plain := _PLAIN.get(tensor.type_name):
            mapped = torch.from_numpy(tensor.data).view(plain).view(tensor.shape)
            converted = mapped.to(dtype)
            if converted is not mapped:
                self._file.release()
            return converted
        return self._decode(tensor, dtype)

    def _decode(self, tensor: GGUFTensor, dtype: torch.dtype) -> torch.Tensor:
        """float32 is what the blocks decode to; each block is rounded to `dtype` at once."""
        width = tensor.shape[-1]
        rows = tensor.data.reshape(-1, tensor.data.shape[-1])
        decoded = torch.empty(len(rows), width, dtype=dtype)
        step = max(1, _BLOCK // width)
        for at in range(0, len(rows), step):
            block = self._file.dequantize(rows[at : at + step], tensor.type_name)
            decoded[at : at + step] = torch.from_numpy(block)
        self._file.release()
        return decoded.view(tensor.shape)


def architecture(file: GGUFFile) -> str:
    """`general.architecture`, for files that hold one whole language model."""
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise ModelFileError(f"{file.path} holds a GGUF {kind!r}, not a model")
    if file.metadata.get("split.count", 1) != 1:
        raise ModelFileError(
            f"{file.path} is one part of a split GGUF model; merge the parts first "
            "(llama-gguf-split --merge)"
        )
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ModelFileError(f"{file.path} lacks general.architecture")
    return name


# What llama.cpp cannot do without either, the first few being whole numbers.
_SIZES = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
)
_REQUIRED = (*_SIZES, "attention.layer_norm_rms_epsilon")


def config_of(file: GGUFFile, family: str, names: GGUFNames) -> dict[str, Any]:
    """The file's metadata as a config.json of the family would say it."""
    prefix = architecture(file) + "."
    given = {
        key.removeprefix(prefix): value
        for key, value in file.metadata.items()
        if key.startswith(prefix)
    }
    _check_required(file, prefix, given)
    if unread := sorted(given.keys() - names.keys.keys() - names.ignored - _ROPE_KEYS):
        raise ModelFileError(
            f"{file.path}: {few([prefix + key for key in unread])} is not understood for the family "
            f"{family}; ignoring it could give wrong results"
        )
    config: dict[str, Any] = {
        "model_type": family,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **{target: tensor in file.tensors for target, tensor in names.present.items()},
    }
    # llama.cpp's own defaults, which the family's config class in transformers does not share.
    heads = given["attention.head_count"]
    defaults = {
        "attention.head_count_kv": heads,
        "attention.key_length": given["embedding_length"] // heads,
        "rope.freq_base": 10000.0,
    }
    given = {**defaults, **given}
    origin: dict[str, str] = {}
    for key, target in names.keys.items():
        if key not in given:
            continue
        if target in config and config[target] != given[key]:
            raise ModelFileError(
                f"{file.path}: {prefix}{origin[target]} is {config[target]!r} but {prefix}{key} is "
                f"{given[key]!r}; both say {target}"
            )
        config[target], origin[target] = given[key], key
    if "vocab_size" not in config and "token_embd.weight" in file.tensors:
        config["vocab_size"] = file.tensors["token_embd.weight"].shape[0]
    if scaling := _rope_scaling(file, prefix, given):
        config["rope_scaling"] = scaling
    return {**names.implied(config), **config}


def _check_required(file: GGUFFile, prefix: str, given: Mapping[str, Any]) -> None:
    if lacking := [prefix + key for key in _REQUIRED if key not in given]:
        raise ModelFileError(f"{file.path} lacks {few(lacking)}")
    for key in _SIZES:
        if type(given[key]) is not int or given[key] < 1:
            raise ModelFileError(
                f"{file.path}: {prefix}{key} must be a whole number from 1, got {given[key]!r:.60}"
            )


# The last two only matter to YaRN and to whoever trained the model.
_ROPE_KEYS = frozenset(
    {
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scale_linear",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
    }
)


def _rope_scaling(file: GGUFFile, prefix: str, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The rope scaling, as llama.cpp reads it: a factor without a type is linear, 0 means none."""
    kind = given.get("rope.scaling.type", "linear")
    factor = given.get("rope.scaling.factor", given.get("rope.scale_linear", 0.0))
    if kind not in ("none", "linear"):
        raise ModelFileError(
            f"{file.path}: {prefix}rope.scaling.type {kind!r} is not supported "
            "(supported: none, linear)"
        )
    if not isinstance(factor, int | float) or not math.isfinite(factor) or factor < 0:
        raise ModelFileError(f"{file.path}: the rope scaling factor {factor!r} is not usable")
    linear = (
        None if kind == "none" or factor in (0, 1) else {"rope_type": "linear", "factor": factor}
    )
    divisors = file.tensors.get("rope_freqs.weight")
    if divisors is None:
        return linear
    if linear:
        raise ModelFileError(
            f"{file.path} has both rope_freqs.weight and a linear rope scaling, "
            "which is not supported"
        )
    if divisors.type_name != "F32" or len(divisors.shape) != 1:
        raise ModelFileError(
            f"{file.path}: rope_freqs.weight must be a list of F32 numbers, not "
            f"{divisors.type_name} {list(divisors.shape)}"
        )
    return {"rope_type": "gguf", "divisors": divisors.data.view("<f4").tolist()}
