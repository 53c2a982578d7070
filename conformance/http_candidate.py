"""Any server with the completions of the OpenAI API: text, ids and the best log probabilities (L0 to L2).

LOCKSTEP_URL is its base, such as http://127.0.0.1:8000/v1; LOCKSTEP_API_KEY is its key, if it has one.
Ids, and log probabilities by id, are vLLM's extensions; a server without them is of level L0.
"""

from __future__ import annotations

import json
import os
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import HTTPError, Request, urlopen

import torch

from conformance.candidate import Candidate, Level, Tap, UnavailableError
from engine.errors import LockstepError
from engine.files import read_json

_IDS: dict[str, Any] = {"logprobs": 5, "return_token_ids": True, "return_tokens_as_token_ids": True}


def candidates(model: Path, device: str, dtype: str) -> list[HttpCandidate]:
    """The server, which must serve `model` in `dtype`; on which device is its own affair."""
    url = os.environ.get("LOCKSTEP_URL", "").rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise LockstepError("set LOCKSTEP_URL to a server's base, such as http://127.0.0.1:8000/v1")
    vocabulary = read_json(model / "config.json")["vocab_size"] if model.is_dir() else 0
    return [HttpCandidate(url, getattr(torch, dtype), vocabulary)]


class HttpCandidate(Candidate):
    partial = True  # what the server does not say is NaN

    def __init__(self, url: str, dtype: torch.dtype, vocabulary: int) -> None:
        self.url, self.dtype, self.vocabulary = url, dtype, vocabulary
        self.model = str(self._first("data", "models")["id"])
        self.name = f"{self.model} at {url}"
        try:
            choice = self._complete([1], 1, **_IDS)
        except _RefusedError:
            choice = {}  # no ids for a prompt, or no fields that OpenAI's own API lacks: text alone
        ranked = bool(vocabulary and _best(choice))
        self.level = Level(2 if ranked else 1 if choice.get("token_ids") else 0)

    def begin(self, capacity: int) -> None:
        self.fed: list[int] = []

    def step(self, ids: torch.Tensor, tap: Tap) -> None:
        """A server answers for the last of the tokens alone; the rows before it stay unsaid."""
        self.fed += ids.tolist()
        choice = self._complete(self.fed, 1, **_IDS)
        tap("next_id", torch.tensor([choice["token_ids"]]))
        if self.level >= Level.L2:
            said = torch.full((1, len(ids), self.vocabulary), torch.nan)
            for token, logprob in _best(choice).items():
                said[0, -1, token] = logprob
            tap("logprobs", said.to(self.dtype))

    def encode(self, text: str) -> list[int] | None:
        return self._complete(text, 1, **_IDS).get("prompt_token_ids") if self.level else None

    def greedy(self, ids: list[int], max_tokens: int) -> list[int] | None:
        wanted = {"ignore_eos": True, **_IDS}
        return self._complete(ids, max_tokens, **wanted).get("token_ids") if self.level else None

    def text(self, prompt: str, max_tokens: int) -> str:
        return str(self._complete(prompt, max_tokens)["text"])

    def _complete(self, prompt: str | list[int], max_tokens: int, **more: Any) -> dict[str, Any]:
        wanted = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        return self._first("choices", "completions", json.dumps(wanted | more).encode())

    def _first(self, key: str, what: str, body: bytes | None = None) -> dict[str, Any]:
        """The first object under `key` of what GET answers, or POST with a body."""
        url, key_of_user = f"{self.url}/{what}", os.environ.get("LOCKSTEP_API_KEY", "none")
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key_of_user}"}
        try:
            with urlopen(Request(url, body, headers), timeout=300) as answer:  # noqa: S310
                return dict(json.load(answer)[key][0])
        except HTTPError as error:
            kind = _RefusedError if error.code in (400, 404, 422) else UnavailableError
            raise kind(f"{url} answers {error.code}: {error.read(300)!r}") from None
        except (OSError, HTTPException) as error:
            raise UnavailableError(f"{url} cannot be reached, see LOCKSTEP_URL: {error}") from None
        except (ValueError, LookupError, TypeError):
            raise UnavailableError(f"{url} does not answer as the OpenAI API does") from None


class _RefusedError(UnavailableError):
    """The server understood the request and will not serve it."""


def _best(choice: dict[str, Any]) -> dict[int, float]:
    """The log probabilities of the best few first tokens by id, where the server names ids."""
    best = ((choice.get("logprobs") or {}).get("top_logprobs") or [{}])[0] or {}
    return {int(k[9:]): float(v) for k, v in best.items() if k.startswith("token_id:")}
