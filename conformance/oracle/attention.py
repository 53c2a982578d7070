"""The inside of the reference's attention: a function of ours around its own one, registered by name.

It sees queries and keys after rope, the cache and the context. A torch function mode inside it sees what
enters and leaves the softmax; softcap, sinks and mask are the reference's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from conformance.reorder import SOFTMAXES, Function, FunctionMode

#: Shows a view of the reference's tensor, and writes into it what the tap hands back.
Show = Callable[[str, Tensor], None]


def register(kind: str, show: Show, rope: bool) -> str:
    """Registers an attention function of that kind that shows its inside; its name.

    `rope` says whether the model has one. The next pass of the same kind registers its own in its place.
    """
    name = f"lockstep_{kind}"

    def attend(
        module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **kwargs: Any
    ) -> tuple[Tensor, Any]:
        at, cache = f"layers.{module.layer_idx}.attn.", f"cache.layers.{module.layer_idx}."
        if hasattr(module, "kv_b_proj"):  # the rest was shown when its keys were expanded
            show(at + "q_rope", q[..., -module.qk_rope_head_dim :])
        else:
            if rope and getattr(module, "use_rope", True):
                show(at + "q_rope", q)
                show(at + "k_rope", k[:, :, -q.shape[2] :])
            show(cache + "k", k)
            show(cache + "v", v)
        if kind == "eager":
            reference = sys.modules[type(module).__module__].eager_attention_forward
            with _Softmax(show, at, q.dtype, sinks=hasattr(module, "sinks")):
                context, weights = reference(module, q, k, v, mask, **kwargs)
        else:
            reference = AttentionInterface()[kind]
            context, weights = reference(module, q, k, v, mask, **kwargs)
        show(at + "context", context.transpose(1, 2))
        return context, weights

    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, AttentionMaskInterface()[kind])
    return name


class _Softmax(FunctionMode):
    """Shows what enters a softmax (masked places as -inf) and what leaves it in the run's dtype.

    With `sinks` the scores are what is joined with them, and the weights what is left without them.
    """

    def __init__(self, show: Show, at: str, dtype: torch.dtype, sinks: bool) -> None:
        super().__init__()
        self.show, self.at, self.dtype, self.sinks = show, at, dtype, sinks

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.sinks and func is torch.cat:
            self._show_scores(args[0][0])
        if func not in SOFTMAXES:
            return func(*args, **kwargs)
        if not self.sinks:
            self._show_scores(args[0])
        weights = func(*args, **kwargs).to(self.dtype)
        weights.nan_to_num_()  # rows of padding see nothing; their softmax is 0/0
        self.show(self.at + "weights", weights[..., :-1] if self.sinks else weights)
        return weights

    def _show_scores(self, scores: Tensor) -> None:
        # transformers masks by adding the dtype's most negative number, not infinity.
        hidden = torch.finfo(scores.dtype).min
        scores.masked_fill_(scores <= hidden / 2, -torch.inf)
        self.show(self.at + "scores", scores)
