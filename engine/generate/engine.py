"""The engine: a loaded model with its tokenizer, from a prompt to a completion.

`stream` is the one loop; `generate` collects it. Text and stopping are wrapped around a generator
of tokens, which knows neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self, overload

import torch
from torch import Tensor

from engine.backends import backend as backend_named
from engine.cache import ContiguousCache
from engine.decoder import Decoder
from engine.errors import ModelFileError, RequestError
from engine.families import text_config
from engine.generate.answer import AnswerText, Completion, Piece, TokenLogprob
from engine.generate.params import SamplingParams
from engine.generate.sample import Sampler
from engine.models import resolve
from engine.probe import attached
from engine.spec import ModelSpec
from engine.tokenizer import Tokenizer
from engine.tokenizer.formats.open import tokenizer_file
from engine.weights import Checkpoint, load_parameters, open_checkpoint

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
PREFILL_CHUNK = 512  # tokens per forward pass of a prompt: bounds the memory of activations

Prompt = str | Sequence[int]


class Engine:
    """A decoder with its weights on one device in one dtype, and the tokenizer that goes with it."""

    def __init__(self, decoder: Decoder, checkpoint: Checkpoint, device: str, dtype: str) -> None:
        self.decoder = decoder
        self.checkpoint = checkpoint
        self.device = torch.device(device)
        self.dtype = DTYPES[dtype]

    @classmethod
    def load(
        cls,
        model: str | Path,
        device: str = "cpu",
        dtype: str = "float32",
        backend: str | None = None,
        progress: bool = False,
    ) -> Self:
        """Reads MODEL: a folder in Hugging Face layout, a .gguf file, or a name to fetch.

        `backend` is the attention kernel, by default the fastest that can form the model's scores.
        Raises LockstepError with one sentence when a file, a key or the request is at fault.
        """
        check_dtype(dtype)
        check_device(device)
        checkpoint = open_checkpoint(resolve(model, progress))
        kernel = backend_named(backend, checkpoint.spec)
        decoder = Decoder(checkpoint.spec, kernel, device).eval()
        load_parameters(
            decoder, checkpoint, device=torch.device(device), dtype=DTYPES[dtype], progress=progress
        )
        return cls(decoder, checkpoint, device, dtype)

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
        ids = _end_ids(checkpoint.generation_config or {}, f"{checkpoint.path}, generation config")
        # A multimodal config names them outside of the text model's part, in it, or in both.
        for config in (checkpoint.config, text_config(checkpoint.config)):
            ids |= _end_ids(config, f"{checkpoint.path}, config")
        return ids | frozenset(self.tokenizer.eos_ids if self.has_tokenizer else ())

    def new_cache(self, capacity: int, batch: int = 1) -> ContiguousCache:
        """Room for `capacity` tokens, allocated now; raises RequestError where memory is short."""
        return ContiguousCache(
            self.spec, capacity, batch=batch, dtype=self.dtype, device=self.device
        )

    # -- text in, text out ---------------------------------------------------------------------

    @overload
    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, parse_special: bool = False
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        params: SamplingParams | None = None,
        *,
        parse_special: bool = False,
    ) -> list[Completion]: ...
    def generate(
        self, prompt: Any, params: SamplingParams | None = None, *, parse_special: bool = False
    ) -> Any:
        """A Completion of a text or of token ids; a list of prompts gives a list.

        Special tokens that a text spells out are plain text unless `parse_special` asks for them.
        Raises RequestError, before anything is computed, where any of the prompts cannot be served.
        """
        params = params or SamplingParams()
        if not _is_list_of_prompts(prompt):
            return self._complete(self.encode(prompt, parse_special), params)
        prompts = [self.encode(each, parse_special) for each in prompt]
        return [self._complete(ids, params) for ids in prompts]

    def _complete(self, ids: list[int], params: SamplingParams) -> Completion:
        pieces = list(self.stream(ids, params))
        token_ids = [t for piece in pieces for t in piece.token_ids]
        return Completion(
            text="".join(piece.text for piece in pieces),
            token_ids=token_ids,
            prompt_token_ids=ids,
            finish_reason=pieces[-1].finish_reason or "length",
            logprobs=None
            if params.logprobs is None
            else [entry for piece in pieces for entry in piece.logprobs],
            usage={
                "prompt_tokens": len(ids),
                "completion_tokens": len(token_ids),
                "total_tokens": len(ids) + len(token_ids),
            },
        )

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, parse_special: bool = False
    ) -> Iterator[Piece]:
        """One Piece per token, as soon as it is known; never half a character, never past a stop.

        What `generate` refuses is refused here at once, not when the first piece is asked for.
        """
        params = params or SamplingParams()
        ids = self.encode(prompt, parse_special)
        return self._pieces(ids, params, self._answer_text(ids, params))

    def _pieces(
        self, ids: list[int], params: SamplingParams, answer: AnswerText
    ) -> Iterator[Piece]:
        ends = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            ends |= self.eos_ids
        last = self._room(ids, params) - 1
        for n, (token, entry) in enumerate(self.tokens(ids, params)):
            ended = token in ends
            text = "" if ended else answer.push(token)
            final = ended or answer.stopped or n == last
            if final:
                text += answer.finish()  # may complete a stop string
            reason = "stop" if ended or answer.stopped else "length"
            yield Piece(
                text,
                (token,),
                reason if final else None,
                () if entry is None else (entry,),
            )
            if final:
                return

    def _answer_text(self, prompt: Sequence[int], params: SamplingParams) -> AnswerText:
        if self.has_tokenizer:
            text = self.tokenizer.stream(skip_special_tokens=True, after=prompt)
            return AnswerText(text, params.stop, params.include_stop_str_in_output)
        if params.stop:
            raise RequestError(
                f"{self.checkpoint.path} has no tokenizer, so stop strings cannot be found; "
                "use stop_token_ids"
            )
        return AnswerText(None, ())

    def encode(self, prompt: Prompt, parse_special: bool = False) -> list[int]:
        """The prompt's ids, checked: known to the model, at least one, and fewer than the context."""
        if isinstance(prompt, str):
            prompt = self.tokenizer.encode_prompt(prompt, parse_special)
        ids = self._checked(prompt)
        if len(ids) >= self.spec.context:
            raise RequestError(
                f"the prompt has {len(ids)} tokens and the model's context is {self.spec.context}: "
                "no room is left for an answer; shorten the prompt"
            )
        return ids

    # -- ids in, ids or tensors out ------------------------------------------------------------

    @torch.inference_mode()
    def tokens(
        self, ids: Sequence[int], params: SamplingParams
    ) -> Iterator[tuple[int, TokenLogprob | None]]:
        """Prefill, then decode: chosen tokens one by one, up to max_tokens or the context's end.

        At a turning point of the model's ropes the cached keys are stale: all tokens are read anew.
        """
        n_max = self._room(ids, params)
        cache = self.new_cache(len(ids) + n_max)
        sampler = Sampler(params)
        seen = list(ids)
        logits = self.prefill(seen, cache)
        for n in range(n_max):
            token = sampler(logits)
            yield token, _logprob(logits, token, params.logprobs)
            seen.append(token)
            if n + 1 < n_max:
                if len(seen) - 1 in self.spec.turning_points:
                    cache.close(cache.rooms[0])
                    logits = self.prefill(seen, cache)
                else:
                    logits = self.decode(token, cache)

    def _room(self, ids: Sequence[int], params: SamplingParams) -> int:
        """How many tokens an answer can have at most."""
        return min(params.max_tokens, self.spec.context - len(ids))

    def prefill(self, ids: Sequence[int], cache: ContiguousCache) -> Tensor:
        """Runs a prompt in chunks into `cache`; the last position's logits [V]."""
        batch = torch.tensor([list(ids)], device=self.device)
        for chunk in batch.split(PREFILL_CHUNK, dim=1):
            logits = self.decoder(chunk, cache, last_only=True, read_as=len(ids))
        last: Tensor = logits[0, -1]
        return last

    def decode(self, token: int, cache: ContiguousCache) -> Tensor:
        """One step: the logits [V] after `token`."""
        logits: Tensor = self.decoder(torch.tensor([[token]], device=self.device), cache)
        return logits[0, -1]

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], chunk: int | None = None) -> Tensor:
        """Logits of every position, float32 [T, V] on the CPU, computed `chunk` tokens at a time."""
        ids = self._checked(ids)
        cache = self._open(ids, chunk)
        batch = torch.tensor([ids], device=self.device)
        parts = [
            self.decoder(part, cache, read_as=len(ids))[0].float().cpu()
            for part in batch.split(chunk or len(ids), 1)
        ]
        return torch.cat(parts)

    @torch.inference_mode()
    def trace(self, ids: Sequence[int]) -> dict[str, Tensor]:
        """Every probe of one whole forward pass by its name, batch of one, on the CPU.

        `scores` and `weights` are there on the eager backend alone.
        """
        ids = self._checked(ids)
        cache = self._open(ids, None)
        seen: dict[str, Tensor] = {}

        def keep(probe: str, value: Tensor) -> Tensor:
            seen[probe] = value.detach().cpu().clone()
            return value

        with attached(keep, ("", self.decoder), ("cache", cache)):
            self.decoder(torch.tensor([ids], device=self.device), cache)
        return seen

    def _open(self, ids: list[int], chunk: int | None) -> ContiguousCache:
        if len(ids) > self.spec.context:
            raise RequestError(
                f"{len(ids)} tokens were given and the model's context is {self.spec.context}: "
                "give fewer"
            )
        if chunk is not None and chunk < 1:
            raise RequestError(f"a chunk must have at least 1 token, got {chunk}")
        return self.new_cache(len(ids))

    def _checked(self, ids: Any) -> list[int]:
        if not isinstance(ids, Sequence) or isinstance(ids, str | bytes):
            raise RequestError(
                f"a prompt must be a text or a list of token ids, not a {type(ids).__name__}"
            )
        if not ids:
            raise RequestError("the prompt has no tokens; give at least one")
        for token in ids:
            if type(token) is not int:
                raise RequestError(f"{token!r:.60} is no token id: ids are integers")
            if not 0 <= token < self.spec.vocab_size:
                raise RequestError(
                    f"token id {token} is unknown: the model has ids 0 to {self.spec.vocab_size - 1}"
                )
        return list(ids)


