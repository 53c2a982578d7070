"""Checkpoints of transformers 5 written again as the hub has them: version 4's keys, older tensor names.

Each respelling says the same model in another way; transformers itself reads all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Config = dict[str, Any]
Tensors = dict[str, Tensor]


def respell(source: Path, target: Path, names: Iterable[str]) -> None:
    """Writes the checkpoint in `source` into the new folder `target` in the respellings called `names`."""
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    for name, change in RESPELLINGS.items():
        if name in names:
            change(config, tensors)
    target.mkdir()
    (target / "config.json").write_text(json.dumps(config, indent=2))
    if "two shards" in names:
        _save_in_shards(tensors, target)
    else:
        save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


# -- config.json -----------------------------------------------------------------------------------


def _older_rope(config: Config, tensors: Tensors) -> None:
    """Bases beside the scaling, as `rope_theta` and `rope_scaling`; Gemma 3 has a local base, too."""
    rope = config.get("rope_parameters")
    if rope is None:
        return
    if local := rope.get("sliding_attention"):
        if local["rope_type"] != "default":
            return  # the older spelling has no word for it
        config["rope_local_base_freq"] = local["rope_theta"]
        rope = rope["full_attention"]
    elif config["model_type"] == "gpt_oss" and rope["rope_type"] == "default":
        return  # without a scaling it would get the family's own
    del config["rope_parameters"]
    config["rope_theta"] = rope.pop("rope_theta")
    if (partial := rope.pop("partial_rotary_factor", None)) is not None:
        config["partial_rotary_factor"] = partial
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope


def _older_rope_type(config: Config, tensors: Tensors) -> None:
    """The kind of scaling as `type`; Gemma 3 is younger than that key, and transformers ignores it there."""
    scaling = config.get("rope_scaling")
    if scaling and config["model_type"] != "gemma3_text":
        scaling["type"] = scaling.pop("rope_type")


def _torch_dtype(config: Config, tensors: Tensors) -> None:
    config["torch_dtype"] = config.pop("dtype")


def _implied_layers(config: Config, tensors: Tensors) -> None:
    """No list of layer types where the family's rule gives the same one."""
    listed, n_layers = config.get("layer_types"), config.get("num_hidden_layers", 0)
    family = config["model_type"]
    if listed is None or family not in _SLIDES:
        return
    rules = {period: _SLIDES[family](config, period) for period in range(1, n_layers + 2)}
    for period, slides in rules.items():
        if [f"{'sliding' if slides(i) else 'full'}_attention" for i in range(n_layers)] == listed:
            del config["layer_types"]
            if family == "gemma3_text":
                config.pop("_sliding_window_pattern", None)
                config["sliding_window_pattern"] = period
            return


def _every(period: int) -> Callable[[int], bool]:
    return lambda layer: (layer + 1) % period != 0


def _from_a_layer_on(config: Config, period: int) -> Callable[[int], bool]:
    return lambda i: config["use_sliding_window"] and i >= config["max_window_layers"]


_SLIDES: Mapping[str, Callable[[Config, int], Callable[[int], bool]]] = {
    "qwen2": _from_a_layer_on,
    "qwen3": _from_a_layer_on,
    "gemma2": lambda config, period: _every(2),
    "gemma3_text": lambda config, period: _every(period),
    "gpt_oss": lambda config, period: _every(2),
    "smollm3": lambda config, period: (
        lambda i: config["use_sliding_window"] and not config["no_rope_layers"][i]
    ),
}


def _hub_keys(config: Config, tensors: Tensors) -> None:
    """Keys of released files that say nothing about the forward pass, and expert counts by older names."""
    config |= {"_name_or_path": "somebody/a-model", "transformers_version": "4.38.2"}
    config |= _HUB_KEYS.get(config["model_type"], {})
    if config["model_type"] == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")


_HUB_KEYS: Mapping[str, Config] = {
    "gpt2": {"n_ctx": 64, "task_specific_params": {"text-generation": {"max_length": 50}}},
    "llama": {"pretraining_tp": 1},
    "deepseek_v3": {
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "moe_layer_freq": 1,
        "ep_size": 1,
    },
}


# -- tensors ---------------------------------------------------------------------------------------


def _fused_experts(config: Config, tensors: Tensors) -> None:
    """One tensor for all experts of a layer, as transformers 5 has them in memory."""
    found = [m for m in map(_EXPERT.match, list(tensors)) if m]
    experts = sorted({int(m["expert"]) for m in found})
    for block in sorted({m["block"] for m in found}):
        parts = {
            part: torch.stack([tensors.pop(f"{block}.experts.{e}.{part}.weight") for e in experts])
            for part in sorted({m["part"] for m in found})
        }
        gate, up, down = (
            ("w1", "w3", "w2") if "w1" in parts else ("gate_proj", "up_proj", "down_proj")
        )
        home = block.replace("block_sparse_moe", "mlp")
        tensors[f"{home}.experts.gate_up_proj"] = torch.cat([parts[gate], parts[up]], dim=1)
        tensors[f"{home}.experts.down_proj"] = parts[down]
    for name in [name for name in tensors if ".block_sparse_moe." in name]:
        tensors[name.replace("block_sparse_moe", "mlp")] = tensors.pop(name)


_EXPERT = re.compile(r"(?P<block>.*)\.experts\.(?P<expert>\d+)\.(?P<part>\w+)\.weight$")


def _no_prefix(config: Config, tensors: Tensors) -> None:
    """GPT-2 as it was first released: the bare model, its masks among the tensors."""
    if config["model_type"] != "gpt2":
        return
    for name in list(tensors):
        tensors[name.removeprefix("transformer.")] = tensors.pop(name)
    for layer in range(config["n_layer"]):
        mask = torch.ones(config["n_positions"], config["n_positions"]).tril()
        tensors[f"h.{layer}.attn.bias"] = mask[None, None]
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)


def _head_twice(config: Config, tensors: Tensors) -> None:
    """A tied head that is stored all the same."""
    embedding = tensors.get("model.embed_tokens.weight")
    if config.get("tie_word_embeddings") and embedding is not None:
        tensors["lm_head.weight"] = embedding.clone()


def _frequencies(config: Config, tensors: Tensors) -> None:
    """Llama's frequencies among the tensors, as before transformers 4.30."""
    if config["model_type"] == "llama":
        for layer in range(config["num_hidden_layers"]):
            name = f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"
            tensors[name] = torch.ones(config["head_dim"] // 2)


def _save_in_shards(tensors: Tensors, target: Path) -> None:
    names = sorted(tensors)
    placed: dict[str, str] = {}
    for number, some in enumerate((names[::2], names[1::2]), 1):
        shard = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in some}, target / shard, {"format": "pt"})
        placed |= dict.fromkeys(some, shard)
    index = {"metadata": {}, "weight_map": placed}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))


#: By name, in the order in which they can be combined.
RESPELLINGS: Mapping[str, Callable[[Config, Tensors], None]] = {
    "rope_theta and rope_scaling": _older_rope,
    "type of rope": _older_rope_type,
    "torch_dtype": _torch_dtype,
    "implied layer types": _implied_layers,
    "keys of the hub": _hub_keys,
    "fused experts": _fused_experts,
    "no prefix": _no_prefix,
    "tied head twice": _head_twice,
    "frequencies": _frequencies,
    "two shards": lambda config, tensors: None,
}
