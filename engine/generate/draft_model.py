"""A second, smaller model that drafts for a first one, with a cache of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from engine.cache import BLOCK_SIZE, PagedCache, Part, Room, common
from engine.device import DTYPES
from engine.errors import CacheFullError, RequestError
from engine.generate.loaded import LoadedModel
from engine.generate.request import Request
from engine.generate.scheduler import MAX_BATCH
from engine.generate.speculation import Drafters, check_drafts, reserved


@dataclass(frozen=True)
class DraftModel:
    """Drafts up to `tokens` tokens that MODEL finds the most likely, a model as `Engine.load` takes it.

    It has to have the same vocabulary. Source: Leviathan et al. 2023, Chen et al. 2023.
    """

    model: str | Path
    tokens: int = 4

    def __post_init__(self) -> None:
        check_drafts(self.tokens)

    def beside(self, target: LoadedModel) -> Drafters:
        """Loads it, on the target's device and in its dtype."""
        dtype = next(name for name, dtype in DTYPES.items() if dtype == target.dtype)
        draft = LoadedModel.load(self.model, device=str(target.device), dtype=dtype)
        check_same_vocabulary(draft, target)
        return partial(ModelDrafter, draft, self.tokens)


def check_same_vocabulary(draft: LoadedModel, target: LoadedModel) -> None:
    """Raises RequestError unless a token id means the same in both."""
    sizes = draft.spec.vocab_size, target.spec.vocab_size
    if sizes[0] != sizes[1]:
        raise RequestError(
            f"the draft model has {sizes[0]} tokens in its vocabulary and the model {sizes[1]}: "
            "a draft model must have the same ones"
        )
    if not (draft.has_tokenizer and target.has_tokenizer):
        return
    for token in range(sizes[0]):
        names = draft.tokenizer.id_to_token(token), target.tokenizer.id_to_token(token)
        if names[0] != names[1]:
            raise RequestError(
                f"token {token} is {names[0]!r} in the draft model and {names[1]!r} in the model: "
                "a draft model must have the same vocabulary"
            )


@dataclass
class Line:
    """A request as the draft model reads it: `ids` are its tokens and drafts, of which the room holds some.

    Drafts are wanted until there are `end` ids. `turns` of the rope's turning points had been passed when
    its keys were turned.
    """

    room: Room
    turns: int
    ids: list[int]
    end: int = 0

    @property
    def unread(self) -> list[int]:
        return self.ids[self.room.length :]


class ModelDrafter:
    """Reads the requests of one scheduler, whose cache has `cache_tokens` tokens, with a model of its own.

    Where its cache has no room for a request there are no drafts of it.
    """

    def __init__(self, model: LoadedModel, tokens: int, cache_tokens: int) -> None:
        self.model, self.tokens = model, tokens
        # Each request may leave a block that is not full.
        blocks = math.ceil(cache_tokens / BLOCK_SIZE) + MAX_BATCH
        self.cache = PagedCache(model.spec, blocks, dtype=model.dtype, device=model.device)
        self._lines: dict[Request, Line] = {}

    @torch.inference_mode()
    def propose(self, most: Mapping[Request, int]) -> Mapping[Request, Sequence[int]]:
        lines = {request: line for request, n in most.items() if (line := self._follow(request, n))}
        while pending := [line for line in lines.values() if len(line.ids) < line.end]:
            self._read(pending)
        return {request: line.ids[len(request.tokens) :] for request, line in lines.items()}

    def forget(self, request: Request) -> None:
        if line := self._lines.pop(request, None):
            self.cache.close(line.room)

    def _follow(self, request: Request, n: int) -> Line | None:
        """A request's line, gone back to what it has in common with its tokens now, to be drafted on."""
        tokens, spec = request.tokens, self.model.spec
        turns = sum(point < len(tokens) for point in spec.turning_points)
        if request in self._lines and self._lines[request].turns != turns:
            self.forget(request)
        longest = min(spec.context, self.cache.capacity)
        if len(tokens) >= longest:
            return None
        try:
            line = self._lines.get(request) or self._begin(request, turns)
        except CacheFullError:
            return None
        # Its last token is read once more where it has been read, as its logits are wanted.
        held = min(line.room.length, common(line.ids, tokens), len(tokens) - 1)
        self.cache.rewind(line.room, held)
        line.ids = list(tokens)
        line.end = min(len(tokens) + min(n, self.tokens), longest)
        return line

    def _begin(self, request: Request, turns: int) -> Line:
        room = self.cache.admit(request.tokens, len(request.tokens))
        return self._lines.setdefault(request, Line(room, turns, list(request.tokens)))

    def _read(self, lines: Sequence[Line]) -> None:
        """One pass, after which the lines that were read to their ends have a draft more.

        One for whose next tokens the cache has no room is not drafted any further.
        """
        read: list[Line] = []
        parts: list[Part] = []
        ids: list[int] = []
        for line in lines:
            some = line.unread[: self.model.step_tokens - len(ids)]
            part = Part(line.room, len(some))
            if some and reserved(self.cache, part):
                read.append(line)
                parts.append(part)
                ids += some
            elif some:
                line.end = len(line.ids)
        if not ids:
            return
        batch = torch.tensor([ids], device=self.cache.device)
        best = self.model.decoder(batch, self.cache, parts, last=1)[0].argmax(-1).tolist()
        for line, token in zip(read, best, strict=True):
            if not line.unread:
                line.ids.append(token)
