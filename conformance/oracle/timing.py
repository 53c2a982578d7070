"""transformers as a subject of timing, in the ordinary way or in its best, and models for it to be timed on.

The ordinary way is `generate` with sdpa attention and a growing cache. The best that was found is
`generate` with a static cache and its decoding step compiled (docs/bench.md says what was tried).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as inductor
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, StaticCache
from transformers.generation.configuration_utils import CompileConfig
from transformers.generation.streamers import BaseStreamer

from conformance.bench.stages import Recorder, StageFigures, recorded, staged, text_stage, watched
from conformance.bench.timed import Ids, Timed
from conformance.bench.worker import Questions
from conformance.oracle.doors import decoder_of
from conformance.oracle.model import cache_argument
from conformance.process import Say

BUCKET = 256  # a static cache has room for a multiple of so many tokens

#: Of torch's compiler, what pays on a CPU: weights as constants, and every way to form a product tried.
ON_CPU = {"freezing": True, "max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN"}


class Reference:
    """A model of transformers; `compiled` in its best form, else in the ordinary one."""

    def __init__(
        self, path: Path, device: torch.device, dtype: torch.dtype, compiled: bool
    ) -> None:
        self.path, self.device, self.dtype = path, device, dtype
        self._best = self._compiling() if compiled else {}
        self._compiled = compiled
        self._caches: dict[tuple[int, int], StaticCache] = {}
        self.load()

    def _compiling(self) -> dict[str, Any]:
        """What `generate` is told for the best form."""
        compiling: Any = CompileConfig(fullgraph=True, dynamic=False, mode="reduce-overhead")
        if self.device.type == "cpu":
            compiling.mode = None  # a mode is a set of options itself
            compiling._compile_all_devices = True
            for option, value in ON_CPU.items():  # as options of one call they gain nothing
                setattr(inductor, option, value)
        return {"compile_config": compiling}

    def load(self) -> None:
        where = located(self.path)
        model: Any = AutoModelForCausalLM.from_pretrained(
            **where, dtype=self.dtype, local_files_only=True, attn_implementation="sdpa"
        )
        self.model = model.to(self.device).eval()
        self.model.generation_config.eos_token_id = None  # what is timed has a known length
        self.model.generation_config.pad_token_id = 0

    @cached_property
    def tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(**located(self.path), local_files_only=True)

    def answer(self, prompts: Sequence[Ids], n: int) -> list[Ids]:
        ids = self._generate(torch.tensor(list(prompts), device=self.device), n)
        return [row[len(prompts[0]) :] for row in ids.tolist()]

    def stream(self, prompt: Ids, n: int, came: Callable[[], None]) -> None:
        class Told(BaseStreamer):
            def put(self, value: Tensor) -> None:
                if value.ndim == 1:  # the prompt has an axis for its batch
                    came()

            def end(self) -> None:
                pass

        self._generate(torch.tensor([prompt], device=self.device), n, streamer=Told())

    @torch.no_grad()
    def _generate(self, ids: Tensor, n: int, **options: Any) -> Tensor:
        if self._compiled:
            options |= {
                **self._best,
                cache_argument(self.model): self._static(len(ids), ids.shape[1], n),
            }
        found: Tensor = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=n,
            do_sample=False,
            **options,
        )
        return found

    def _static(self, batch: int, length: int, n: int) -> StaticCache:
        """A cache with room for the answers, empty, and always the same one.

        Frozen graphs hold the cache they were made with: another one they would neither read nor write.
        """
        room = -(-(length + n) // BUCKET) * BUCKET
        if (batch, room) not in self._caches:
            made = StaticCache(config=self.model.config, max_cache_len=room)
            self._caches[batch, room] = made
        cache = self._caches[batch, room]
        cache.reset()
        return cache

    @torch.no_grad()
    def read(self, prompt: Ids) -> int:
        ids = torch.tensor([prompt], device=self.device)
        logits = self.model(ids, use_cache=True, logits_to_keep=1).logits
        return int(logits[0, -1].argmax())

    def speak(self, text: str) -> str:
        ids = self.tokenizer(text)["input_ids"]
        piece: str = self.tokenizer.decode(self.answer([ids], 1)[0])
        return piece

    def about(self) -> dict[str, Any]:
        return {}

    @torch.no_grad()
    def stages(self, text: str) -> dict[str, StageFigures]:
        _, load = text_stage(self.load)
        model = self.model
        ids, tokenize = text_stage(lambda: self.tokenizer(text)["input_ids"])
        _, detokenize = text_stage(lambda: self.tokenizer.decode(ids))
        layers, _ = decoder_of(model)
        batch = torch.tensor([ids], device=self.device)

        def play(recorder: Recorder) -> None:
            cache: Any = DynamicCache(config=model.config)
            kept = {cache_argument(model): cache}
            update = cache.update
            for kind, tokens in (("prompt", batch), ("step", batch[:, -1:])):
                cache.update = recorded(recorder, f"{kind}.cache", update)
                modules = {
                    "embedding": [model.get_input_embeddings()],
                    "attention": [
                        getattr(layer, "self_attn", None) or layer.attn for layer in layers
                    ],
                    "feed-forward": [layer.mlp for layer in layers],
                    "head": [model.get_output_embeddings()],
                    "whole pass": [model],
                }
                named = {f"{kind}.{stage}": seen for stage, seen in modules.items()}
                with watched(recorder, named):
                    model(tokens, **kept, use_cache=True, logits_to_keep=1)

        weights = sum(p.nbytes for p in model.parameters())
        return {
            "load": StageFigures(load.seconds, weights),
            "tokenize": tokenize,
            **staged(play, self.device, len(layers)),
            "detokenize": detokenize,
        }


def located(path: Path) -> dict[str, Any]:
    """How transformers is told of a folder or a .gguf file."""
    if path.suffix == ".gguf":
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    return {"pretrained_model_name_or_path": str(path)}


def questions(settings: dict[str, Any], say: Say) -> Questions:
    """Of a parent that times transformers."""
    if threads := settings["threads"]:
        torch.set_num_threads(threads)
    say("loading")
    device, dtype = torch.device(settings["device"]), getattr(torch, settings["dtype"])
    path, compiled = Path(settings["model"]), settings["options"]["compiled"]
    return Timed(lambda: Reference(path, device, dtype, compiled), device).questions


def unpack(gguf: Path, out: Path, dtype: str) -> None:
    """Writes the model of a .gguf file as a folder of safetensors in `dtype`, its tokenizer beside it."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        **located(gguf), dtype=getattr(torch, dtype), local_files_only=True
    )
    model.hf_quantizer, model.is_quantized = None, False  # its numbers are whole again
    del model.config.quantization_config
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(**located(gguf), local_files_only=True).save_pretrained(out)
