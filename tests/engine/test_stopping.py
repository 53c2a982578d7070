"""Where an answer ends, with which reason, text and count, against a rule that looks at the whole text each time.

And several answers to one prompt: which of them are given, in what order, and what they count as.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Engine, SamplingParams
from engine.errors import RequestError
from engine.generate.answer import Completion
from tests.engine import tiny
from tests.engine.test_streaming import joined, script

Ended = tuple[list[int], str, str]


def rule(engine: Engine, said: Sequence[int], params: SamplingParams, limit: int) -> Ended:
    """Tokens, text and reason of a model that would say `said`, and else the token of the lowest id."""
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else engine.eos_ids)
    allowed = min(set(range(engine.spec.vocab_size)) - ends)
    tokens: list[int] = []
    seen = 0
    for n, token in enumerate(said[:limit], 1):
        early = n <= params.min_tokens
        tokens.append(allowed if early and token in ends else token)
        if tokens[-1] in ends:
            return tokens, engine.tokenizer.decode(tokens[:-1], True), "stop"
        whole = engine.tokenizer.decode(tokens, True)
        certain = whole if n == limit else whole.rstrip("\ufffd")
        if not early and (found := _first(certain, seen, params.stop)):
            return tokens, certain[: found[1]], "stop"
        seen = len(certain)
    return tokens, whole, "length"


def _first(text: str, seen: int, stops: Sequence[str]) -> tuple[int, int] | None:
    """End and start of the stop string that is the first to be complete behind `seen`."""
    found = [
        (start + len(stop), start)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop, start) and start + len(stop) > seen
    ]
    return min(found, default=None)


def told(engine: Engine, params: SamplingParams) -> Ended:
    done = engine.generate("x", params)
    return done.token_ids, done.text, done.finish_reason


WORDS = st.text("ab🦙é .", min_size=1, max_size=12)


@tiny.examples(150)
@given(data=st.data())
def test_an_answer_ends_where_the_rule_says(engine: Engine, data: st.DataObject) -> None:
    """End tokens, stop ids, stop strings, min and max tokens, and the context's end, in any company."""
    (end,) = engine.eos_ids
    said = [end] * data.draw(st.integers(0, 1))
    for _ in range(data.draw(st.integers(1, 3))):
        said += engine.tokenizer.encode(data.draw(WORDS), add_special_tokens=False)
        said += [end] * data.draw(st.integers(0, 1))
    max_tokens = data.draw(st.integers(1, len(said)))
    limit = data.draw(st.sampled_from([max_tokens, min(max_tokens, 3)]))  # the context's end
    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=data.draw(st.integers(0, min(max_tokens, 4))),
        stop=data.draw(st.lists(st.text("ab🦙é .", min_size=1, max_size=3), max_size=2)),
        stop_token_ids=data.draw(st.lists(st.sampled_from(said), max_size=1)),
        ignore_eos=data.draw(st.booleans()),
    )
    with pytest.MonkeyPatch.context() as patch:
        script(patch, engine, said)
        patch.setattr(engine, "_limit", lambda ids, params: limit)
        done = engine.generate("x", params)
        text, tokens, reason, _ = joined(list(engine.stream("x", params)))
    assert (done.token_ids, done.text, done.finish_reason) == rule(engine, said, params, limit)
    assert (tokens, text, reason) == (done.token_ids, done.text, done.finish_reason)
    n_prompt, n = len(done.prompt_token_ids), len(done.token_ids)
    assert done.usage == {
        "prompt_tokens": n_prompt,
        "completion_tokens": n,
        "total_tokens": n_prompt + n,
    }


@pytest.mark.parametrize(
    ("min_tokens", "shown", "reason"),
    [(0, "one ", "stop"), (3, "one two ", "stop"), (7, "one two two two", "length")],
)
def test_a_stop_string_that_is_complete_too_early_is_text(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, min_tokens: int, shown: str, reason: str
) -> None:
    """The next one counts, once there are more tokens than that."""
    pieces = [engine.tokenizer.encode(w, add_special_tokens=False) for w in ("one", " two")]
    said = [*pieces[0], *pieces[1] * 3]
    per_word = len(pieces[1])
    least = {0: 0, 3: len(pieces[0]) + per_word, 7: len(said)}[min_tokens]
    script(monkeypatch, engine, said)
    params = SamplingParams(max_tokens=len(said), min_tokens=least, stop="two", ignore_eos=True)
    done = engine.generate("x", params)
    assert (done.text, done.finish_reason) == (shown, reason)


