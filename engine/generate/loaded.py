"""A model that is loaded, with its tokenizer: ids in, tensors out.

It knows its weights, its end tokens and what caches it needs, and nothing of how tokens are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from engine.backends import backend as backend_named
from engine.backends import check_invariant
from engine.cache import Cache, PagedCache, Part, check_cache, make_cache, store_named
from engine.compiled import CompiledDecoder, fitting, prepare_compiling, stays
from engine.custom import check_custom
from engine.decoder import Decoder
from engine.device import DTYPES, check_device, check_dtype
from engine.errors import RequestError
from engine.families import text_config
from engine.generate.prompts import checked_ids, end_ids
from engine.generate.speculation import Drafters, Speculation, no_drafts
from engine.mask import PLAIN, Custom
from engine.memory import keep_what_is_freed
from engine.models import resolve
from engine.probe import attached
from engine.quantised import check_quantization
from engine.spec import ModelSpec
from engine.tokenizer import Tokenizer
from engine.tokenizer.formats.open import tokenizer_file
from engine.weights import Checkpoint, load_parameters, open_checkpoint

PAGED_TOKENS = 8192  # of a paged cache, unless the caller or a small context says otherwise
STEP_TOKENS = 2048  # of a pass: bounds the memory of activations, and how long decoders wait


class LoadedModel:
    """A decoder with its weights on one device in one dtype, and the tokenizer that goes with it."""

    #: The most tokens in a forward pass, of a long prompt or of several of them.
    step_tokens: int = STEP_TOKENS
    #: Makes what drafts tokens beside a cache.
    drafters: Drafters = staticmethod(no_drafts)

    def __init__(
        self,
        decoder: Decoder,
        checkpoint: Checkpoint,
        device: str,
        dtype: str,
        cache: str = "ring",
        cache_tokens: int | None = None,
        cache_dtype: str | None = None,
    ) -> None:
        self.decoder = decoder
        self.checkpoint = checkpoint
        self.device = torch.device(device)
        self.dtype = DTYPES[dtype]
        self.cache = cache
        self.cache_tokens = cache_tokens
        self.store = store_named(cache_dtype)

    @classmethod
    def load(
        cls,
        model: str | Path,
        device: str = "cpu",
        dtype: str = "float32",
        backend: str | None = None,
        progress: bool = False,
        *,
        cache: str = "ring",
        cache_tokens: int | None = None,
        cache_dtype: str | None = None,
        batch_invariant: bool = False,
        compiled: bool = False,
        quantization: str | None = None,
        custom: Custom = PLAIN,
        speculation: Speculation | None = None,
    ) -> Self:
        """Reads MODEL: a folder in Hugging Face layout, a .gguf file, or a name to fetch.

        `backend` is the attention kernel, by default the fastest that can form the model's scores.
        `cache` is where keys and values go: "contiguous" and "ring" are made for each call, and a ring
        keeps no more than the window in layers that have one; "paged" is made once, for `cache_tokens`
        tokens of all requests together, and remembers the beginnings of prompts from call to call.
        `cache_dtype` "int8" keeps whole numbers, in about a quarter of float32's memory, not exactly.
        `batch_invariant`: each request's numbers have the same bits whatever is computed beside it and
        however it is cut and cached, at a price (see `engine.invariant`). `compiled`: decoding steps are
        graphs, which take their time to make when their shape first comes, and are kept on disk;
        attention in them is by sums of products (on a GPU by sdpa or eager), whatever the backend, and a
        step that reads drafts is none (see `engine.compiled`). `quantization`: the weights of maps are whole numbers of 8 bits ("int8")
        or, by groups of 32 inputs, of 4 ("int4"), quantised while they are read (see `engine.quantised`);
        maps whose inputs are no multiple of 32 stay as they are in "int4". `custom` is an attention of
        the user's own. `speculation` (a PromptLookup or a DraftModel) has tokens drafted that are then
        read together: each is chosen from the model's own logits, as without drafts, and they come sooner
        where the drafts are good. A beam search does without.
        On a CPU the whole process keeps memory that it frees from now on (see `engine.memory`).
        Raises LockstepError with one sentence when a file, a key or the request is at fault.
        """
        check_dtype(dtype)
        check_device(device)
        check_cache(cache, cache_tokens)
        store_named(cache_dtype)
        check_quantization(quantization, batch_invariant)
        if compiled:
            prepare_compiling(batch_invariant)
        checkpoint = open_checkpoint(resolve(model, progress))
        check_custom(custom, checkpoint.spec, torch.device(device))
        kernel = backend_named(backend, checkpoint.spec, custom, device, DTYPES[dtype])
        decoder: Decoder
        if compiled:
            decoder = CompiledDecoder(checkpoint.spec, kernel, device, custom, progress)
        else:
            decoder = Decoder(checkpoint.spec, kernel, device, custom)
        decoder.eval()
        if torch.device(device).type == "cpu":
            keep_what_is_freed()
        if batch_invariant:
            check_invariant(backend)
            decoder.use_invariant()
        load_parameters(
            decoder,
            checkpoint,
            device=torch.device(device),
            dtype=DTYPES[dtype],
            progress=progress,
            quantization=quantization,
        )
        loaded = cls(decoder, checkpoint, device, dtype, cache, cache_tokens, cache_dtype)
        if speculation is not None:
            loaded.drafters = speculation.beside(loaded)
        return loaded

    @property
    def spec(self) -> ModelSpec:
        return self.decoder.spec

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.checkpoint.path)

    @cached_property
    def has_tokenizer(self) -> bool:
        """Whether there is one; a model without it takes and gives ids alone."""
        return tokenizer_file(self.checkpoint.path) is not None

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Every end token that generation_config, config or the tokenizer names."""
        checkpoint = self.checkpoint
        ids = end_ids(checkpoint.generation_config or {}, f"{checkpoint.path}, generation config")
        # A multimodal config names them outside of the text model's part, in it, or in both.
        for config in (checkpoint.config, text_config(checkpoint.config)):
            ids |= end_ids(config, f"{checkpoint.path}, config")
        return ids | frozenset(self.tokenizer.eos_ids if self.has_tokenizer else ())

    def new_cache(self, capacity: int, batch: int = 1, longest_pass: int | None = None) -> Cache:
        """Room for `batch` sequences of `capacity` tokens, allocated now; RequestError where memory is short.

        A forward pass may have up to `longest_pass` tokens of a sequence, by default all of them.
        """
        if isinstance(self.decoder, CompiledDecoder):
            with suppress(RequestError):  # then one of just that size may fit
                fitted = fitting(capacity, batch, self.spec.context)
                return self._make_cache(self.cache, *fitted, longest_pass or capacity)
        return self._make_cache(self.cache, capacity, batch, longest_pass)

    def _make_cache(self, kind: str, tokens: int, batch: int, longest_pass: int | None) -> Cache:
        return make_cache(
            kind, self.spec, tokens, batch, longest_pass, self.dtype, self.device, self.store
        )

    @cached_property
    def pages(self) -> PagedCache:
        """The paged cache that all calls share, with its counters; made when first needed."""
        tokens = self.cache_tokens or min(PAGED_TOKENS, 4 * self.spec.context)
        cache = self._make_cache("paged", tokens, 1, None)
        assert isinstance(cache, PagedCache)
        if isinstance(self.decoder, CompiledDecoder):
            stays(cache)
        return cache

    def prefill(self, ids: Sequence[int], cache: Cache) -> Tensor:
        """Runs a prompt in chunks into `cache`; the last position's logits [V]."""
        batch = torch.tensor([list(ids)], device=self.device)
        for chunk in batch.split(self.step_tokens, dim=1):
            logits = self.decoder(chunk, cache, last=1, read_as=len(ids))
        last: Tensor = logits[0, -1]
        return last

    def decode(self, token: int, cache: Cache) -> Tensor:
        """One step: the logits [V] after `token`."""
        logits: Tensor = self.decoder(torch.tensor([[token]], device=self.device), cache)
        return logits[0, -1]

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], chunk: int | None = None) -> Tensor:
        """Logits of every position, float32 [T, V] on the CPU, computed `chunk` tokens at a time."""
        ids = self._fitting(ids)
        cache = self._open(ids, chunk)
        batch = torch.tensor([ids], device=self.device)
        pieces = [
            self.decoder(piece, cache, read_as=len(ids))[0].float().cpu()
            for piece in batch.split(chunk or len(ids), 1)
        ]
        return torch.cat(pieces)

    @torch.inference_mode()
    def logits_of(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits [B, T, V] of padded prompts [B, T], 0 where the mask [B, T] is: what is padding is not read.

        On whichever side it is: the prompts are packed, and each one's positions begin with 0.
        Raises RequestError for ids or lengths that the model does not know, and masks of another shape.
        """
        if ids.ndim != 2 or ids.shape != attention_mask.shape:
            raise RequestError(
                "ids and attention mask must both be [batch, tokens], got "
                f"{list(ids.shape)} and {list(attention_mask.shape)}"
            )
        ids, real = ids.to(self.device), attention_mask.to(self.device).bool()
        prompts = [self._fitting(row[mask].tolist()) for row, mask in zip(ids, real, strict=True)]
        cache = self.new_cache(max(map(len, prompts)), len(prompts))
        parts = [Part(cache.admit(prompt, len(prompt)), len(prompt)) for prompt in prompts]
        packed = self.decoder(ids[real][None], cache, parts)[0]
        logits: Tensor = packed.new_zeros(*real.shape, packed.shape[-1])
        logits[real] = packed
        return logits

    @torch.inference_mode()
    def trace(self, ids: Sequence[int]) -> dict[str, Tensor]:
        """Every probe of one whole forward pass by its name, batch of one, on the CPU.

        `scores` and `weights` are there on the eager backend alone.
        """
        ids = self._fitting(ids)
        cache = self._open(ids, None)
        seen: dict[str, Tensor] = {}

        def keep(probe: str, value: Tensor) -> Tensor:
            seen[probe] = value.detach().cpu().clone()
            return value

        with attached(keep, ("", self.decoder), ("cache", cache)):
            self.decoder(torch.tensor([ids], device=self.device), cache)
        return seen

    def _fitting(self, ids: Sequence[int]) -> list[int]:
        """The ids, checked: known to the model, at least one, and no more than its context."""
        ids = checked_ids(ids, self.spec.vocab_size)
        if len(ids) > self.spec.context:
            raise RequestError(
                f"{len(ids)} tokens were given and the model's context is {self.spec.context}: "
                "give fewer"
            )
        return ids

    def _open(self, ids: list[int], chunk: int | None) -> Cache:
        if chunk is not None and chunk < 1:
            raise RequestError(f"a chunk must have at least 1 token, got {chunk}")
        return self.new_cache(len(ids), 1, chunk)
