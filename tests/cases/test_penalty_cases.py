"""Public cases of penalties and of temperatures side by side: G02, and G04 in a batch.

`test_engine_cases` has the rest of G04.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine import Engine, SamplingParams
from engine.cache import ContiguousCache
from engine.generate.processors import History, penalised
from engine.generate.scheduler import Scheduler
from tests.engine import tiny
from tests.engine.tiny import one_thread  # noqa: F401  (applies to this module)

LOGITS = [2.0, -1.0, 0.5, 3.0, -2.0]


def after(prompt: list[int], answer: list[int], **asked: float) -> list[float]:
    params = SamplingParams(**asked)  # type: ignore[arg-type]
    row = penalised(torch.tensor(LOGITS), params, History(prompt, answer))
    return [float(value) for value in row]


# -- G02: which tokens a penalty counts ------------------------------------------------------------


@pytest.mark.parametrize("n_prompt", range(5))
def test_g02_a_repetition_penalty_counts_each_token_of_prompt_and_answer_once(
    n_prompt: int,
) -> None:
    """Wherever the prompt ends; a negative logit is multiplied, so that its token gets less likely."""
    tokens = [0, 1, 0, 3]
    row = after(tokens[:n_prompt], tokens[n_prompt:], repetition_penalty=1.5)
    assert row == pytest.approx([1.3333333, -1.5, 0.5, 2.0, -2.0])


def test_g02_presence_and_frequency_count_the_answer_alone_and_how_often() -> None:
    row = after([0, 0, 1], [3, 3, 1], frequency_penalty=0.5, presence_penalty=0.4)
    assert row == pytest.approx([2.0, -1.9, 0.5, 1.6, -2.0])


# -- G04: temperature 0 beside others --------------------------------------------------------------


def test_g04_a_greedy_row_is_the_same_among_rows_that_are_drawn(tmp_path: Path) -> None:
    """And nothing warns of a division by 0, which would be an error here."""
    engine = Engine.load(tiny.save_folder(tmp_path, tiny.CASE))
    prompts = [[3, 7, 11, 2, 9], [5, 6], [8, 8, 1], [4]]
    temperatures = [0.8, 0.0, 0.8, 0.8]
    requests = [
        engine.request(prompt, SamplingParams(max_tokens=8, temperature=t, seed=3, ignore_eos=True))
        for prompt, t in zip(prompts, temperatures, strict=True)
    ]
    scheduler = Scheduler(engine.decoder, ContiguousCache(engine.spec, 16, batch=4), step_tokens=32)
    for request in requests:
        scheduler.submit(request)
    while not scheduler.idle:
        scheduler.step()
    alone = engine.generate(prompts[1], SamplingParams(max_tokens=8, ignore_eos=True))
    assert requests[1].tokens[2:] == alone.token_ids
