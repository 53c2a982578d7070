"""A candidate's own loop is judged too: its ids, its text, and what excuses a difference."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from conformance.candidate import Candidate, Level
from conformance.generation import Answer, answer
from conformance.golden import REPOSITORY_GOLDENS, Golden

SMOLLM2 = REPOSITORY_GOLDENS / "smollm2-135m"


class Talker(Candidate):
    """An engine that says what a test tells it to."""

    def __init__(
        self,
        ids: Sequence[int] | None = None,
        chosen: Sequence[int] | None = None,
        words: str | None = None,
    ) -> None:
        self.ids, self.chosen, self.words = ids, chosen, words

    def encode(self, text: str) -> list[int] | None:
        return None if self.ids is None else list(self.ids)

    def greedy(self, ids: list[int], max_tokens: int) -> list[int] | None:
        return None if self.chosen is None else list(self.chosen)

    def text(self, prompt: str, max_tokens: int) -> str | None:
        return self.words


@pytest.fixture(scope="module")
def real() -> Golden:
    """A golden with text; its trace is enough, the model is not needed."""
    return Golden(SMOLLM2)


def judged(golden: Golden, talker: Talker, dtype: torch.dtype = torch.float32) -> Answer:
    return answer(talker, golden, golden.envelope("free", dtype), Level.L5)


def parts(golden: Golden) -> tuple[list[int], list[int], str]:
    count, ids = golden.schedule[0], golden.ids.tolist()
    return ids[:count], ids[count:], golden.manifest["continuation"]


def test_the_references_own_answer_has_no_findings(real: Golden) -> None:
    prompt, chosen, words = parts(real)
    said = judged(real, Talker(prompt, chosen, words))
    assert said == Answer((), words)


def test_a_wrong_prompt_a_wrong_token_and_wrong_words_are_each_found(real: Golden) -> None:
    prompt, chosen, words = parts(real)
    stages = lambda talker: [f.stage for f in judged(real, talker).findings]  # noqa: E731
    assert stages(Talker([1, *prompt], chosen, words)) == ["tokenizer.encode"]
    assert stages(Talker(prompt, [chosen[0] + 1, *chosen[1:]], None)) == ["generate"]
    assert stages(Talker(prompt, chosen, words + "!")) == ["generate"]


@pytest.mark.parametrize("length", [0, 1, -1])
def test_an_answer_that_ends_early_is_found(real: Golden, length: int) -> None:
    """Comparing what two lists have in common would call a short answer right."""
    _, chosen, _ = parts(real)
    (found,) = judged(real, Talker(chosen=chosen[:length])).findings
    assert found.got == chosen[:length]


def test_a_token_that_ties_with_the_references_excuses_what_follows() -> None:
    golden = Golden(REPOSITORY_GOLDENS / "llama-gqa")
    first = golden.schedule[0]
    expected = golden.ids[first:].tolist()
    row = golden.truth("logits", first - 1, first)[0]
    second = int(row.topk(2).indices[1])
    other = [second, *(0 for _ in expected[1:])]
    margin = float(golden.manifest["margins"][first - 1])
    allowed = 2 * golden.envelope("free", torch.bfloat16).allowance("logits")
    assert margin < allowed, "the case no longer has a tie in bfloat16"
    assert judged(golden, Talker(chosen=other), torch.bfloat16).findings == ()
    assert len(judged(golden, Talker(chosen=other), torch.float32).findings) == 1


def test_a_known_divergence_excuses_the_tokens_but_not_the_prompt(
    real: Golden,
) -> None:
    prompt, chosen, words = parts(real)
    talker = Talker([1, *prompt], [0 for _ in chosen], "nonsense")
    envelope = real.envelope("free", torch.float32)
    said = answer(talker, real, envelope, Level.L5, known_to_diverge=True)
    assert [f.stage for f in said.findings] == ["tokenizer.encode"]
    assert said.follows, "what is excused is not called right"
    assert words != "nonsense"


def test_an_engine_that_raises_has_answered_with_its_error(real: Golden) -> None:
    class Broken(Talker):
        def greedy(self, ids: list[int], max_tokens: int) -> list[int] | None:
            raise RuntimeError("shapes do not match")

    (found,) = judged(real, Broken()).findings
    assert found.got == "RuntimeError: shapes do not match"


def test_at_the_lowest_level_text_alone_is_compared(real: Golden) -> None:
    prompt, chosen, words = parts(real)
    envelope = real.envelope("free", torch.float32)
    wrong_ids = Talker([1, *prompt], [0 for _ in chosen], words)
    assert answer(wrong_ids, real, envelope, Level.L0).findings == ()
    wrong_words = Talker(prompt, chosen, "Rome")
    assert [f.got for f in answer(wrong_words, real, envelope, Level.L0).findings] == ["Rome"]
