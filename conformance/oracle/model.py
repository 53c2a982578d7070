"""transformers as a candidate: the reference seen, and re-synchronised, at the same probes as an engine.

Modules show their inputs and outputs through forward hooks (see `doors`). What is no module is seen
through transformers' own doors (see `attention`), or inside a router's forward (see `routing`). What a
tap hands back is written into the very tensor the reference goes on with.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils.quantization_config import Mxfp4Config

from conformance.candidate import Candidate, Level, Tap, over_keys
from conformance.oracle import attention, routing
from conformance.oracle.attention import Show
from conformance.oracle.doors import Sizes, View, decoder_of, is_sparse, layout_of
from conformance.oracle.truth import float64
from conformance.reorder import PLAIN, Variant


def load(path: Path, dtype: torch.dtype) -> Any:
    """The reference model of a folder or .gguf file, in `dtype`, on the CPU, in evaluation mode.

    float64 keeps the float32 tables of the model's definition: only numbers are widened. A half-precision
    model keeps in float32 what its family says. MXFP4 is decoded.
    """
    narrow = torch.float32 if dtype is torch.float64 else dtype
    where: dict[str, Any] = (
        {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
        if path.suffix == ".gguf"
        else {"pretrained_model_name_or_path": str(path)}
    )
    microscaled = path.is_dir() and "quantization_config" in json.loads(
        (path / "config.json").read_text()
    )
    if microscaled:
        where["quantization_config"] = Mxfp4Config(dequantize=True)
    model: Any = AutoModelForCausalLM.from_pretrained(**where, dtype=narrow, local_files_only=True)
    if microscaled and narrow is torch.float32:
        model = model.float()  # what was decoded is bfloat16
    if dtype is torch.float64:
        model = model.double()
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")
    found = {p.dtype for p in model.parameters()}
    if not found <= {dtype, *model._get_dtype_plan(narrow).values()}:
        raise RuntimeError(f"the reference was asked for {dtype} and has {found}")
    return model.eval()


def knows_sdpa(model: Any) -> bool:
    """Whether sdpa can form the model's scores.

    The class of Gemma 2 is marked as one without, for the sake of a softcap that a config may turn off.
    """
    uncapped = getattr(model.config, "attn_logit_softcapping", 0.0) is None
    return bool(model._supports_sdpa or uncapped)


def follows_length(config: Any) -> bool:
    """Whether some rope's frequencies depend on how many tokens are in view."""
    ropes = getattr(config, "rope_parameters", None) or {}
    kinds = [rope.get("rope_type") for rope in (ropes, *ropes.values()) if isinstance(rope, dict)]
    return "dynamic" in kinds or "longrope" in kinds


def cache_argument(model: Any) -> str:
    """What this version of transformers calls the cache that a model is given."""
    known = inspect.signature(type(model).forward).parameters
    return "cache" if "cache" in known else "past_key_values"


class Oracle(Candidate):
    """A loaded reference model, run as `variant` says."""

    level = Level.L5

    def __init__(self, model: Any, variant: Variant = PLAIN) -> None:
        self.model = model
        self.variant = variant
        self.name = f"transformers ({variant.name})"
        self.lacks = () if variant.attention == "eager" else ("*.attn.scores", "*.attn.weights")
        self._cache_name = cache_argument(model)

    def begin(self, capacity: int) -> None:
        self.cache = DynamicCache()  # without a config it keeps what a window has left behind, too
        self.length = 0
        forget_lengths(self.model)

    def step(self, ids: Tensor, tap: Tap) -> None:
        pad = self.variant.pad
        lead = pad if self.length == 0 else 0  # padding columns among this step's tokens
        self.length += len(ids)
        row = torch.cat([torch.zeros(lead, dtype=torch.int64), ids])
        batch = row.expand(self.variant.batch, -1).to(self.model.device)
        arguments: dict[str, Any] = {self._cache_name: self.cache, "use_cache": True}
        if pad:
            mask = torch.ones(self.variant.batch, pad + self.length, dtype=torch.int64)
            mask[:, :pad] = 0
            positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -len(row) :]
            arguments |= {
                "attention_mask": mask.to(batch.device),
                "position_ids": positions.to(batch.device),
            }

        def show(probe: str, value: Tensor) -> None:
            view = value[..., pad if over_keys(probe) else lead :, :]
            if probe.endswith((".scores", ".weights")):
                view = view[..., pad:]
            returned = tap(probe, view)
            if returned is not view:
                view.copy_(returned)

        doors = _doors(self.model, show, self.variant, self.cache, len(row))
        with torch.no_grad(), exact(self.model), self.variant.in_force(), doors:
            self.model(batch, **arguments)


