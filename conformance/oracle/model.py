"""transformers as a candidate: the reference seen, and re-synchronised, at the same probes as an engine.

Modules show their outputs through forward hooks. What is no module is seen through transformers' own
doors: an attention function, registered by name, that wraps the reference's own one shows q and k
after rope, the cache and the context; a torch function mode inside it shows what enters and leaves
the softmax. What a tap hands back is written into the very tensor the reference goes on with.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from conformance.candidate import Candidate, Level, Tap
from conformance.oracle.truth import Float64
from conformance.reorder import PLAIN, SOFTMAXES, Function, FunctionMode, Variant

# Where a module's output or input is a probe's value: (module below a layer, side, probe, heads).
# `heads` names the config's head count by which [B, T, heads * D] becomes [B, heads, T, D].
_LAYER_DOORS = (
    ("input_layernorm", "out", "pre_attn_norm", None),
    ("self_attn.q_proj", "out", "attn.q", "num_attention_heads"),
    ("self_attn.k_proj", "out", "attn.k", "num_key_value_heads"),
    ("self_attn.v_proj", "out", "attn.v", "num_key_value_heads"),
    ("self_attn.o_proj", "out", "attn.out", None),
    ("post_attention_layernorm", "in", "after_attn", None),
    ("post_attention_layernorm", "out", "pre_mlp_norm", None),
    ("mlp.gate_proj", "out", "mlp.gate", None),
    ("mlp.up_proj", "out", "mlp.up", None),
    ("mlp.down_proj", "in", "mlp.act", None),
    ("mlp.down_proj", "out", "mlp.down", None),
    ("", "out", "out", None),
)
_MODEL_DOORS = (
    ("model.embed_tokens", "embed"),
    ("model.norm", "final_norm"),
    ("lm_head", "logits"),
)


def load(path: Path, dtype: torch.dtype) -> Any:
    """The reference model of a folder or .gguf file, in `dtype`, on the CPU, in evaluation mode.

    float64 keeps the float32 tables of the model's definition: only numbers are widened.
    """
    narrow = torch.float32 if dtype is torch.float64 else dtype
    where = (
        {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
        if path.suffix == ".gguf"
        else {"pretrained_model_name_or_path": str(path)}
    )
    model: Any = AutoModelForCausalLM.from_pretrained(**where, dtype=narrow, local_files_only=True)
    if dtype is torch.float64:
        model = model.double()
    found = {p.dtype for p in model.parameters()}
    if found != {dtype}:
        raise RuntimeError(f"the reference was asked for {dtype} and has {found}")
    return model.eval()


class Oracle(Candidate):
    """A loaded reference model, run as `variant` says."""

    level = Level.L5

    def __init__(self, model: Any, variant: Variant = PLAIN) -> None:
        self.model = model
        self.variant = variant
        self.name = f"transformers ({variant.name})"
        self.dtype = next(model.parameters()).dtype
        self.lacks = () if variant.attention == "eager" else ("*.attn.scores", "*.attn.weights")
        self._cache_name = (
            "cache"
            if "cache" in inspect.signature(type(model).forward).parameters
            else "past_key_values"
        )

    def begin(self, capacity: int) -> None:
        self.cache = DynamicCache(config=self.model.config)
        self.length = 0

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
        widened = Float64() if self.dtype is torch.float64 else nullcontext()
        doors = _doors(self.model, tap, self.variant.attention, lead, pad)
        with torch.no_grad(), widened, self.variant.in_force(), doors:
            self.model(batch, **arguments)


@contextmanager
def _doors(model: Any, tap: Tap, attention: str, lead: int, pad: int) -> Iterator[None]:
    """Opens every door of the model to `tap` for one forward pass, and closes them again."""

    def show(probe: str, value: Tensor) -> None:
        """Shows a view of the reference's tensor, and writes back what the tap returns."""
        returned = tap(probe, value)
        if returned is not value:
            value.copy_(returned)

    def hook(probe: str, heads: int | None) -> Callable[[Tensor], None]:
        def on(value: Tensor) -> None:
            if heads is not None:
                value = value.unflatten(-1, (heads, -1)).transpose(1, 2)
            show(probe, value[..., lead:, :])

        return on

    previous = model.config._attn_implementation
    handles = []
    try:
        for path, probe in _MODEL_DOORS:
            handles.append(_watch(model.get_submodule(path), "out", hook(probe, None)))
        for i, layer in enumerate(model.model.layers):
            for path, side, probe, heads in _LAYER_DOORS:
                count = getattr(model.config, heads) if heads else None
                on = hook(f"layers.{i}.{probe}", count)
                handles.append(_watch(layer.get_submodule(path), side, on))
        model.config._attn_implementation = _attention(attention, show, lead, pad)
        yield
    finally:
        model.config._attn_implementation = previous
        for handle in handles:
            handle.remove()


def _watch(module: nn.Module, side: str, on: Callable[[Tensor], None]) -> Any:
    if side == "in":
        return module.register_forward_pre_hook(lambda _module, args: on(args[0]))

    def after(_module: nn.Module, _args: Any, output: Any) -> None:
        on(output[0] if isinstance(output, tuple) else output)

    return module.register_forward_hook(after)


def _attention(kind: str, show: Callable[[str, Tensor], None], lead: int, pad: int) -> str:
    """Registers an attention function of that kind that shows its inputs and outputs; its name.

    The next pass of the same kind registers its own in its place.
    """
    name = f"lockstep_{kind}"

    def attend(
        module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, **kwargs: Any
    ) -> tuple[Tensor, Any]:
        at, cache = f"layers.{module.layer_idx}.attn.", f"cache.layers.{module.layer_idx}."
        new = q.shape[2] - lead
        show(at + "q_rope", q[:, :, lead:])
        show(at + "k_rope", k[:, :, -new:])
        show(cache + "k", k[:, :, pad:])
        show(cache + "v", v[:, :, pad:])
        if kind == "eager":
            reference = sys.modules[type(module).__module__].eager_attention_forward
            with _Softmax(show, at, q.dtype, lead, pad):
                context, weights = reference(module, q, k, v, mask, **kwargs)
        else:
            reference = AttentionInterface()[kind]
            context, weights = reference(module, q, k, v, mask, **kwargs)
        show(at + "context", context.transpose(1, 2)[:, :, lead:])
        return context, weights

    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, AttentionMaskInterface()[kind])
    return name


class _Softmax(FunctionMode):
    """Shows what enters a softmax (masked places as -inf) and what leaves it in the run's dtype."""

    def __init__(
        self, show: Callable[[str, Tensor], None], at: str, dtype: torch.dtype, lead: int, pad: int
    ) -> None:
        super().__init__()
        self.show, self.at, self.dtype = show, at, dtype
        self.lead, self.pad = lead, pad

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func not in SOFTMAXES:
            return func(*args, **kwargs)
        scores = args[0]
        # transformers masks by adding the dtype's most negative number, not infinity.
        hidden = torch.finfo(scores.dtype).min
        scores.masked_fill_(scores <= hidden / 2, -torch.inf)
        self.show(self.at + "scores", scores[..., self.lead :, self.pad :])
        result = func(*args, **kwargs)
        weights = result.to(self.dtype)
        weights.nan_to_num_()  # rows of padding see nothing; their softmax is 0/0
        self.show(self.at + "weights", weights[..., self.lead :, self.pad :])
        return weights
