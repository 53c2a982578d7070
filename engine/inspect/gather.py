"""A prompt followed from text to text: everything that an inspection shows, as one JSON-able document.

The prompt is read and answered once by a decoder that is watched, one pass after the other as the engine
does it; then once under a recorder of operations, and once more by the clock. The weights are shared, the
hooks are not: requests that run meanwhile are not seen, and see nothing of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from engine.backends import BACKENDS
from engine.cache import Cache
from engine.decoder import Decoder
from engine.errors import RequestError
from engine.generate.engine import Engine
from engine.generate.params import SamplingParams
from engine.generate.processors import History
from engine.generate.prompts import Prompt
from engine.generate.request import Request
from engine.inspect import caches
from engine.inspect.attention import HeadMaps, block_size
from engine.inspect.choices import candidates, lens
from engine.inspect.formulas import CALLS, formulas
from engine.inspect.operations import Operations, document, place
from engine.inspect.stages import caches_of, prefill, stage_of, stages_of, timed
from engine.inspect.twin import kernel, told, twin
from engine.inspect.words import Streamed, prompt_words, spellings
from engine.probe import attached

FORMAT = 1  # of the document


def inspected(
    engine: Engine,
    prompt: Prompt,
    params: SamplingParams | None = None,
    *,
    parse_special: bool = False,
) -> dict[str, Any]:
    """The document of a prompt, a text or ids, and its answer.

    Raises RequestError for several answers, a beam search and a structure, and for what `generate` refuses.
    """
    params = SamplingParams() if params is None else params
    _check(params)
    request = engine.request(prompt, params, parse_special)
    followed = Followed(engine, request)
    with torch.inference_mode():
        followed.run()
    passes, most = _operations(engine, followed)
    words = _prompt(engine, prompt, request, parse_special)
    model = _model(engine)
    spec = replace(engine.spec, tied_head=model["tied"])
    answer = [row["id"] for row in followed.streamed.rows]
    return {
        "format": FORMAT,
        "model": model,
        "params": {
            name: value for name, value in asdict(params).items() if value not in (None, (), {})
        },
        "prompt": words,
        "answer": followed.streamed.rows,
        "operations": {"passes": passes, "formulas": formulas(spec), "calls": CALLS},
        "attention": followed.attention(),
        "cache": _cache(engine, followed, len(answer)),
        "choices": followed.choices,
        "time": _time(engine, prompt, request, followed, most, parse_special),
        "spellings": _spellings(engine, followed, words),
    }


def _check(params: SamplingParams) -> None:
    if params.answers > 1 or params.beams is not None:
        raise RequestError("one answer is inspected: leave out n, best_of and beams")
    if params.structured is not None:
        raise RequestError("an answer is inspected as the model gives it: leave out the structure")


class Followed:
    """A request's passes under watch: maps of attention, choices, and the answer as it was streamed."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self.engine, self.request = engine, request
        self.decoder = twin(engine.decoder, BACKENDS["eager"].attend, str(engine.device))
        tokens = len(request.prompt) + request.limit - 1
        heads = sum(layer.attn.n_heads for layer in engine.spec.layers)
        self.width = block_size(tokens, heads)
        self.maps = [
            HeadMaps(layer.attn.n_heads, tokens, self.width, layer.attn.window, layer.attn.sinks)
            for layer in engine.spec.layers
        ]
        text = engine.tokenizer.stream(True, after=request.prompt) if engine.has_tokenizer else None
        self.streamed = Streamed(text)
        self.choices: list[dict[str, Any]] = []
        self.cache = engine.new_cache(request.longest, 1, engine.step_tokens)
        self._stream: dict[int, Tensor] = {}

    def run(self) -> None:
        """Reads the prompt and takes one token after the other, as the engine would."""
        request = self.request
        with attached(self._see, ("", self.decoder)):
            logits = prefill(self.decoder, request.prompt, self.cache, self.engine.step_tokens)
        while True:
            self._choose(logits)
            if request.done:
                break
            with attached(self._see, ("", self.decoder)):
                ids = torch.tensor([request.tokens[-1:]], device=self.engine.device)
                logits = self.decoder(ids, self.cache)[0, -1]

    def _see(self, probe: str, value: Tensor) -> Tensor:
        layer, inner = place(probe)
        if inner == "attn.weights" and layer is not None:
            self.maps[layer].add(value[0])
        elif inner == "embed":
            self._stream[0] = value[0, -1]
        elif inner == "out" and layer is not None:
            self._stream[layer + 1] = value[0, -1]
        return value

    def _choose(self, logits: Tensor) -> None:
        request = self.request
        answer = request.tokens[len(request.prompt) :]
        seen = History(request.prompt, answer, request.ends, request.limit)
        piece = request.choose(logits)
        (token,) = piece.token_ids
        stream = torch.stack([self._stream[n] for n in range(len(self.maps) + 1)])
        self.choices.append(
            {
                "chosen": token,
                "drawn": request.params.temperature > 0,
                **candidates(logits, request.params, seen),
                "lens": lens(self.decoder, stream, token),
            }
        )
        self.streamed.push(piece, token in request.ends)

    def attention(self) -> dict[str, Any]:
        return {
            "rows": self.maps[0].rows,
            "width": self.width,
            "layers": [each.document() for each in self.maps],
        }