def exact(model: Any) -> AbstractContextManager[None]:
    """What a model in float64 runs in, so that it is real; nothing for one in another dtype."""
    if next(model.parameters()).dtype is not torch.float64:
        return nullcontext()
    return float64(_ropes(model) if follows_length(model.config) else [])


def forget_lengths(model: Any) -> None:
    """Puts back the frequencies of the ropes that follow the longest text a model has seen."""
    for rope in _ropes(model):
        for name, table in list(rope.named_buffers()):
            if name.endswith("original_inv_freq"):
                kind = name.removesuffix("original_inv_freq")
                rope.register_buffer(f"{kind}inv_freq", table.clone(), persistent=False)
                setattr(rope, f"{kind}max_seq_len_cached", rope.original_max_seq_len)


def _ropes(model: Any) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "original_max_seq_len")]


@contextmanager
def _doors(model: Any, show: Show, variant: Variant, cache: Any, new: int) -> Iterator[None]:
    """Opens every door of the model for one forward pass of `new` tokens, and closes them again."""
    config = model.config
    layout = layout_of(config)
    layers, final_norm = decoder_of(model)
    heads = config.num_attention_heads
    sizes = Sizes(
        batch=variant.batch,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", heads),
        kv_rank=getattr(config, "kv_lora_rank", 0),
    )
    previous = config._attn_implementation
    with ExitStack() as stack:

        def watch(module: nn.Module, side: str, on: Callable[[Any], None]) -> None:
            stack.callback(_watch(module, side, on).remove)

        watch(layers[0], "in", lambda value: show("embed", value))
        for i, layer in enumerate(layers):
            at = f"layers.{i}."
            for door in layout.doors(layer):
                module = door.module(layer)
                if module is not None:
                    watch(module, door.side, _on(show, at + door.probe, door.view, sizes))
            if is_sparse(layer):
                router = layer.get_submodule(layout.router)
                stack.enter_context(routing.watched(router, show, at + "mlp.", variant.batch))
            if sizes.kv_rank:
                watch(layer.self_attn.kv_b_proj, "in", _latents(show, i, cache, new))
        watch(final_norm, "out", lambda value: show("final_norm", value))
        watch(model, "out", lambda output: show("logits", output.logits))
        stack.callback(setattr, config, "_attn_implementation", previous)
        config._attn_implementation = attention.register(variant.attention, show, layout.rope)
        yield


def _on(show: Show, probe: str, view: View, sizes: Sizes) -> Callable[[Any], None]:
    def on(value: Any) -> None:
        show(probe, view(value[0] if isinstance(value, tuple) else value, sizes))

    return on


def _latents(show: Show, layer: int, cache: Any, new: int) -> Callable[[Tensor], None]:
    """What is cached of a latent attention, as it is about to be expanded into keys and values."""

    def on(latent: Tensor) -> None:
        turned = cache.layers[layer].values
        show(f"layers.{layer}.attn.k_rope", turned[:, :, -new:])
        show(f"cache.layers.{layer}.latent", latent)
        show(f"cache.layers.{layer}.k_rope", turned)

    return on


def _watch(module: nn.Module, side: str, on: Callable[[Any], None]) -> Any:
    if side == "in":
        return module.register_forward_pre_hook(lambda _module, args: on(args[0]))
    return module.register_forward_hook(lambda _module, _args, output: on(output))
