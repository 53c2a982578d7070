"""What sampling is asked: rows of logits of any shape, tokens that came before, options in any company."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from conformance.decision_cases import Past, Row, Settings


@dataclass(frozen=True)
class Asked:
    row: Row
    past: Past
    settings: Settings


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    """Any of SamplingParams' options that change logits, of a vocabulary of 1 to 400 tokens.

    Tokens of the text and of words are few, so that they come again.
    """
    vocab = draw(st.integers(1, 12) | st.integers(1, 400))
    row = Row(
        "random",
        vocab=vocab,
        seed=draw(st.integers(0, 2**31)),
        spread=draw(st.sampled_from([1.0, 0.05, 3.0, 8.0])),  # 0.05 is flat, 8 is peaked
        step=draw(st.sampled_from([None, None, 0.25, 1.0])),
        masked=draw(st.just(0) | st.integers(0, vocab - 1)),
    )
    frequent = st.integers(0, min(vocab, 5) - 1)
    answer = draw(st.lists(frequent, max_size=8).map(tuple))
    past = Past(
        draw(st.lists(frequent, min_size=1, max_size=8).map(tuple)),
        answer,
        draw(st.lists(st.integers(0, vocab - 1), max_size=3, unique=True).map(tuple)),
        len(answer) + draw(st.integers(1, 3)),
    )
    return Asked(row, past, draw(_settings(st.integers(0, vocab - 1), frequent)))


def _settings(
    token: st.SearchStrategy[int], frequent: st.SearchStrategy[int]
) -> st.SearchStrategy[Mapping[str, Any]]:
    penalty = st.floats(-2, 2, width=32)
    # The reference adds biases that it has rounded to float32.
    bias = st.floats(-8, 8, width=32) | st.sampled_from([-100.0, float("-inf")])
    share = st.floats(0.01, 1)
    return st.fixed_dictionaries(
        {"temperature": st.sampled_from([1.0, 0.0]) | st.floats(0.05, 5)},
        optional={
            "logit_bias": st.dictionaries(token, bias, min_size=1, max_size=5),
            "repetition_penalty": st.floats(0.25, 4),
            "presence_penalty": penalty,
            "frequency_penalty": penalty,
            "no_repeat_ngram_size": st.integers(1, 5) | st.just(40),
            "bad_words_ids": st.lists(
                st.lists(frequent, min_size=1, max_size=3) | st.lists(token, min_size=1),
                min_size=1,
                max_size=4,
            ),
            "min_tokens": st.integers(0, 10),
            "forced_bos_token_id": token,
            "forced_eos_token_id": token,
            "top_k": st.integers(1, 20) | st.integers(1, 500),
            "top_p": share,
            "min_p": st.floats(0, 1),
            "typical_p": share,
            "epsilon_cutoff": st.floats(0, 0.99),
            "eta_cutoff": st.floats(0, 0.99),
        },
    )
