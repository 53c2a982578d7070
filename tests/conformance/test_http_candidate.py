"""A server is judged by what it says, level by level, and a spoilt one fails where it is spoilt."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.candidate import Level
from conformance.check import run_check
from conformance.golden import REPOSITORY_GOLDENS, Golden
from conformance.http_candidate import candidates
from conformance.report import Report
from engine.errors import LockstepError
from engine.generate import Engine
from tests.conformance.stub_server import Spoil, serving

CANDIDATE = "conformance.http_candidate:candidates"
TINY = REPOSITORY_GOLDENS / "llama-tied"
REAL = REPOSITORY_GOLDENS / "smollm2-135m"


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of this machine's has no business between a test and its own server."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("LOCKSTEP_API_KEY", raising=False)


@pytest.fixture(scope="module")
def tiny() -> Engine:
    return Engine.load(TINY)


@pytest.fixture(scope="module")
def real(asset: Callable[[str], Path]) -> Engine:
    return Engine.load(asset("smollm2-135m"))


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Report]:
    def run(engine: Engine, folder: Path, level: str = "L5", **server: Any) -> Report:
        with serving(engine, **server) as url:
            monkeypatch.setenv("LOCKSTEP_URL", url)
            return run_check([str(folder)], level=level, candidate=CANDIDATE)

    return run


def test_a_fair_server_conforms_as_deep_as_it_goes(check: Callable[..., Report]) -> None:
    """And what it does not show is named."""
    report = check(Engine.load(TINY), TINY)
    assert report.conforms
    assert [t.probes for t in report.trials] == [1, 1]
    assert any("is of level L2: no logits, operations, cache" in note for note in report.notes)


def test_only_what_the_server_said_is_compared(tiny: Engine, monkeypatch: Any) -> None:
    """Five of a vocabulary, at the last position alone: the rest is unsaid and no zero."""
    golden = Golden(TINY)
    shown = {}

    def tap(probe: str, value: Any) -> Any:
        shown[probe] = value
        return value

    with serving(tiny) as url:
        monkeypatch.setenv("LOCKSTEP_URL", url)
        (server,) = candidates(TINY, "cpu", "float32")
        server.begin(len(golden.ids))
        server.step(golden.ids[:7], tap)
    assert server.level == Level.L2
    logprobs = shown["logprobs"]
    assert tuple(logprobs.shape) == (1, 7, golden.truth("logits", 0, 1).shape[-1])
    assert logprobs.isfinite().sum(-1).tolist() == [[0, 0, 0, 0, 0, 0, 5]]
    truth = golden.truth("logprobs", 6, 7)[0]
    said = logprobs[0, -1].isfinite()
    assert (logprobs[0, -1][said] - truth[said]).abs().max() < 1e-4
    assert int(shown["next_id"]) == int(truth.argmax())


def shifted(request: dict[str, Any], choice: dict[str, Any]) -> None:
    """Log probabilities of other logits: a temperature that was applied twice, say."""
    if "logprobs" in choice:
        best = choice["logprobs"]["top_logprobs"][0]
        choice["logprobs"]["top_logprobs"][0] = {k: v - 0.01 for k, v in best.items()}


def another_token(request: dict[str, Any], choice: dict[str, Any]) -> None:
    """The second choice after any longer prompt, and no log probabilities that would tell."""
    best = choice.pop("logprobs", None)
    if best is not None and len(request["prompt"]) > 1:
        choice["token_ids"][0] = int(list(best["top_logprobs"][0])[1].removeprefix("token_id:"))


def no_logprobs(request: dict[str, Any], choice: dict[str, Any]) -> None:
    choice.pop("logprobs", None)


@pytest.mark.parametrize(
    ("spoil", "level", "fails"),
    [
        (shifted, "L2", True),
        (shifted, "L1", False),
        (another_token, "L1", True),
        (no_logprobs, "L2", False),
    ],
)
def test_a_spoilt_server_fails_at_its_level_and_not_above(
    tiny: Engine, check: Callable[..., Report], spoil: Spoil, level: str, fails: bool
) -> None:
    report = check(tiny, TINY, level, spoil=spoil)
    assert report.conforms is not fails
    assert len(report.trials) == 2


def test_text_alone_is_judged_where_a_server_knows_no_ids(
    real: Engine, check: Callable[..., Report]
) -> None:
    report = check(real, REAL, ids=False)
    assert report.conforms
    assert report.trials == []
    assert report.texts[0].answer is not None and report.texts[0].answer.startswith(" Paris")
    assert any("is of level L0: no ids, log probabilities" in note for note in report.notes)


def test_text_that_loses_its_leading_space_fails(
    real: Engine, check: Callable[..., Report]
) -> None:
    """What a server that decodes each token by itself, or strips its answer, does."""

    def stripped(request: dict[str, Any], choice: dict[str, Any]) -> None:
        choice["text"] = choice["text"].lstrip()

    report = check(real, REAL, ids=False, spoil=stripped)
    (found,) = report.texts[0].findings
    assert found.got.startswith("Paris")
    assert not report.conforms


def test_a_server_of_text_has_nothing_to_say_of_a_model_without(
    tiny: Engine, check: Callable[..., Report]
) -> None:
    with pytest.raises(LockstepError, match=r"nothing was checked.*it has no text"):
        check(tiny, TINY, ids=False)


@pytest.mark.parametrize("status", [401, 500])
def test_an_answer_that_is_an_error_is_one(
    tiny: Engine, check: Callable[..., Report], status: int
) -> None:
    with pytest.raises(LockstepError, match=rf"completions answers {status}: .*out of order"):
        check(tiny, TINY, status=status)


def test_a_server_that_goes_away_is_an_error_and_no_wrong_answer(
    tiny: Engine, check: Callable[..., Report]
) -> None:
    def gone(request: dict[str, Any], choice: dict[str, Any]) -> None:
        if len(request["prompt"]) > 5:
            raise ConnectionResetError("gone")  # closes the connection without an answer

    with pytest.raises(LockstepError, match="cannot be reached, see LOCKSTEP_URL"):
        check(tiny, TINY, spoil=gone)


def test_a_server_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers
        monkeypatch.setenv("LOCKSTEP_URL", f"http://127.0.0.1:{taken.getsockname()[1]}/v1")
        with pytest.raises(LockstepError, match="cannot be reached, see LOCKSTEP_URL"):
            run_check([str(TINY)], candidate=CANDIDATE)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "file:///etc/hosts"])
def test_an_address_that_is_none_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_URL", url)
    with pytest.raises(LockstepError, match="set LOCKSTEP_URL to a server's base"):
        run_check([str(TINY)], candidate=CANDIDATE)
