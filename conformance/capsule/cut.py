"""Cuts a golden down to the tokens, the layer and the heads that show a failure.

A prefix of a causal model's truth is the truth of the prefix. And in a lockstep run each operation starts
from the reference's inputs, so one layer alone is judged exactly as it was in its place: it becomes layer
0 of a model whose embedding table holds the truth of that layer's input, one row for each token.
Whether a cut still shows the failure is for a run to say; a cut that is impossible raises CutError.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from conformance.candidate import Level, layer_of
from conformance.golden import Golden, write_manifest
from conformance.verdict import behind_gaps
from engine.errors import LockstepError

_LAYER = re.compile(r"^((?:.*\.)?layers\.)(\d+)(\..+)$")
_PROJECTION = re.compile(r"\.self_attn\.([qkvo])_proj\.(weight|bias)$")
_EMBED, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_BY_HEAD = re.compile(
    r"^cache\.|\.attn\.(q|k|v|q_norm|k_norm|q_rope|k_rope|scores|weights|context)$"
)


class CutError(LockstepError):
    """A golden or a checkpoint that cannot be cut in this way."""


@dataclass(frozen=True)
class Group:
    """One key/value head with its query heads, of `of` such groups."""

    index: int
    of: int


@dataclass(frozen=True)
class Cut:
    """What is kept: the first `tokens`, the probes by their new names, one layer or all (None)."""

    tokens: int
    probes: Mapping[str, str]
    layer: int | None = None
    group: Group | None = None


def one_layer(golden: Golden, tokens: int, probe: str) -> Cut:
    """The layer of `probe` alone, up to that probe; for what follows the layers, the last one."""
    order = list(golden.manifest["probes"])
    n_layers = 1 + max((n for p in order if (n := layer_of(p)) is not None), default=-1)
    layer = layer_of(probe)
    if layer is None:
        layer = 0 if probe == "embed" else n_layers - 1
    start = "embed" if layer == 0 else f"layers.{layer - 1}.out"
    if start not in golden.trace:
        raise CutError(f"{golden.case} has no truth of the input of layer {layer}")
    kept = {start: "embed"}
    for p in order[: golden.order(probe) + 1]:
        if layer_of(p) == layer:
            kept[p] = p.replace(f"layers.{layer}.", "layers.0.", 1)
        elif layer_of(p) is None and p != "embed":
            kept[p] = p
    return Cut(tokens, kept, layer)


def one_group(golden: Golden, cut: Cut, probe: str, head: int | None) -> Cut:
    """The same with the guilty head's group alone; heads do not meet before the output projection."""
    queries, keys = f"layers.{cut.layer}.attn.q", f"layers.{cut.layer}.attn.k"
    if not _BY_HEAD.search(probe) or keys not in golden.trace:
        raise CutError(f"{probe} does not belong to one head")
    n_heads, n_kv_heads = (golden.trace[p].shape[0] for p in (queries, keys))
    if n_kv_heads == 1:
        raise CutError("there is one group of heads alone")
    per_group = golden.trace[probe].shape[0] // n_kv_heads if probe in golden.trace else n_heads
    return Cut(cut.tokens, cut.probes, cut.layer, Group((head or 0) // per_group, n_kv_heads))


def write(
    cut: Cut,
    golden: Golden,
    model: Path,
    dtype: str,
    out: Path,
    changes: Mapping[str, Any],
) -> None:
    """Writes the cut golden of `model`'s checkpoint into the empty folder `out`, for runs in `dtype`.

    `model` is read by the names of Hugging Face's layout, never through an engine. With all layers
    kept, the checkpoint is copied if it is small, else named. `changes` are put into the manifest.
    """
    for name in ("trace.safetensors", "scales.safetensors"):
        if (golden.folder / name).is_file():
            tensors = load_file(golden.folder / name)
            rows_last = name.startswith("scales")
            kept = {
                new: _slice(cut, old, tensors[old], rows_last)
                for old, new in cut.probes.items()
                if old in tensors
            }
            save_file(kept, out / name)
    _write_noise(cut, golden, dtype, out)
    checkpoint, ids = ".", golden.ids[: cut.tokens].tolist()
    if cut.layer is not None:
        _write_slice(cut, golden, model, dtype, out)
        ids = list(range(cut.tokens))
    elif model.is_dir() and _size(model) <= 1 << 19:
        for path in _checkpoint_files(model):
            shutil.copy(path, out / path.name)
    else:
        known = str(golden.manifest["checkpoint"])
        checkpoint = known if known != "." else str(model.absolute())
    names = list(cut.probes.values())
    manifest = {
        key: value
        for key, value in golden.manifest.items()
        if key not in ("text", "continuation", "files", "format")
    }
    manifest |= {
        "checkpoint": checkpoint,
        "ids": ids,
        "prompt_tokens": cut.tokens,
        "probes": names,
        "watch": names,
        "margins": golden.manifest["margins"][: cut.tokens],
    }
    if margins := golden.manifest.get("expert_margins"):
        manifest["expert_margins"] = {
            cut.probes[probe]: near[: cut.tokens]
            for probe, near in margins.items()
            if probe in cut.probes
        }
    write_manifest(out, {**manifest, **changes})


def _slice(cut: Cut, probe: str, tensor: Tensor, rows_last: bool) -> Tensor:
    """The kept tokens and heads of a trace [heads, T, ...], or of its rows' scales [heads, T]."""
    n = cut.tokens
    by_head = tensor.dim() == (2 if rows_last else 3)
    if rows_last:
        tensor = tensor[..., :n]
    elif probe.endswith((".scores", ".weights")):
        tensor = tensor[..., :n, :n]
    else:
        tensor = tensor[..., :n, :]
    if cut.group is not None and by_head:
        tensor = _of_group(tensor, cut.group)
    return tensor.contiguous().clone()


def _of_group(rows: Tensor, group: Group) -> Tensor:
    per_group = rows.shape[0] // group.of
    return rows[group.index * per_group : (group.index + 1) * per_group]


def _write_noise(cut: Cut, golden: Golden, dtype: str, out: Path) -> None:
    table = json.loads((golden.folder / "noise.json").read_text())
    if dtype not in table:
        raise CutError(f"{golden.case} has no noise for {dtype}")
    names = dict(cut.probes)
    if "logits" in names:  # what is derived from them goes with them
        names |= {"logprobs": "logprobs", "next_id": "next_id"}
    kept = {
        run: {new: rows[old] for old, new in names.items() if old in rows}
        for run, rows in table[dtype].items()
    }
    if cut.layer is None:  # what is shown without its inputs is a run, not one operation
        behind = behind_gaps(golden.probes(Level.L5), cut.probes.__contains__)
        kept["lockstep"] |= {p: rows for p, rows in kept["free"].items() if p in behind}
    (out / "noise.json").write_text(json.dumps({dtype: kept}) + "\n")


def _checkpoint_files(model: Path) -> list[Path]:
    """What a model is loaded from: a golden's own folder holds its truth as well."""
    golden_files = {"manifest.json", "noise.json", "trace.safetensors", "scales.safetensors"}
    wanted = (p for p in model.iterdir() if p.suffix in (".json", ".safetensors"))
    return [p for p in wanted if p.name not in golden_files]


def _size(model: Path) -> int:
    return sum(p.stat().st_size for p in _checkpoint_files(model))


def _write_slice(cut: Cut, golden: Golden, model: Path, dtype: str, out: Path) -> None:
    """config.json and model.safetensors of the one layer."""
    if not (model / "config.json").is_file():
        raise CutError(f"{model} is not in Hugging Face layout")
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    stored: dict[str, Tensor] = {}
    for path in _checkpoint_files(model):
        if path.suffix == ".safetensors":
            stored |= load_file(path)
    if _EMBED not in stored or "num_hidden_layers" not in config:
        raise CutError(f"{model} names its tensors or its layers otherwise")
    tensors = {}
    for name, tensor in stored.items():
        found = _LAYER.match(name)
        if found is None:
            tensors[name] = tensor
        elif int(found[2]) == cut.layer:
            tensors[f"{found[1]}0{found[3]}"] = tensor
    logits = "logits" in cut.probes
    table = _table(cut, golden, stored[_EMBED], dtype)
    vocab = len(stored[_EMBED]) if logits else cut.tokens
    if logits and (_HEAD not in stored or cut.tokens > vocab):
        raise CutError("the logits need the model's own table, or a larger one")
    tensors[_EMBED] = torch.cat((table, table.new_zeros(vocab - len(table), table.shape[1])))
    if _HEAD in stored and not logits:
        tensors[_HEAD] = stored[_HEAD][torch.arange(vocab) % len(stored[_HEAD])]
    config = _cut_config(config, cut, golden) | {"vocab_size": vocab}
    if cut.group is not None:
        tensors = {n: _heads(n, t, cut.group) for n, t in tensors.items()}
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(
        {n: t.contiguous().clone() for n, t in tensors.items()},
        out / "model.safetensors",
        metadata={"format": "pt"},
    )


def _table(cut: Cut, golden: Golden, original: Tensor, dtype: str) -> Tensor:
    """The input of the layer at each token [T, dim]: what a run in `dtype` would hand on."""
    if not cut.layer:
        return original[golden.ids[: cut.tokens]]
    truth = golden.trace[f"layers.{cut.layer - 1}.out"][: cut.tokens]
    rounded: Tensor = truth.to(getattr(torch, dtype))
    return rounded


def _cut_config(config: Mapping[str, Any], cut: Cut, golden: Golden) -> dict[str, Any]:
    """The config of the one layer: lists with an entry for each layer keep this layer's."""
    n_layers, layer = config["num_hidden_layers"], cut.layer or 0
    result = {
        key: [value[layer]] if isinstance(value, list) and len(value) == n_layers else value
        for key, value in config.items()
    }
    result |= {key: None for key in _SPECIAL_IDS if key in config}
    result["num_hidden_layers"] = 1
    if cut.group is not None:
        keys = golden.trace[f"layers.{cut.layer}.attn.k"]
        result["head_dim"] = keys.shape[-1]
        result["num_attention_heads"] = config["num_attention_heads"] // cut.group.of
        result["num_key_value_heads"] = 1
    return result


def _heads(name: str, tensor: Tensor, group: Group) -> Tensor:
    """A projection's rows, or the output projection's columns, of one group of heads."""
    found = _PROJECTION.search(name)
    if found is None or found.groups() == ("o", "bias"):
        return tensor
    if found[1] == "o":
        return _of_group(tensor.T, group).T
    return _of_group(tensor, group)
