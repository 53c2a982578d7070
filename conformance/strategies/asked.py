"""What a scheduler is asked for: prompts that often begin alike, and caches that are soon full."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from hypothesis import strategies as st

LONGEST_PROMPT = 7

#: Of some drafts in a row, which are right.
Plan = tuple[bool, ...]


@dataclass(frozen=True)
class Shape:
    """A pool of `blocks` blocks of `block_size` tokens, and how much a scheduler may do in a pass.

    A `kind` other than "paged" has a model with a window, and with other frequencies of longer sequences:
    in such a pool, or in rings that have a slot for as many tokens each.
    """

    kind: str
    blocks: int
    block_size: int
    step_tokens: int
    max_batch: int

    @property
    def capacity(self) -> int:
        return self.blocks * self.block_size


@dataclass(frozen=True)
class Ask:
    """`n` answers of at most `limit` tokens, drawn by `seed`; with or without the prompt's logprobs."""

    limit: int
    n: int
    seed: int
    prompt_logprobs: bool


def shapes() -> st.SearchStrategy[Shape]:
    """Pools in which the longest prompt has just room, and a second one has not."""
    return st.builds(
        Shape,
        kind=st.sampled_from(["paged", "paged, turning", "ring, turning"]),
        blocks=st.integers(4, 6),
        block_size=st.integers(2, 3),
        step_tokens=st.sampled_from([16, 1, 2, 3, 5]),
        max_batch=st.sampled_from([3, 1, 2, 4]),
    )


def plans() -> st.SearchStrategy[Plan]:
    """Every plan of up to three drafts is as likely, and some of four."""
    short = [plan for n in range(4) for plan in product((True, False), repeat=n)]
    return st.sampled_from([*short, (True,) * 4, (True, True, True, False)])


def prompts(size: int = LONGEST_PROMPT) -> st.SearchStrategy[list[int]]:
    """Of two tokens only, so that two prompts often begin alike."""
    return st.lists(st.integers(0, 1), min_size=1, max_size=size)


def asks() -> st.SearchStrategy[Ask]:
    return st.builds(
        Ask,
        limit=st.integers(1, 6),
        n=st.integers(1, 3),
        seed=st.integers(0, 2),
        prompt_logprobs=st.booleans(),
    )
