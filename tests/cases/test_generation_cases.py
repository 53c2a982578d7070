"""Public cases of the theme generation, whole: G01 and G06 (ends, in every form of asking), G07 (log-probabilities
with a penalty), G09 (batches). `test_engine_cases` has the numbers of G01 and G06 and case G04.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine import Engine, SamplingParams
from engine.generate.answer import Completion, Piece, TokenLogprob
from tests.cases.test_engine_cases import GREEDY, PROMPT, model_folder
from tests.engine import tiny
from tests.engine.tiny import one_thread  # noqa: F401  (applies to this module)

CACHES = ["ring", "contiguous", "paged"]

# -- G01 and G06: the same end in every form -------------------------------------------------------

Heard = tuple[list[int], str, str | None]


def heard(pieces: Sequence[Piece]) -> Heard:
    assert all(piece.finish_reason is None for piece in pieces[:-1])
    tokens = [token for piece in pieces for token in piece.token_ids]
    return tokens, "".join(piece.text for piece in pieces), pieces[-1].finish_reason


def told(done: Completion) -> Heard:
    return done.token_ids, done.text, done.finish_reason


async def _collected(engine: Engine, prompt: Any, params: SamplingParams) -> list[Piece]:
    return [piece async for piece in engine.astream(prompt, params)]


FORMS: dict[str, Callable[[Engine, Any, SamplingParams], Heard]] = {
    "generate": lambda engine, prompt, params: told(engine.generate(prompt, params)),
    "in a list": lambda engine, prompt, params: told(engine.generate([[1], prompt], params)[1]),
    "stream": lambda engine, prompt, params: heard(list(engine.stream(prompt, params))),
    "agenerate": lambda engine, prompt, params: told(asyncio.run(engine.agenerate(prompt, params))),
    "astream": lambda engine, prompt, params: heard(
        asyncio.run(_collected(engine, prompt, params))
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cache", CACHES)
def test_g01_g06_an_end_is_the_same_in_every_form(tmp_path: Path, cache: str, form: str) -> None:
    """Also where the end token is the last one allowed, and with end tokens ignored."""
    engine = Engine.load(model_folder(tmp_path, generation={"eos_token_id": [49, 11]}), cache=cache)
    ask = FORMS[form]
    for most, completed, reason in ((1, 1, "length"), (3, 3, "length"), (4, 4, "stop")):
        assert ask(engine, PROMPT, SamplingParams(max_tokens=most)) == (
            GREEDY[:completed],
            "",
            reason,
        )
    assert ask(engine, PROMPT, SamplingParams(max_tokens=5))[0::2] == (GREEDY[:4], "stop")
    on = SamplingParams(max_tokens=12, ignore_eos=True)
    assert ask(engine, PROMPT, on)[0::2] == (GREEDY, "length")
    named = SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=[36])
    assert ask(engine, PROMPT, named)[0::2] == (GREEDY[:3], "stop")


# -- G07: log-probabilities with a penalty ---------------------------------------------------------

RAW = [-1.59777, -0.70059, -1.91217, -2.21419]
PROCESSED = [-1.55142, -0.66554, -1.75983, -2.07425]


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(("mode", "want"), [("raw", RAW), ("processed", PROCESSED)])
def test_g07_raw_and_processed_logprobs_of_the_chosen_tokens(
    tmp_path: Path, cache: str, mode: str, want: list[float]
) -> None:
    """The case's own numbers; streamed or not, and all of them at most 0."""
    engine = Engine.load(model_folder(tmp_path), cache=cache)
    params = SamplingParams(
        max_tokens=4, repetition_penalty=1.3, logprobs=3, logprobs_mode=mode, prompt_logprobs=2
    )
    done = engine.generate(PROMPT, params)
    assert done.logprobs is not None
    assert [entry.logprob for entry in done.logprobs] == pytest.approx(want, abs=2e-5)
    pieces = list(engine.stream(PROMPT, params))
    assert [entry for piece in pieces for entry in piece.logprobs] == done.logprobs
    assert [entry.token_id for entry in done.logprobs] == done.token_ids
    if mode == "raw":
        rows = engine.logits([*PROMPT, *done.token_ids]).log_softmax(-1)
        own = [float(rows[4 + i, token]) for i, token in enumerate(done.token_ids)]
        assert own == pytest.approx(want, abs=2e-5)
    assert done.prompt_logprobs is not None
    first, *rest = done.prompt_logprobs
    assert first is None
    assert [entry.token_id for entry in rest if entry] == PROMPT[1:]
    entries = [*done.logprobs, *(entry for entry in rest if entry)]
    assert all(p <= 0 for entry in entries for p in _values(entry))