def _is_list_of_prompts(prompt: Any) -> bool:
    """A list that holds texts or lists; an empty one holds no prompts, and gives no completions."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence):
        return False
    return all(isinstance(item, Sequence) for item in prompt)


def _logprob(logits: Tensor, token: int, n: int | None) -> TokenLogprob | None:
    if n is None:
        return None
    logprobs = logits.float().log_softmax(-1)
    return TokenLogprob(token, float(logprobs[token]), _top(logprobs, min(n, len(logprobs))))


def _top(logprobs: Tensor, n: int) -> tuple[tuple[int, float], ...]:
    """The n most likely tokens in order; of equal ones the lower ids come first."""
    if n == 0:
        return ()
    # topk alone gives any of those that tie at its end; sorting the whole vocabulary is slow.
    ids = (logprobs >= logprobs.topk(n).values[-1]).nonzero()[:, 0]
    values, order = logprobs[ids].sort(descending=True, stable=True)
    return tuple(zip(ids[order][:n].tolist(), values[:n].tolist(), strict=True))


def _end_ids(config: Mapping[str, Any], where: str) -> frozenset[int]:
    value = config.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(token) is int for token in ids):
        raise ModelFileError(
            f"{where}: eos_token_id must be an id or a list of ids, got {value!r:.60}"
        )
    return frozenset(ids)


def check_dtype(dtype: str) -> None:
    """Raises RequestError unless the engine computes in `dtype`."""
    if dtype not in DTYPES:
        raise RequestError(f"no dtype {dtype!r}; there are {', '.join(DTYPES)}")


def check_device(device: str) -> None:
    """Raises RequestError unless torch can compute on `device`."""
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise RequestError(f"no device {device!r}; there are cpu and cuda") from None
    if kind not in ("cpu", "cuda"):
        raise RequestError(f"the device {device!r} is not supported; there are cpu and cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise RequestError("no CUDA device is available; use the device cpu")
    index, n = torch.device(device).index or 0, torch.cuda.device_count()
    if kind == "cuda" and index >= n:
        raise RequestError(f"there is no device {device!r}: the last one is cuda:{n - 1}")
