"""The engine: a loaded model with its tokenizer, from a prompt to a completion.

`stream` is the one loop; `generate` collects it. Text and stopping are wrapped around a generator
of tokens, which knows neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from engine.backends import backend as backend_named
from engine.cache import ContiguousCache
from engine.decoder import Decoder
from engine.errors import ModelFileError, RequestError
from engine.generate.params import SamplingParams
from engine.generate.sample import Sampler
from engine.generate.stop import StopMatcher
from engine.models import resolve
from engine.probe import attached
from engine.spec import ModelSpec
from engine.tokenizer import Tokenizer
from engine.weights import Checkpoint, load_parameters, open_checkpoint

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
PREFILL_CHUNK = 512  # tokens per forward pass of a prompt: bounds the memory of activations

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class TokenLogprob:
    """A generated token's log-probability under the model, and the most likely tokens' in order."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Piece:
    """One token's share of a streamed completion: the text it set free, which may be empty.

    `finish_reason` is None until the last piece: "stop" (an end token or stop string) or "length".
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Completion:
    """A finished generation. `token_ids` holds the end token where there was one; `text` does not."""

    text: str
    token_ids: list[int]
    prompt_token_ids: list[int]
    finish_reason: str
    logprobs: list[TokenLogprob] | None = None
    usage: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of `lockstep generate --json`."""
        return asdict(self)


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
        backend: str = "sdpa",
        progress: bool = False,
    ) -> Engine:
        """Reads MODEL: a folder in Hugging Face layout, a .gguf file, or a name to fetch.

        Raises LockstepError with one sentence when a file, a key or the request is at fault.
        """
        if dtype not in DTYPES:
            raise RequestError(f"no dtype {dtype!r}; there are {', '.join(DTYPES)}")
        _check_device(device)
        checkpoint = open_checkpoint(resolve(str(model)))
        decoder = Decoder(checkpoint.spec, backend_named(backend), device).eval()
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
    def eos_ids(self) -> frozenset[int]:
        """Every end token that generation_config, config or the tokenizer names."""
        ids = set(_as_ids((self.checkpoint.generation_config or {}).get("eos_token_id")))
        ids |= set(_as_ids(self.checkpoint.config.get("eos_token_id")))
        try:
            ids |= set(self.tokenizer.eos_ids)
        except ModelFileError:  # a model without a tokenizer still answers in ids
            pass
        return frozenset(ids)

    def new_cache(self, capacity: int, batch: int = 1) -> ContiguousCache:
        """Room for `capacity` tokens, allocated now; raises RequestError where memory is short."""
        return ContiguousCache(
            self.spec, capacity, batch=batch, dtype=self.dtype, device=self.device
        )

    # -- text in, text out ---------------------------------------------------------------------

    @overload
    def generate(self, prompt: str, params: SamplingParams | None = None) -> Completion: ...
    @overload
    def generate(
        self, prompt: Sequence[int] | Sequence[Prompt], params: SamplingParams | None = None
    ) -> Any: ...
    def generate(self, prompt: Any, params: SamplingParams | None = None) -> Any:
        """A Completion of a text or of token ids; a list of prompts gives a list."""
        if isinstance(prompt, str) or (prompt and all(isinstance(t, int) for t in prompt)):
            return self._complete(prompt, params or SamplingParams())
        return [self._complete(p, params or SamplingParams()) for p in prompt]

    def _complete(self, prompt: Prompt, params: SamplingParams) -> Completion:
        ids = self.encode(prompt)
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

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Piece]:
        """One Piece per token, as soon as it is known; never half a character, never past a stop."""
        params = params or SamplingParams()
        ids = self.encode(prompt)
        stops = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stops |= self.eos_ids
        detokenizer = self.tokenizer.stream(skip_special_tokens=True)
        matcher = StopMatcher(params.stop)
        room = self.spec.context - len(ids)
        last = min(params.max_tokens, room) - 1
        for n, (token, entry) in enumerate(self.tokens(ids, params)):
            ended, text = token in stops, ""
            if not ended:
                text, ended = matcher.push(detokenizer.push(token))
            reason = "stop" if ended else "length" if n == last else None
            if reason and not (ended and token not in stops):
                # What was held back as the possible start of a character or of a stop string.
                tail, matched = matcher.push(detokenizer.flush())
                text += tail if matched else tail + matcher.flush()
                reason = "stop" if matched else reason
            yield Piece(text, (token,), reason, () if entry is None else (entry,))
            if reason:
                return

    def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's ids, checked: known to the model, at least one, and fewer than the context."""
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        self._check_ids(ids)
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
        """Prefill, then decode: chosen tokens one by one, up to max_tokens or the context's end."""
        n_max = min(params.max_tokens, self.spec.context - len(ids))
        cache = self.new_cache(len(ids) + n_max)
        sampler = Sampler(params)
        logits = self.prefill(ids, cache)
        for n in range(n_max):
            token = sampler(logits)
            yield token, _logprob(logits, token, params.logprobs)
            if n + 1 < n_max:
                logits = self.decode(token, cache)

    def prefill(self, ids: Sequence[int], cache: ContiguousCache) -> Tensor:
        """Runs a prompt in chunks into `cache`; the last position's logits [V]."""
        batch = torch.tensor([list(ids)], device=self.device)
        for chunk in batch.split(PREFILL_CHUNK, dim=1):
            logits = self.decoder(chunk, cache, last_only=True)
        last: Tensor = logits[0, -1]
        return last

    def decode(self, token: int, cache: ContiguousCache) -> Tensor:
        """One step: the logits [V] after `token`."""
        logits: Tensor = self.decoder(torch.tensor([[token]], device=self.device), cache)
        return logits[0, -1]

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], chunk: int | None = None) -> Tensor:
        """Logits of every position, float32 [T, V] on the CPU, computed `chunk` tokens at a time."""
        cache = self._open(ids, chunk)
        batch = torch.tensor([list(ids)], device=self.device)
        parts = [
            self.decoder(part, cache)[0].float().cpu() for part in batch.split(chunk or len(ids), 1)
        ]
        return torch.cat(parts)

    @torch.inference_mode()
    def trace(self, ids: Sequence[int]) -> dict[str, Tensor]:
        """Every probe of one whole forward pass by its name, batch of one, on the CPU.

        `scores` and `weights` are there on the eager backend alone.
        """
        cache = self._open(ids, None)
        seen: dict[str, Tensor] = {}

        def keep(probe: str, value: Tensor) -> Tensor:
            seen[probe] = value.detach().cpu().clone()
            return value

        with attached(keep, ("", self.decoder), ("cache", cache)):
            self.decoder(torch.tensor([list(ids)], device=self.device), cache)
        return seen

    def _open(self, ids: Sequence[int], chunk: int | None) -> ContiguousCache:
        self._check_ids(ids)
        if len(ids) > self.spec.context:
            raise RequestError(
                f"{len(ids)} tokens were given and the model's context is {self.spec.context}"
            )
        if chunk is not None and chunk < 1:
            raise RequestError(f"a chunk must have at least 1 token, got {chunk}")
        return self.new_cache(len(ids))

    def _check_ids(self, ids: Sequence[int]) -> None:
        if not ids:
            raise RequestError("the prompt has no tokens")
        for token in ids:
            if not 0 <= token < self.spec.vocab_size:
                raise RequestError(
                    f"token id {token} is unknown: the model has ids 0 to {self.spec.vocab_size - 1}"
                )


def _logprob(logits: Tensor, token: int, n: int | None) -> TokenLogprob | None:
    if n is None:
        return None
    logprobs = logits.float().log_softmax(-1)
    top = logprobs.topk(min(n, logprobs.shape[-1]))
    pairs = tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    return TokenLogprob(token, float(logprobs[token]), pairs)


def _as_ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise RequestError(f"no device {device!r}; there are cpu and cuda") from None
    if kind not in ("cpu", "cuda"):
        raise RequestError(f"the device {device!r} is not supported; there are cpu and cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise RequestError("no CUDA device is available; use --device cpu")
