"""How a server holds up: requests are drawn as asked and sent when they are due, and figures are what came."""

from __future__ import annotations

import asyncio
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from conformance.bench.serving.client import Asked, ask
from conformance.bench.serving.load import Load, Step, drawn, play
from conformance.bench.serving.result import Figures, Served, percentile
from conformance.bench.serving.run import WantedServing, load_of, run_serving
from conformance.bench.serving.show import markdown, print_served
from engine.command import json_text
from engine.errors import LockstepError, RequestError
from tests.cli.command_line import TINY, Call, is_one_sentence
from tests.engine import tiny

IDS = list(range(5, 50))


def test_as_many_requests_are_drawn_as_the_rate_says_and_always_the_same() -> None:
    load = Load(seconds=20.0, prompt=(3, 9), answer=(2, 4))
    first, again, other = drawn(load, 2.5, IDS), drawn(load, 2.5, IDS), drawn(load, 2.4, IDS)
    assert first == again != other
    assert len(first) == 50
    due = [at for at, _ in first]
    assert due == sorted(due)
    assert 0 <= due[0] < 2 and 18 < due[-1] <= 20
    assert {len(document["prompt"]) for _, document in first} == set(range(3, 10))
    assert {document["max_tokens"] for _, document in first} == {2, 3, 4}
    assert all(set(document["prompt"]) <= set(IDS) for _, document in first)


@pytest.mark.parametrize(
    ("values", "share", "want"),
    [
        ([], 0.5, None),
        ([3.0], 0.99, 3.0),
        ([4.0, 1.0, 3.0, 2.0], 0.5, 2.0),
        (list(range(1, 101)), 0.99, 99),
        (list(range(1, 102)), 0.99, 100),
    ],
)
def test_a_percentile_is_one_of_the_values(
    values: list[float], share: float, want: float | None
) -> None:
    assert percentile(values, share) == want


def step(*asked: Asked, rate: float = 1.0) -> Step:
    return Step(rate, 10.0, list(asked), [(0.0, 2**30), (5.0, 2**31)])


def answered(due: float, *came: float) -> Asked:
    return Asked(due, list(came), len(came), came[-1], "done")


def test_figures_are_those_of_what_came() -> None:
    """Times to the first token count from when a request was due, not from when it could be sent."""
    figures = Figures.of(step(answered(100, 101, 101.1, 101.2), answered(101, 104, 104.3)))
    assert figures.requests == 2 and figures.outcomes == {"done": 2}
    assert (figures.first.p50, figures.first.p99) == (1, 3)
    assert figures.between.p50 == pytest.approx(0.1)
    assert figures.between.p99 == pytest.approx(0.3)
    assert figures.tokens_per_second == pytest.approx(5 / 10)
    assert figures.in_flight == pytest.approx((1.2 + 3.3) / 10)
    assert figures.most_in_flight == 2
    assert not figures.holds, "300 ms between two tokens"


def test_who_was_not_answered_counts() -> None:
    """Until the end of the time as one more in flight, and no promise is kept that leaves somebody out."""
    gone = Asked(102.0)
    figures = Figures.of(step(answered(100, 101, 101.1), gone))
    assert figures.outcomes == {"done": 1, "unfinished": 1}
    assert figures.in_flight == pytest.approx((1.1 + 8) / 10)
    assert not figures.holds
    assert Figures.of(step(answered(100, 101, 101.1))).holds


def served(*figures: Figures) -> Served:
    environment = dict.fromkeys(("date", "processor", "threads", "device", "torch", "python"), "x")
    return Served(environment, "model", Load(), {"eager": list(figures)})


def test_the_promise_is_kept_up_to_the_first_rate_that_breaks_it() -> None:
    good = [Figures.of(step(answered(0, 1, 1.1), rate=rate)) for rate in (1, 2, 8)]
    bad = Figures.of(step(answered(0, 1, 1.2), rate=4))
    said = served(*good, bad).promise("eager")
    assert "up to 2 requests a second" in said
    assert "not kept at any" in served(bad).promise("eager")


def test_a_terminal_and_markdown_show_every_rate() -> None:
    run = served(
        Figures.of(step(answered(0, 1, 1.1), rate=0.5)), Figures.of(step(Asked(0.0), rate=1))
    )
    shown = StringIO()
    print_served(run, Console(width=100, file=shown))
    assert max(map(len, shown.getvalue().splitlines())) <= 100
    page = markdown(run)
    for part in ("0.5", "1 of 1", "0 of 1", "1,000 ms", "100 ms", "1,024–2,048"):
        assert part in page and part in shown.getvalue()
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert len(table) == 4 and len({line.count("|") for line in table}) == 1
    json.loads(json_text(run.to_json()))


# -- the client ------------------------------------------------------------------------------------

