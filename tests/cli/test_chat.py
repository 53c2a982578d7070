"""`lockstep chat`: a conversation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine import Engine, SamplingParams, Tokenizer
from engine.errors import RequestError
from engine.generate import Piece
from tests.cli.command_line import Call


def test_chat_remembers_until_reset(
    call: Call, loaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn must send the whole conversation, and /reset only the system message."""
    sent: list[Any] = []

    def spy(self: Tokenizer, messages: list[dict[str, str]], **extra: Any) -> list[int]:
        sent.append([(m["role"], m["content"]) for m in messages])
        return [1]

    lines = iter(["Hi", "", "And you?", "/reset", "Bye", "/exit"])
    monkeypatch.setattr("engine.Tokenizer.encode_chat", spy)
    monkeypatch.setattr("builtins.input", lambda *prompt: next(lines))
    answers = iter(["one", "two", "three"])
    monkeypatch.setattr(
        "engine.Engine.stream",
        lambda self, ids, params: iter(
            [Piece(next(answers), (1,), None), Piece("!", (2,), "stop")]
        ),
    )
    status, out, _ = call("chat", loaded, "--system", "Be brief.")
    assert (status, out) == (0, "one!\ntwo!\nthree!\n")
    system = ("system", "Be brief.")
    assert sent == [
        [system, ("user", "Hi")],
        [system, ("user", "Hi"), ("assistant", "one!"), ("user", "And you?")],
        [system, ("user", "Bye")],
    ]


def test_chat_survives_a_long_message_and_an_interrupted_answer(
    call: Call, loaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C cuts an answer short; a message without room is refused; neither ends the chat."""
    lines = iter(["word " * 10_000, "Hi"])

    def interrupted(self: Engine, ids: list[int], params: SamplingParams) -> Iterator[Piece]:
        if len(ids) > 8192:
            raise RequestError("the prompt has too many tokens")
        yield Piece("cut", (1,), None)
        raise KeyboardInterrupt

    def ask(*prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", ask)
    monkeypatch.setattr("engine.Engine.stream", interrupted)
    status, out, err = call("chat", loaded)
    assert (status, out) == (0, "cut\n")
    assert "too many tokens, or /reset" in err


def test_chat_answers_with_a_real_model(
    call: Call, loaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["What is the capital of France?", "/exit"])
    monkeypatch.setattr("builtins.input", lambda *prompt: next(lines))
    status, out, _ = call("chat", loaded, "--max-tokens", "12")
    assert status == 0
    assert "Paris" in out
