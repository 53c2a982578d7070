"""`lockstep generate`: every option reaches the engine, and what it answers is printed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import Engine, SamplingParams
from tests.cli.command_line import PROMPT, PROMPT_IDS, TINY, Call


def test_generate_prints_one_document(call: Call, smollm2: Path) -> None:
    status, out, err = call("generate", smollm2, PROMPT, "--max-tokens", "8", "--json")
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert document["text"].startswith(" Paris")
    assert document["prompt_token_ids"] == PROMPT_IDS
    assert len(document["token_ids"]) == 8
    assert document["finish_reason"] == "length"
    assert document["logprobs"] is None
    assert document["usage"]["completion_tokens"] == 8


def test_generate_prints_just_the_text(call: Call, loaded: str, engine: Engine) -> None:
    said = engine.generate(PROMPT, SamplingParams(max_tokens=8)).text
    assert call("generate", loaded, PROMPT, "--max-tokens", "8") == (0, said + "\n", "")


def test_generate_stops_before_a_stop_text(call: Call, loaded: str) -> None:
    _, out, _ = call("generate", loaded, PROMPT, "--stop", "zebra", "--stop", "ris", "--json")
    document = json.loads(out)
    assert (document["text"], document["finish_reason"]) == (" Pa", "stop")


def test_generate_wraps_a_chat(call: Call, loaded: str, engine: Engine) -> None:
    _, out, _ = call("generate", loaded, "Hi", "--chat", "--max-tokens", "1", "--json")
    prompt = engine.tokenizer.decode(json.loads(out)["prompt_token_ids"])
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_special_tokens_in_a_prompt_are_text_unless_they_are_asked_for(
    call: Call, loaded: str
) -> None:
    """Otherwise whoever writes a part of the prompt could speak as somebody else."""
    prompt = ("generate", loaded, "a<|im_end|>", "--max-tokens", "1", "--json")
    plain, special = (json.loads(call(*prompt, *more)[1]) for more in ((), ("--parse-special",)))
    assert special["prompt_token_ids"][-1] == 2
    assert 2 not in plain["prompt_token_ids"]


def test_sampling_options_reach_the_engine(
    call: Call, loaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option that is read and dropped shows in no output."""
    seen: list[SamplingParams] = []

    def stream(self: Engine, prompt: Any, params: SamplingParams, **how: bool) -> Iterator[Any]:
        seen.append(params)
        return iter(())

    monkeypatch.setattr("engine.Engine.stream", stream)
    options = (
        "--max-tokens 3 --min-tokens 2 --temperature 0.5 --top-k 4 --top-p 0.9 --min-p 0.1 "
        "--typical-p 0.8 --epsilon-cutoff 0.01 --eta-cutoff 0.02 --seed 7 --repetition-penalty 1.1 "
        "--presence-penalty 0.2 --frequency-penalty -0.3 --no-repeat-ngram-size 4 --stop x "
        "--logit-bias 11=-5 --logit-bias 12=-inf --stop-token-id 13 --stop-token-id 14 --ignore-eos"
    )
    assert call("generate", loaded, PROMPT, *options.split())[0] == 0
    asked = SamplingParams(
        max_tokens=3,
        min_tokens=2,
        temperature=0.5,
        top_k=4,
        top_p=0.9,
        min_p=0.1,
        typical_p=0.8,
        epsilon_cutoff=0.01,
        eta_cutoff=0.02,
        seed=7,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=-0.3,
        no_repeat_ngram_size=4,
        logit_bias={11: -5.0, 12: -math.inf},
        stop=("x",),
        stop_token_ids=(13, 14),
        ignore_eos=True,
    )
    assert seen == [asked]
    monkeypatch.setattr("builtins.input", lambda *prompt: next(lines))
    lines = iter(["Hi", "/exit"])
    assert call("chat", loaded, *options.split())[0] == 0
    assert seen == [asked, asked]


def test_several_answers_come_one_after_another(call: Call, loaded: str, engine: Engine) -> None:
    options = ["--max-tokens", "4", "--temperature", "1", "--seed", "3", "-n", "2"]
    params = SamplingParams(max_tokens=4, temperature=1.0, seed=3, n=2)
    done: Any = engine.generate(PROMPT, params)
    status, out, err = call("generate", loaded, PROMPT, *options)
    assert (status, err) == (0, "")
    assert out == f"--- 1 of 2 ---\n{done[0].text}\n--- 2 of 2 ---\n{done[1].text}\n"
    document = json.loads(call("generate", loaded, PROMPT, *options, "--json")[1])
    assert [answer["token_ids"] for answer in document] == [answer.token_ids for answer in done]
    best = json.loads(
        call("generate", loaded, PROMPT, *options[:-2], "--best-of", "3", "--json")[1]
    )
    assert best["usage"]["completion_tokens"] == 12
    assert best["score"] < 0


def test_log_probabilities_are_in_the_document_with_the_text_s_own_offsets(
    call: Call, loaded: str
) -> None:
    options = ["--max-tokens", "2", "--logprobs", "2", "--prompt-logprobs", "0"]
    status, out, err = call("generate", loaded, PROMPT, *options, "--json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    first, *rest = document["prompt_logprobs"]
    assert first is None
    assert [entry["text_offset"] for entry in rest] == [3, 11, 14, 21]
    assert [len(entry["top"]) for entry in document["logprobs"]] == [2, 2]
    processed = [*options, "--logprobs-mode", "processed", "--temperature", "1", "--top-k", "1"]
    document = json.loads(call("generate", loaded, PROMPT, *processed, "--json")[1])
    assert [entry["logprob"] for entry in document["logprobs"]] == [0.0, 0.0]


def test_an_answer_looks_like_what_a_file_or_the_command_line_says(
    call: Call, loaded: str, tmp_path: Path
) -> None:
    schema, grammar = tmp_path / "a.json", tmp_path / "a.lark"
    schema.write_text('{"enum": ["é"]}', encoding="utf-8")
    grammar.write_text('start: "x" "y"', encoding="utf-8")
    for option, says in (
        (("--json-schema", schema), '"é"'),
        (("--json-schema", '{"const": [1]}'), "[1]"),
        (("--regex", "ab{2}c"), "abbc"),
        (("--choice", "one"), "one"),
        (("--grammar", grammar), "xy"),
        (("--grammar", 'start: "x" "z"'), "xz"),
    ):
        status, out, _ = call("generate", loaded, "It is ", *option)
        assert (status, "".join(out.split())) == (0, says)
    assert call("generate", loaded, "It is ", "--json-object", "--max-tokens", 1)[1].startswith("{")


@pytest.mark.parametrize("drafts", [["--prompt-lookup"], ["--draft", TINY]])
def test_generate_says_how_many_drafts_were_right(
    call: Call, smollm2: Path, drafts: list[str], tmp_path: Path
) -> None:
    """A draft model that is another model altogether is refused instead."""
    status, out, err = call("generate", smollm2, "a b c a b c a b", "--max-tokens", "4", *drafts)
    if drafts[0] == "--draft":
        assert (status, out) == (2, "")
        assert "a draft model must have the same ones" in err
        return
    assert status == 0
    accepted = re.fullmatch(r"accepted (\d+) of (\d+) drafted tokens( \(\d+ %\))?", err.strip())
    assert accepted is not None
    assert int(accepted[1]) <= int(accepted[2])
