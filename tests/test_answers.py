"""Real models far from position 0: logits and greedy answers are transformers', as the goldens say them.

The whole of it is `lockstep check golden/answers-...`, in each dtype; here every kind of question is asked once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from conformance.answers import Answers, check_answers, check_rows, moves
from conformance.cases.answers import ANSWER, ANSWERS_CASES, PROMPTS
from conformance.golden import REPOSITORY_GOLDENS
from engine import Engine, SamplingParams
from engine.backends import backend
from engine.decoder import Decoder
from engine.spec import GroupedQueryAttention

pytestmark = [
    pytest.mark.xdist_group("answers"),  # one worker: the model fills a gigabyte
    pytest.mark.timeout(600),
]

GOLDENS = {case.model: Answers(REPOSITORY_GOLDENS / case.name) for case in ANSWERS_CASES}
GEMMA = GOLDENS["gemma3-270m"]


@pytest.fixture(scope="module")
def gemma(asset: Callable[[str], Path]) -> Engine:
    return Engine.load(asset("gemma3-270m"))


def with_window(engine: Engine, window: int) -> Engine:
    """The same weights in a decoder whose windows, where it has any, are of another size."""
    layers = []
    for layer in engine.spec.layers:
        assert isinstance(layer.attn, GroupedQueryAttention)
        attn = replace(layer.attn, window=layer.attn.window and window)
        layers.append(replace(layer, attn=attn))
    spec = replace(engine.spec, layers=tuple(layers))
    decoder = Decoder(spec, backend(None, spec)).eval()
    decoder.load_state_dict(engine.decoder.state_dict(), assign=True)
    return Engine(decoder, engine.checkpoint, "cpu", "float32")


def test_goldens_hold_long_prompts_and_answers_and_the_noise_of_two_dtypes() -> None:
    for golden in GOLDENS.values():
        assert sum(file.stat().st_size for file in golden.folder.iterdir()) < 1_000_000
        assert golden.dtypes == ["bfloat16", "float32"]
        assert [len(golden.prompt(n)) for n in PROMPTS] == [1, 600, 3000]
        assert {len(golden.greedy(n)) for n in PROMPTS} == {ANSWER}
        assert (golden.tensors["rows.difference"] > 0).sum() > 2900, "kernels that differ"


def test_each_of_3000_positions_is_within_twice_the_difference_of_the_references_kernels(
    gemma: Engine,
) -> None:
    assert check_rows(gemma, GEMMA, 3000) == []


def test_the_same_of_a_model_without_windows(asset: Callable[[str], Path]) -> None:
    engine = Engine.load(asset("smollm2-135m"))
    assert check_rows(engine, GOLDENS["smollm2-135m"], 3000) == []


@pytest.mark.parametrize("window", [511, 513])
def test_a_window_of_one_more_or_less_is_noticed(gemma: Engine, window: int) -> None:
    """600 tokens suffice to see it, and the right window has nothing against it."""
    assert check_rows(with_window(gemma, 512), GEMMA, 600) == []
    (finding,) = check_rows(with_window(gemma, window), GEMMA, 600)
    assert finding.stage == "logits"
    assert f"at position {min(window, 512)}:" in finding.text, "the first that it concerns"


def test_a_greedy_answer_is_transformers_token_for_token(gemma: Engine) -> None:
    params = SamplingParams(max_tokens=ANSWER, ignore_eos=True)
    answer = gemma.generate(GEMMA.prompt(1), params)
    assert answer.token_ids == GEMMA.greedy(1)


def test_an_answer_in_bfloat16_is_as_near_as_the_references_own_bfloat16(
    asset: Callable[[str], Path],
) -> None:
    engine = Engine.load(asset("smollm2-135m"), dtype="bfloat16")
    heard = check_answers(engine, GOLDENS["smollm2-135m"], "bfloat16", [600])
    assert heard.findings == []
    assert heard.tokens == ANSWER


def test_a_step_that_is_wrong_is_found(gemma: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = gemma.decode

    def broken(token: int, cache: object) -> Tensor:
        logits = decode(token, cache).clone()  # type: ignore[arg-type]
        logits[logits.argmax()] -= 1e-2
        return logits

    monkeypatch.setattr(gemma, "decode", broken)
    heard = check_answers(gemma, GEMMA, "float32", [1])
    assert [finding.stage for finding in heard.findings] == ["generate"]
    assert heard.tokens == 2


def test_another_token_is_a_fault_unless_its_margin_is_within_the_noise(
    gemma: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kept logits are right in both; another token that is not kept at all is chosen."""
    prefill = gemma.prefill
    best = GEMMA.tensors["answer.1.ids"][0]
    other = next(token for token in range(100) if token not in best)

    def broken(ids: object, cache: object) -> Tensor:
        logits = prefill(ids, cache).clone()  # type: ignore[arg-type]
        logits[other] = logits.max() + 1
        return logits

    monkeypatch.setattr(gemma, "prefill", broken)
    heard = check_answers(gemma, GEMMA, "float32", [1])
    assert [finding.got for finding in heard.findings] == [other]


def test_a_golden_made_again_may_move_within_its_noise_and_holds_the_same_ids() -> None:
    before = GEMMA.tensors
    noise = float(before["float32.noise"].max())
    assert list(moves(before, before)) == []
    near = before | {"rows.logits": before["rows.logits"] + noise}
    assert list(moves(before, near)) == []
    far = before | {"rows.logits": before["rows.logits"] + 10 * noise, "ids": before["ids"] + 1}
    assert [name for name, _ in moves(before, far)] == ["ids", "rows.logits"]
    less = {name: tensor for name, tensor in before.items() if name != "random"}
    assert [name for name, _ in moves(before, less)] == ["random"]