TOKEN = b'data: {"choices": [{"text": "\xf0\x9f\xa6\x99", "token_ids": [7]}]}\n\n'
EMPTY = b'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\n'


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_the_client_notes_every_token_however_the_bytes_are_cut(cut: int) -> None:
    stream = 3 * TOKEN + EMPTY + b"data: [DONE]\n\n"

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for i in range(0, len(stream), cut):
            piece = stream[i : i + cut]
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        writer.write(b"0\r\n\r\n")
        writer.close()

    asked = listened(answers)
    assert (asked.outcome, asked.tokens, len(asked.came)) == ("done", 3, 3)
    assert len(asked.between) == 2 and all(gap >= 0 for gap in asked.between)
    assert asked.ended is not None and asked.ended >= asked.came[-1]


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (HEAD + b"\r\n" + TOKEN + b"data: [DONE]\n\n", "done"),
        (b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\n\r\n", "429"),
        (HEAD + b"\r\n" + TOKEN + b'data: {"error": {"message": "late"}}\n\n', "late"),
        (HEAD + b"\r\n" + TOKEN, "broken: the stream ends without an end"),
        (b"", "no answer"),
    ],
)
def test_the_client_says_what_became_of_a_request(answer: bytes, outcome: str) -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    assert listened(answers).outcome == outcome


def listened(answers: Any) -> Asked:
    async def play_both() -> Asked:
        asked = Asked(0.0)
        server = await asyncio.start_server(answers, "127.0.0.1", 0)
        async with server:
            await ask(server.sockets[0].getsockname()[1], {"prompt": [1]}, asked)
        return asked

    return asyncio.run(play_both())


def test_requests_are_sent_though_earlier_ones_are_not_answered() -> None:
    """An open loop: the third comes while the first still waits."""
    present = asyncio.Event()
    coming: list[int] = []

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        coming.append(1)
        if len(coming) == 3:
            present.set()
        await present.wait()
        writer.write(HEAD + b"\r\n" + TOKEN + b"data: [DONE]\n\n")
        writer.close()

    async def play_all() -> Step:
        server = await asyncio.start_server(answers, "127.0.0.1", 0)
        requests = [(0.01 * i, {"prompt": [i]}) for i in range(3)]
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await play(port, "x", requests, Step(1.0, 5.0, []), lambda: 7)

    played = asyncio.run(play_all())
    assert [one.outcome for one in played.asked] == ["done"] * 3
    assert played.memory[0][1] == 7


# -- a whole run -----------------------------------------------------------------------------------


def test_a_whole_run_of_a_tiny_model(tmp_path: Path) -> None:
    model = tiny.text_folder(tmp_path / "tiny")
    load = Load(rates=(20.0,), seconds=0.5, prompt=(2, 8), answer=(2, 6))
    wanted = WantedServing(str(model), step_tokens=[7], threads=1, load=load)
    run = run_serving(wanted, lambda message: None)
    (figures,) = run.forms["eager, 7 tokens a pass"]
    assert figures.requests == 10 and figures.outcomes == {"done": 10}
    assert figures.tokens_per_second > 0
    assert figures.memory[0][1] > 2**20
    (document,) = run.to_json()["forms"].values()
    assert document["rates"][0]["requests"] == 10


def test_a_model_that_cannot_be_served_is_an_error(tmp_path: Path) -> None:
    model = tiny.text_folder(tmp_path / "tiny")
    (model / "model.safetensors").write_bytes(b"nothing")
    load = Load(rates=(1.0,), prompt=(2, 8), answer=(2, 6))
    with pytest.raises(LockstepError, match="safetensors"):
        run_serving(WantedServing(str(model), load=load), lambda message: None)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--serving", "--growth"], "--growth does not go with --serving"),
        (["--serving", "--rates", "fast"], "rates are numbers"),
        (["--serving", "--rates", "1,0"], "above 0"),
        (["--serving", "--rates", "inf"], "above 0"),
        (["--serving", "--forms", "transformers"], "transformers is no server"),
        (["--serving"], "the model's context is 64"),
        (["--serving", "--step-tokens", "64,0"], "tokens of a pass are whole numbers above 0"),
        (["--rates", "1"], "are those of --serving"),
        (["--step-tokens", "64"], "are those of --serving"),
    ],
)
def test_what_does_not_go_together_is_refused(call: Call, options: list[str], word: str) -> None:
    status, out, err = call("bench", str(TINY), *options)
    assert (status, out) == (2, "")
    assert is_one_sentence(err) and word in err


def test_rates_that_are_listed_take_the_place_of_the_usual() -> None:
    assert load_of("0.5, 3", quick=False).rates == (0.5, 3.0)
    assert load_of(None, quick=True).seconds < load_of(None, quick=False).seconds
    with pytest.raises(RequestError):
        load_of("1,,2", quick=False)
