"""transformers as a candidate: the innocent, which must conform to every golden at every level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from conformance.oracle.model import Oracle, forget_lengths, load
from conformance.oracle.text import Reference
from conformance.reorder import Variant


def candidates(model: Path, device: str, dtype: str) -> list[TransformersCandidate]:
    """transformers with eager attention, prompts whole, and with sdpa, prompts in chunks.

    Some models have sinks or a softcap, which sdpa does not know: those run eagerly alone.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    loaded = load(model, getattr(torch, dtype)).to(device)
    reference = _reference(model)
    if not loaded._supports_sdpa:
        return [TransformersCandidate(loaded, reference, "eager", (None, 5))]
    return [
        TransformersCandidate(loaded, reference, "eager", (None,)),
        TransformersCandidate(loaded, reference, "sdpa", (5,)),
    ]


class TransformersCandidate(Oracle):
    """Oracle shows the probes; here are the words, by the reference's own tokenizer and loop."""

    def __init__(
        self,
        model: Any,
        reference: Reference | None,
        attention: str,
        prefill: tuple[int | None, ...],
    ) -> None:
        threads = torch.get_num_threads()
        super().__init__(model, Variant(attention=attention, threads=threads))
        self.name = f"transformers ({attention})"
        self.reference = reference
        self.prefill = prefill

    def encode(self, text: str) -> list[int] | None:
        return None if self.reference is None else self.reference.encode(text).ids

    def greedy(self, ids: list[int], max_tokens: int) -> list[int]:
        return self._generate(ids, max_tokens, eos_token_id=None)

    def text(self, prompt: str, max_tokens: int) -> str | None:
        if self.reference is None:
            return None
        ends = self.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        answer = self._generate(self.reference.encode(prompt).ids, max_tokens, eos_token_id=ends)
        kept = answer[:-1] if answer and answer[-1] in ends else answer
        return self.reference.decode(kept, skip_special_tokens=True)

    @torch.inference_mode()
    def _generate(self, ids: list[int], max_tokens: int, **ends: Any) -> list[int]:
        """The tokens that transformers' own loop chooses after `ids`, without sampling."""
        self.model.set_attn_implementation(self.variant.attention)
        forget_lengths(self.model)
        prompt = torch.tensor([ids], device=self.model.device)
        answer: list[int] = self.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_tokens,
            do_sample=False,
            **ends,
        )[0, len(ids) :].tolist()
        return answer


def _reference(model: Path) -> Reference | None:
    """The model's tokenizer in the reference's hands; None where it has none."""
    if model.suffix == ".gguf":
        return Reference.of_gguf(model)
    return Reference.load(model) if (model / "tokenizer.json").is_file() else None
