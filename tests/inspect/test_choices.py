"""The steps of sampling one by one, held against single processors in transformers' order."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine import SamplingParams
from engine.generate import processors
from engine.generate.processors import History, processed
from engine.inspect.choices import CANDIDATES, asked, candidates
from tests.engine.tiny import examples

PROMPT, ANSWER = (1, 2, 3, 1, 2), (4, 1, 2)
HISTORY = History(PROMPT, ANSWER, ends=frozenset({7, 9}), limit=20)
EVERYTHING = SamplingParams(
    logit_bias={4: 2.0, 5: -3.0},
    repetition_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=0.2,
    no_repeat_ngram_size=3,
    bad_words_ids=((2, 8), (12,)),
    min_tokens=5,
    temperature=0.7,
    top_k=20,
    top_p=0.9,
    min_p=0.01,
    typical_p=0.95,
    epsilon_cutoff=0.002,
    eta_cutoff=0.003,
)


def one_by_one(logits: torch.Tensor) -> list[torch.Tensor]:
    """What becomes of logits if each step of EVERYTHING is done by its own function."""
    p, found = processors, [logits]
    steps = (
        lambda x: p.logit_bias(x, {4: 2.0, 5: -3.0}),
        lambda x: p.repetition_penalty(x, HISTORY.tokens, 1.3),
        lambda x: p.count_penalties(x, ANSWER, 0.4, 0.2),
        lambda x: p.no_repeat_ngram(x, HISTORY.tokens, 3),
        lambda x: p.bad_words(x, HISTORY.tokens, ((2, 8), (12,)), HISTORY.ends),
        lambda x: p.banned(x, HISTORY.ends),
        lambda x: (x - x.max()) / 0.7,
        lambda x: p.top_k(x, 20),
        lambda x: p.top_p(x, 0.9),
        lambda x: p.min_p(x, 0.01),
        lambda x: p.typical_p(x, 0.95),
        lambda x: p.epsilon_cutoff(x, 0.002),
        lambda x: p.eta_cutoff(x, 0.003),
    )
    for step in steps:
        found.append(step(found[-1]))
    return found


def test_each_stage_is_what_the_steps_up_to_it_make() -> None:
    logits = torch.randn(60, generator=torch.Generator().manual_seed(5)).double() * 3
    found = candidates(logits, EVERYTHING, HISTORY)
    plain = one_by_one(logits)
    assert len(found["stages"]) == len(plain) == 14
    for stage, values in zip(found["stages"], plain, strict=True):
        shares = values.softmax(-1)[found["ids"]].tolist()
        assert stage["shares"] == [float(f"{share:.5g}") for share in shares]
        assert stage["left"] == int((values > -torch.inf).sum())
        plain_entropy = -sum(s * torch.log2(s) for s in values.softmax(-1) if s > 0)
        assert abs(stage["entropy"] - float(plain_entropy)) < 1e-3
    assert found["logits"] == [float(f"{x:.5g}") for x in logits[found["ids"]].tolist()]


def test_the_best_of_the_first_and_of_the_last_stage_are_there() -> None:
    logits = torch.linspace(0, 5, 60).double()
    found = candidates(logits, SamplingParams(logit_bias={3: 20.0}), HISTORY)
    assert found["ids"] == [*range(59, 59 - CANDIDATES, -1), 3]
    assert found["stages"][-1]["shares"][-1] > 0.99


def test_of_equals_the_lower_ids_come_first_and_none_that_is_banned() -> None:
    logits = torch.zeros(6).double()
    found = candidates(logits, SamplingParams(bad_words_ids=((2,),)), HISTORY)
    assert found["ids"] == [0, 1, 2, 3, 4, 5]
    assert [stage["left"] for stage in found["stages"]] == [6, 5]


def test_what_is_for_draws_alone_is_no_step_of_a_greedy_choice() -> None:
    greedy = SamplingParams(top_k=5, top_p=0.5, repetition_penalty=1.2)
    assert [name for name, *_ in asked(greedy)] == ["repetition penalty"]
    drawn = SamplingParams(top_k=5, temperature=1.0)
    assert [(name, value) for name, value, *_ in asked(drawn)] == [
        ("temperature", "1.0"),
        ("top-k", "5"),
    ]


@given(st.data())
@examples(20)
def test_the_last_stage_is_what_a_token_is_chosen_from(data: st.DataObject) -> None:
    """Whatever is asked for: the steps leave nothing out and add nothing."""
    params = SamplingParams(
        temperature=data.draw(st.sampled_from((0.0, 0.5, 1.5))),
        top_k=data.draw(st.sampled_from((None, 4))),
        top_p=data.draw(st.sampled_from((None, 0.8))),
        repetition_penalty=data.draw(st.sampled_from((1.0, 1.2))),
        min_tokens=data.draw(st.sampled_from((0, 9))),
        forced_bos_token_id=data.draw(st.sampled_from((None, 3))),
        forced_eos_token_id=data.draw(st.sampled_from((None, 3))),
        no_repeat_ngram_size=data.draw(st.sampled_from((0, 2))),
    )
    limit = data.draw(st.sampled_from((4, 20)))
    history = History(PROMPT, ANSWER, HISTORY.ends, limit)
    logits = torch.randn(30, generator=torch.Generator().manual_seed(1)).double()
    last = candidates(logits, params, history)
    shares = processed(logits, params, history).softmax(-1)[last["ids"]].tolist()
    assert last["stages"][-1]["shares"] == [float(f"{share:.5g}") for share in shares]
