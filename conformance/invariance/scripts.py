"""What requests say in a cell: sequences whose tokens are all given, the answers' too.

So that every run of a sequence reads the same tokens, and its logits can be held against a naive run's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from conformance.golden import Golden

#: Prompts of the sequences beside the one in question, none as long as another.
NEIGHBOURS = (9, 1, 5, 2, 13, 3, 7)
LENGTH = 44  # of a neighbour, with its answer: so that it lives as long as the one in question


@dataclass(frozen=True)
class Script:
    """Tokens `ids`, of which the first `prompt` are given at once and the others one by one."""

    ids: tuple[int, ...]
    prompt: int


@dataclass(frozen=True)
class Scripts:
    """The sequences of one model.

    `main` is the golden's own; `branches` are two other answers to its prompt, `kin` begins as it does;
    `neighbours` run beside it, `another` ran before it.
    """

    main: Script
    branches: tuple[Script, ...]
    kin: Script
    neighbours: tuple[Script, ...]
    another: Script

    @classmethod
    def of(cls, golden: Golden, vocabulary: int) -> Scripts:
        ids = tuple(golden.ids.tolist())
        prompt = golden.schedule[0]
        draw = random.Random(golden.case)  # noqa: S311

        def drawn(length: int, begin: tuple[int, ...] = ()) -> tuple[int, ...]:
            return begin + tuple(draw.randrange(vocabulary) for _ in range(length - len(begin)))

        return cls(
            main=Script(ids, prompt),
            branches=tuple(Script(drawn(len(ids), ids[:prompt]), prompt) for _ in range(2)),
            kin=Script(drawn(len(ids), ids[: prompt * 2 // 3]), prompt),
            neighbours=tuple(Script(drawn(LENGTH), n) for n in NEIGHBOURS),
            another=Script(drawn(len(ids)), prompt),
        )

    def __iter__(self) -> Iterator[Script]:
        yield from (self.main, *self.branches, self.kin, *self.neighbours, self.another)