def _values(entry: TokenLogprob) -> list[float]:
    return [entry.logprob, *(p for _, p in entry.top)]


@pytest.mark.parametrize("stop", [(), ("on f",)])
def test_g07_tokens_that_are_held_back_keep_their_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: tuple[str, ...]
) -> None:
    """Of a character in several tokens and of the beginning of a stop string; offsets do not drift."""
    from tests.engine.test_streaming import script

    engine = Engine.load(tiny.text_folder(tmp_path))
    answer = engine.tokenizer.encode("go 🦙on on foot", add_special_tokens=False)
    script(monkeypatch, engine, answer)
    params = SamplingParams(max_tokens=len(answer), logprobs=1, stop=stop, ignore_eos=True)
    done = engine.generate("x", params)
    pieces = list(engine.stream("x", params))
    assert done.text == ("go 🦙on " if stop else "go 🦙on on foot")
    assert any(piece.text == "" for piece in pieces), "something is held back"
    assert done.logprobs is not None
    assert [entry.token_id for entry in done.logprobs] == done.token_ids
    assert [entry for piece in pieces for entry in piece.logprobs] == done.logprobs
    for i, entry in enumerate(done.logprobs):
        before = engine.tokenizer.decode(answer[:i], skip_special_tokens=True)
        assert entry.text_offset == len(before.rstrip("\ufffd"))
    assert all(math.isfinite(p) for entry in done.logprobs for p in _values(entry))
    json.dumps(done.to_dict(), allow_nan=False)


# -- G09: answers and the size of a batch ----------------------------------------------------------


@pytest.mark.parametrize("cache", CACHES)
def test_g09_a_tiny_model_answers_alone_as_among_eight(tmp_path: Path, cache: str) -> None:
    """In float32: the same tokens, and log-probabilities within the case's 1e-5."""
    engine = Engine.load(
        tiny.save_folder(tmp_path, tiny.CASE, draw=tiny.case_draw(0.3)), cache=cache
    )
    prompts = [[(7 * i + 3 * j) % 50 for j in range(1 + 3 * i)] for i in range(8)]
    params = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=0)
    together = engine.generate(prompts, params)
    for prompt, among in zip(prompts, together, strict=True):
        alone = engine.generate(prompt, params)
        assert among.token_ids == alone.token_ids
        assert among.logprobs is not None and alone.logprobs is not None
        for one, other in zip(among.logprobs, alone.logprobs, strict=True):
            assert abs(one.logprob - other.logprob) <= 1e-5


def unexplained(
    engine: Engine, prompt: list[int], alone: list[int], among: list[int]
) -> str | None:
    """None if the answers agree, or part where the model itself is undecided within its noise.

    That is how far its logits move when the same tokens are read one by one.
    """
    parted = [i for i, (a, b) in enumerate(zip(alone, among, strict=True)) if a != b]
    if not parted:
        return None
    ids = [*prompt, *alone[: parted[0]]]
    rows = engine.logits(ids)
    noise = float((rows - engine.logits(ids, chunk=1)).abs().max())
    gap = float(rows[-1].max() - rows[-1, [alone[parted[0]], among[parted[0]]]].min())
    return None if gap <= 2 * noise else f"token {parted[0]}: a gap of {gap}, noise of {noise}"


@pytest.mark.xdist_group("smollm2")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_g09_a_real_model_s_answers_part_only_where_it_is_undecided(
    asset: Callable[[str], Path], dtype: str
) -> None:
    """Their equality is not asked for in bfloat16, and in float32 it holds."""
    engine = Engine.load(asset("smollm2-135m"), dtype=dtype)
    texts = ["The capital of France is", "Once upon a time, there was", "word " * 40]
    prompts = [engine.encode(text) for text in texts]
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    together = [done.token_ids for done in engine.generate(prompts, params)]
    alone = [engine.generate(prompt, params).token_ids for prompt in prompts]
    for each in zip(prompts, alone, together, strict=True):
        assert unexplained(engine, *each) is None
    if dtype == "float32":
        assert together == alone
    # A neighbour's answer is no tie.
    assert unexplained(engine, prompts[0], alone[0], alone[1]) is not None