def _parameters(engine: Engine) -> dict[str, dict[str, int]]:
    """By stage, how many there are and in how many bytes; quantised weights are buffers."""
    parts: dict[str, dict[str, int]] = defaultdict(lambda: {"numbers": 0, "bytes": 0})
    for name, tensor in chain(engine.decoder.named_parameters(), engine.decoder.named_buffers()):
        part = parts[stage_of(name)]
        part["numbers"] += tensor.numel()
        part["bytes"] += tensor.nbytes
    return dict(parts)


def _model(engine: Engine) -> dict[str, Any]:
    spec, parameters = engine.spec, _parameters(engine)
    attn = [layer.attn for layer in spec.layers]
    return {
        "name": engine.checkpoint.path.stem,
        "device": str(engine.device),
        "dtype": str(engine.dtype).removeprefix("torch."),
        "layers": spec.n_layers,
        "dim": spec.dim,
        "vocab": spec.vocab_size,
        "context": spec.context,
        "heads": [a.n_heads for a in attn],
        "kept_heads": [max(heads for heads, _ in a.cached.values()) for a in attn],
        "tied": "LM head" not in parameters,  # whatever the config says
        "parameters": parameters,
    }


def _prompt(
    engine: Engine, prompt: Prompt, request: Request, parse_special: bool
) -> dict[str, Any]:
    """Of ids alone nobody knows how they came about."""
    if isinstance(prompt, str):
        return prompt_words(engine.tokenizer, prompt, request.prompt, parse_special)
    tokens = [{"id": token, "start": 0, "end": 0, "word": None} for token in request.prompt]
    special = engine.tokenizer.special_ids if engine.has_tokenizer else frozenset()
    return {
        "text": None,
        "normalised": None,
        "tokens": tokens,
        "words": [],
        "special": sorted(special.intersection(request.prompt)),
    }


def _operations(engine: Engine, followed: Followed) -> tuple[dict[str, Any], dict[str, int]]:
    """What torch does in the prompt's first pass and in a step; the most bytes alive in each module."""
    decoder, ids = followed.decoder, followed.request.prompt
    cache = engine.new_cache(len(ids) + 1, 1, engine.step_tokens)
    passes, most = {}, dict[str, int]()
    for name, tokens in (
        ("prompt", ids[: engine.step_tokens]),
        ("step", [followed.request.tokens[-1]]),
    ):
        seen = Operations(dict(decoder.named_parameters()))
        batch = torch.tensor([tokens], device=engine.device)
        with (
            torch.no_grad(),
            told(seen, _every_module(decoder, cache)),
            attached(seen.shows, ("", decoder), ("cache", cache)),
            seen,
        ):
            decoder(batch, cache, last=1)
        passes[name] = {"tokens": len(tokens), **document(seen.rows, len(decoder.layers))}
        most = most or seen.most
    return passes, most


def _every_module(decoder: Decoder, cache: Cache) -> Iterator[tuple[str, nn.Module]]:
    return chain(decoder.named_modules(), cache.named_modules(prefix="cache"))


def _cache(engine: Engine, followed: Followed, answer: int) -> dict[str, Any]:
    spec, prompt = engine.spec, len(followed.request.prompt)
    kind = engine.cache
    layers = caches.held(followed.cache)
    return {
        "kind": kind,
        "layers": layers,
        "per_token": sum(layer["per_token"] for layer in layers),
        "prompt": prompt,
        "answer": answer,
        "growth": caches.growth(
            spec, kind, engine.dtype, engine.store, engine.step_tokens, prompt + answer - 1
        ),
        "places": caches.places(spec, prompt, answer, engine.step_tokens),
        "work": caches.work(spec, prompt, answer),
    }


def _time(
    engine: Engine,
    prompt: Prompt,
    request: Request,
    followed: Followed,
    most: dict[str, int],
    parse_special: bool,
) -> dict[str, Any]:
    """On the engine's own kernel; the first of two runs warms up."""
    decoder = twin(engine.decoder, kernel(engine.decoder), str(engine.device))
    answer = len(followed.streamed.rows)
    with torch.inference_mode():
        timed(engine, decoder, prompt, request, min(answer, 2), parse_special)
        measured = timed(engine, decoder, prompt, request, answer, parse_special)
    tensors: dict[str, int] = {}
    for path, _ in chain(stages_of(decoder), caches_of(followed.cache)):
        stage = stage_of(path)
        if stage not in ("plan", "residual sums"):  # which the others lie within
            tensors[stage] = max(tensors.get(stage, 0), most.get(path, 0))
    weights = {name: part["bytes"] for name, part in _parameters(engine).items()}
    return measured.document(tensors, weights, len(decoder.layers))


def _spellings(
    engine: Engine, followed: Followed, words: dict[str, Any]
) -> dict[int, dict[str, Any]]:
    """Of every token that the document names."""
    if not engine.has_tokenizer:
        return {}
    ids = set(followed.request.tokens)
    for choice in followed.choices:
        ids.update(choice["ids"], *(each["ids"] for each in choice["lens"]))
    for piece in chain.from_iterable(word.get("pieces", ()) for word in words["words"]):
        ids.update(piece["symbols"], (made for _, _, made in piece["merges"] or ()))
    return spellings(engine.tokenizer, ids)
