"""Generators that are read in turns: what each gets is what it gets alone, and nothing is left behind."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies import ids
from engine import Engine, SamplingParams
from engine.generate.answer import Piece
from engine.generate.speculation import PromptLookup
from tests.engine import tiny
from tests.engine.service.sharing import (
    ASKED,
    PROMPTS,
    Said,
    assert_same,
    cramped,
    engine_of,
    is_empty,
    said,
)


def test_streams_that_are_read_in_turns_say_what_each_says_alone(
    shared: Engine, alone: list[Said]
) -> None:
    """The cache has room for two of them; the others wait, or give way and are computed anew."""
    streams = [shared.stream(*asked) for asked in ASKED]
    rounds = list(zip_longest(*streams))
    assert [
        said([piece for piece in column if piece]) for column in zip(*rounds, strict=True)
    ] == alone
    counters = shared._shared.scheduler.counters
    assert counters.preempted > 0
    assert counters.steps < 0.8 * len(PROMPTS) * 12, "they share passes"


@tiny.examples(30)
@given(data=st.data())
def test_however_streams_are_read_and_given_up_the_others_go_on(
    folder: Path, data: st.DataObject
) -> None:
    """Random reading, closing and dropping, of streams that begin at random moments."""
    engine = engine_of(folder)
    params = SamplingParams(max_tokens=6, temperature=1.0, seed=1, n=2, ignore_eos=True)
    prompts = data.draw(st.lists(ids(50, max_size=9), min_size=1, max_size=5))
    streams: dict[int, Any] = {}
    heard: dict[int, list[Piece]] = {}
    for i in data.draw(st.lists(st.integers(0, len(prompts) - 1), max_size=60)):
        if i not in heard:
            streams[i], heard[i] = engine.stream(prompts[i], params), []
        elif i not in streams:
            continue
        match data.draw(st.sampled_from(["read"] * 8 + ["close", "drop"])):
            case "read":
                heard[i] += [piece for piece in [next(streams[i], None)] if piece]
            case "close":
                streams.pop(i).close()
            case "drop":
                del streams[i]
    for i, stream in streams.items():
        heard[i] += stream
    for i, pieces in heard.items():
        want = list(engine_of(folder, "ring").stream(prompts[i], params))
        for index in (0, 1):
            whole = said([piece for piece in want if piece.index == index])
            got = said([piece for piece in pieces if piece.index == index])
            assert got[1] == whole[1][: len(got[1])]
            assert i not in streams or got == whole
    del streams
    is_empty(engine)


def test_drafts_come_in_bunches_to_each_of_those_that_share_a_pass(
    folder: Path, alone: list[Said]
) -> None:
    """Several pieces of one step wait in a mailbox; a stream that is closed with some of them leaves none."""
    engine = cramped(folder, PromptLookup(ngram=1))
    streams = [engine.stream(*asked) for asked in ASKED]
    rounds = list(zip_longest(*streams))
    assert [
        said([piece for piece in column if piece]) for column in zip(*rounds, strict=True)
    ] == alone
    again = [20, 21, 20, 21, 20]
    biased = SamplingParams(max_tokens=20, logit_bias={20: 90.0, 21: 90.0})
    whole = list(engine.stream(again, biased))
    assert engine.counters.accepted > 0
    cut = engine.stream(again, biased)
    assert [next(cut) for _ in range(3)] == whole[:3]
    cut.close()
    is_empty(engine)


def test_a_stream_that_was_never_read_holds_nothing(shared: Engine) -> None:
    stream = shared.stream(*ASKED[0])
    assert shared.generate(*ASKED[1]).token_ids
    is_empty(shared)
    stream.close()


def test_a_stream_collected_in_the_midst_of_a_pass_is_taken_out_after_it(shared: Engine) -> None:
    """By the thread that computes the pass, which must not wait for itself."""
    streams = [shared.stream(*asked) for asked in ASKED[:2]]
    first, second = streams
    next(first), next(second)

    def collect(*_: Any) -> None:
        first.close()

    handle = shared.decoder.embed.register_forward_hook(collect)
    try:
        rest = list(second)
    finally:
        handle.remove()
    assert len(rest) == 11
    is_empty(shared)


def test_all_answers_to_one_prompt_and_lists_of_prompts_come_the_same_way(
    shared: Engine, plain: Engine
) -> None:
    several = SamplingParams(max_tokens=5, temperature=1.0, seed=3, n=3, ignore_eos=True)
    best = SamplingParams(max_tokens=5, temperature=1.0, seed=3, best_of=4, n=2, ignore_eos=True)
    background = shared.stream(*ASKED[2])
    next(background)
    for params in (several, best):
        for asked in (PROMPTS[0], PROMPTS[:3]):
            assert_same(shared.generate(asked, params), plain.generate(asked, params))
    assert len(list(background)) == 11
