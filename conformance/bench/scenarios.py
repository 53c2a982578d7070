"""What is timed: questions that every form is asked in turn, and the work that each of them takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from conformance.bench.work import Work
from engine.errors import LockstepError
from engine.tokenizer import Tokenizer
from engine.tokenizer.formats.open import tokenizer_file

#: Of which prompts are cut; a model without a tokenizer gets ids.
TEXT = """The lighthouse stood at the end of the long pier, and every evening its keeper climbed the iron stairs
with a can of oil. He counted the steps, lit the lamp, and wrote down the hour in a book that his mother had begun.
On clear nights one could see the fishing boats far out, each with a lantern at its mast, like a second sky below the
first. When fog came in from the west he rang the bell, three strokes and a pause, until his arms were tired. Once, in
the winter of the great storm, a ship answered. It took until morning to bring all of her people ashore, and the last
of them, an old captain with a parrot on his shoulder, asked for paper and a pen before he asked for bread.
"""
SPOKEN = TEXT[:-1]


@dataclass(frozen=True)
class Scenario:
    """A question with its details; `tokens` come of it, and `context` are in view at most.

    Where no tokens come of it, its figure is seconds and not tokens per second.
    """

    name: str
    question: str
    details: dict[str, Any]
    tokens: int = 0
    context: int = 0

    def work(self, work: Work) -> tuple[float, float] | None:
        """Bytes and operations at least; None where no limit is known."""
        match self.question:
            case "decode":
                batch, n = len(self.details["prompts"]), self.details["n"]
                first = len(self.details["prompts"][0]) + 1  # tokens in view of the first step
                steps = [work.decode(batch, first + i) for i in range(n)]
                return sum(step[0] for step in steps), sum(step[1] for step in steps)
            case "prefill":
                return work.prefill(len(self.details["prompt"]))
        return None


@dataclass(frozen=True)
class Sizes:
    """How much is asked."""

    prompt: int = 16
    answer: int = 64
    batches: tuple[int, ...] = (1, 8)
    prefills: tuple[int, ...] = (512, 2048)
    reading: int | None = None  # bytes that the machine's bandwidth is measured with; None: enough
    #: Tokens, and the sides of a matrix: products of prefills, of small models and of large ones.
    products: tuple[tuple[int, int, int], ...] = (
        (512, 576, 1536),
        (512, 2048, 2048),
        (2048, 2048, 2048),
        (2048, 4096, 4096),
    )
    lengths: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096, 8192)
    together: tuple[int, ...] = (1, 2, 4, 8, 16, 32)


USUAL = Sizes()
#: To try the command out, or a tiny model.
QUICK = Sizes(
    prompt=8,
    answer=8,
    batches=(1, 4),
    prefills=(64,),
    reading=1 << 26,
    products=((128, 512, 512),),
    lengths=(16, 64),
    together=(1, 4),
)


def prompt_ids(model: Path, vocab_size: int) -> list[int]:
    """The ids of the text, or of a model without a tokenizer ones of no meaning."""
    if tokenizer_file(model) is None:
        return [1 + 7919 * i % (vocab_size - 1) for i in range(1, 200)]
    return Tokenizer.load(model).encode(TEXT, add_special_tokens=False)


def scenarios(
    ids: Sequence[int], context: int, has_tokenizer: bool, sizes: Sizes
) -> tuple[list[Scenario], list[str]]:
    """Those that a model can play, and of the others why it cannot."""
    made, skipped = [], []
    for batch in sizes.batches:
        # Each prompt begins elsewhere in the text; all are of one length, which nobody has to pad.
        prompts = [cut(ids, sizes.prompt, 5 * i) for i in range(batch)]
        details = {"prompts": prompts, "n": sizes.answer}
        tokens, longest = batch * sizes.answer, sizes.prompt + sizes.answer + 1
        made.append(Scenario(f"decode, batch {batch}", "decode", details, tokens, longest))
    for length in sizes.prefills:
        details = {"prompt": cut(ids, length)}
        made.append(Scenario(f"prefill {length}", "prefill", details, length, length + 1))
    if has_tokenizer:
        made.append(Scenario("first token", "first", {"text": SPOKEN}, context=len(ids) + 16))
    else:
        skipped.append("first token: the model has no tokenizer")
    made.append(Scenario("loading", "load", {}))
    fitting = [scenario for scenario in made if scenario.context <= context]
    skipped += [
        f"{scenario.name}: it takes {scenario.context} tokens and the model's context is {context}"
        for scenario in made
        if scenario not in fitting
    ]
    if not fitting:
        raise LockstepError("nothing can be timed: the model's context is too short")
    return fitting, skipped


def cut(ids: Sequence[int], n: int, first: int = 0) -> list[int]:
    """n ids from the first on, and from the beginning again where the text ends."""
    return list(islice(cycle(ids), first, first + n))
