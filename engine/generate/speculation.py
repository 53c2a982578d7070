"""Speculative decoding: tokens that are likely to come are read beside the last one, and taken back if wrong.

A pass holds a request's last token and d drafts, and gives logits after each of them. The request chooses
from the first row; as long as what it chose is what was drafted, it chooses from the next one. So each
token is chosen from the target's own logits after the tokens before it, and with the same seed it is the
one that would be chosen without drafts. That is the acceptance rule of Leviathan et al. 2023 (section
2.3) for drafters that propose one token with certainty: a draft x is kept with the probability p(x) that
the target gives it, and otherwise another one is drawn from p without x.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from engine.cache import Cache, Part
from engine.errors import CacheFullError
from engine.generate.answer import Piece
from engine.generate.checks import integer, require, shown
from engine.generate.request import Request
from engine.spec import ModelSpec

if TYPE_CHECKING:
    from engine.generate.loaded import LoadedModel

#: The most tokens that a user may have drafted at once: what is read in vain costs time.
MOST_DRAFTS = 64


class Speculation(Protocol):
    """What a user chooses to have tokens drafted by."""

    def beside(self, target: LoadedModel) -> Drafters:
        """Gets ready to draft for a model; RequestError where that cannot be."""


class Drafter(Protocol):
    """Says what may come next in some requests, from their tokens alone: never from what is drawn for them."""

    def propose(self, most: Mapping[Request, int]) -> Mapping[Request, Sequence[int]]:
        """For each request up to so many tokens that may follow its own; none where there is no idea."""

    def forget(self, request: Request) -> None:
        """It has ended, or waits: what was kept for it can go."""


#: Makes the drafter of a scheduler, whose cache holds so many tokens.
Drafters = Callable[[int], Drafter]


@dataclass(frozen=True)
class PromptLookup:
    """Drafts what followed the last time that a request's last tokens stood in its prompt or its answer.

    Up to `ngram` last tokens are looked for, the most first, and up to `tokens` drafted. It takes no
    second model, and helps where an answer repeats what is there (Saxena 2023, Prompt lookup decoding).
    """

    ngram: int = 3
    tokens: int = 8

    def __post_init__(self) -> None:
        integer("ngram", self.ngram, least=1)
        check_drafts(self.tokens)

    def beside(self, target: LoadedModel) -> Drafters:
        return lambda _: self

    def propose(self, most: Mapping[Request, int]) -> Mapping[Request, Sequence[int]]:
        return {
            request: self._following(request.tokens)[: min(n, self.tokens)]
            for request, n in most.items()
        }

    def _following(self, tokens: Sequence[int]) -> Sequence[int]:
        """What followed the longest of the last n-grams at its last earlier place."""
        for n in range(min(self.ngram, len(tokens) - 1), 0, -1):
            wanted = tokens[-n:]
            for end in range(len(tokens) - 1, n - 1, -1):
                if tokens[end - n : end] == wanted:
                    return tokens[end : end + self.tokens]
        return ()

    def forget(self, request: Request) -> None:
        """Nothing is kept."""


class NoDrafts:
    """The drafter of those who want none."""

    def propose(self, most: Mapping[Request, int]) -> Mapping[Request, Sequence[int]]:
        return {}

    def forget(self, request: Request) -> None:
        """Nothing is kept."""


NO_DRAFTS = NoDrafts()


def no_drafts(cache_tokens: int) -> Drafter:
    return NO_DRAFTS


def check_drafts(tokens: int) -> None:
    """Raises RequestError unless so many tokens can be drafted at once."""
    integer("tokens", tokens, least=1)
    most = f"at most {MOST_DRAFTS} tokens can be drafted at once, got {shown(tokens)}"
    require(tokens <= MOST_DRAFTS, most)


@dataclass(frozen=True)
class Share:
    """What a pass holds of a request: the next tokens of its room, and `drafts` of those behind them."""

    request: Request
    part: Part
    drafts: Sequence[int] = ()

    @property
    def ids(self) -> list[int]:
        """Its tokens in the pass, which is still to come."""
        first = self.part.room.length
        return [*self.request.tokens[first : first + self.part.n], *self.drafts]

    @property
    def last(self) -> int:
        """How many of its last tokens are to have logits."""
        return self.part.n if self.request.wants_prompt_logprobs else 1 + len(self.drafts)

    @property
    def can_draft(self) -> bool:
        """Whether an answer that has begun goes on after it."""
        held = self.part.room.length + self.part.n
        return bool(self.request.pieces) and held == len(self.request.tokens)


def drafted(
    shares: Sequence[Share], drafter: Drafter, spec: ModelSpec, cache: Cache, left: int
) -> list[Share]:
    """The shares of a pass with up to `left` drafts, for which the cache has slots now.

    Drafts make nobody wait: where there are no slots, or no tokens left, there are fewer or none.
    """
    most = {
        share.request: n
        for share in shares
        if share.can_draft and (n := _most(share, spec, cache, left))
    }
    proposed = drafter.propose(most) if most else {}
    longer = []
    for share in shares:
        drafts = proposed.get(share.request, ())[: min(left, most.get(share.request, 0))]
        part = Part(share.part.room, share.part.n + len(drafts))
        if drafts and reserved(cache, part):
            share = replace(share, part=part, drafts=drafts)
            left -= len(drafts)
        longer.append(share)
    # Single tokens side by side are read as one.
    return sorted(longer, key=lambda share: bool(share.drafts))


def _most(share: Share, spec: ModelSpec, cache: Cache, left: int) -> int:
    """How many drafts may stand behind a share's tokens.

    The answer's last token is never read. Behind a rope's border other frequencies hold, for those before
    it as well: whether they do is known when the tokens are chosen.
    """
    n = len(share.request.tokens)
    ends = (share.request.longest, *spec.rope_borders)
    return min(left, cache.longest_pass - share.part.n, *(end - n for end in ends if end >= n))


def reserved(cache: Cache, part: Part) -> bool:
    """Whether there are slots for a share and its drafts."""
    try:
        cache.reserve([part])
    except CacheFullError:
        return False
    return True


def followed(request: Request, drafts: Sequence[int], logits: Tensor) -> Iterator[Piece]:
    """What a request chooses after logits [1 + d, V] of its last token and of d drafts behind it.

    One token more than there are drafts that are chosen as well, unless the answer ends before.
    """
    for draft, row in zip((*drafts, None), logits, strict=True):
        piece = request.choose(row)
        yield piece
        if request.done or piece.token_ids != (draft,):
            return