def test_a_stop_string_may_begin_within_one_that_was_too_early(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = engine.tokenizer.encode("a", add_special_tokens=False) * 3
    script(monkeypatch, engine, said)
    params = SamplingParams(max_tokens=3, min_tokens=2, stop="aa", ignore_eos=True)
    assert told(engine, params) == rule(engine, said, params, 3) == (said, "a", "stop")


# -- several answers -------------------------------------------------------------------------------

PROMPT = [3, 7, 11, 2, 9]
DRAWN = SamplingParams(max_tokens=6, temperature=1.5, seed=5, ignore_eos=True)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.load(tiny.save_folder(tmp_path_factory.mktemp("plain"), tiny.CASE))


@pytest.mark.parametrize("cache", ["ring", "paged"])
@pytest.mark.parametrize(("n", "best_of"), [(1, 1), (1, 4), (3, 5), (5, 5)])
def test_the_likeliest_of_the_answers_are_given(
    plain: Engine, cache: str, n: int, best_of: int
) -> None:
    """By the model's own mean log-probability of their tokens, ends included; all that were made count."""
    engine = Engine.load(plain.checkpoint.path, cache=cache)
    params = dataclasses.replace(DRAWN, n=n, best_of=best_of, logprobs=0)
    done = engine.generate(PROMPT, params)
    answers: list[Completion] = done if isinstance(done, list) else [done]
    made = [
        plain.generate(PROMPT, dataclasses.replace(DRAWN, seed=5 + i)).token_ids
        for i in range(best_of)
    ]
    best = sorted(made, key=lambda ids: -mean(plain, ids))
    assert [answer.token_ids for answer in answers] == best[:n]
    assert [answer.index for answer in answers] == list(range(n))
    for answer in answers:
        assert answer.score == pytest.approx(mean(plain, answer.token_ids), abs=1e-4)
        assert answer.usage["completion_tokens"] == sum(map(len, made))
        assert answer.usage["prompt_tokens"] == len(PROMPT)


def mean(engine: Engine, ids: list[int]) -> float:
    rows = engine.logits([*PROMPT, *ids]).log_softmax(-1)
    own = [float(rows[len(PROMPT) - 1 + i, token]) for i, token in enumerate(ids)]
    return sum(own) / len(own)


def test_answers_of_different_lengths_are_ranked_by_their_mean(tmp_path: Path) -> None:
    """A sum would give the shortest; what ends an answer is one of its tokens."""
    engine = Engine.load(tiny.save_folder(tmp_path, tiny.CASE))
    params = SamplingParams(
        max_tokens=12, temperature=1.5, seed=0, best_of=12, n=12, stop_token_ids=range(25)
    )
    answers: list[Completion] = engine.generate(PROMPT, params)  # type: ignore[assignment]
    lengths = [len(answer.token_ids) for answer in answers]
    assert len(set(lengths)) > 2
    means = [mean(engine, answer.token_ids) for answer in answers]
    assert means == sorted(means, reverse=True)
    sums = [m * n for m, n in zip(means, lengths, strict=True)]
    assert sums != sorted(sums, reverse=True), "the case tells them apart"


def test_the_best_cannot_be_streamed_but_all_can(plain: Engine) -> None:
    with pytest.raises(RequestError, match="best_of above n cannot be streamed"):
        plain.stream(PROMPT, dataclasses.replace(DRAWN, best_of=2))
    pieces = list(plain.stream(PROMPT, dataclasses.replace(DRAWN, n=2, best_of=2)))
    for i in (0, 1):
        alone = plain.generate(PROMPT, dataclasses.replace(DRAWN, seed=5 + i)).token_ids
        assert [t for p in pieces if p.index == i for t in p.token_ids] == alone
