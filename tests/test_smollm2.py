"""The main job on real weights: SmolLM2-135M answers as transformers does, and far from position 0 too."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from conformance.golden import REPOSITORY_GOLDENS
from engine import Engine, PromptLookup, SamplingParams
from tests.engine.drafters import with_drafts

pytestmark = [
    pytest.mark.xdist_group("smollm2"),  # one worker: the model and its reference fill gigabytes
    pytest.mark.timeout(600),
]

PROMPT = "The capital of France is"
PROMPT_IDS = [504, 3575, 282, 4649, 314]
ROOT = REPOSITORY_GOLDENS.parent


@pytest.fixture(scope="module")
def model(asset: Callable[[str], Path]) -> Path:
    return asset("smollm2-135m")


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return Engine.load(model)


@pytest.fixture(scope="module")
def ask_oracle(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """transformers' float32 logits (eager, sdpa) and greedy tokens, from a process of its own."""

    def ask(ids: list[int], n: int) -> dict[str, Tensor]:
        out = tmp_path_factory.mktemp("oracle") / "answers.safetensors"
        text = ",".join(map(str, ids))
        command = [
            sys.executable,
            "-m",
            "conformance.oracle",
            "answers",
            str(model),
            text,
            str(n),
            str(out),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return load_file(out)

    return ask


def lockstep(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "conformance", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_the_answer_is_transformers_greedy_answer_token_for_token(
    ask_oracle: Callable[..., dict[str, Tensor]], model: Path
) -> None:
    result = lockstep("generate", str(model), PROMPT, "--max-tokens", "16", "--json")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["prompt_token_ids"] == PROMPT_IDS
    assert answer["text"].startswith(" Paris")
    reference = ask_oracle(PROMPT_IDS, 16)["greedy"].tolist()
    assert answer["token_ids"] == reference
    decoded = json.loads(
        lockstep("detokenize", str(model), *map(str, reference), "--skip-special", "--json").stdout
    )
    assert decoded["text"] == answer["text"]
    assert answer["usage"]["completion_tokens"] == len(reference)


def test_600_tokens_differ_from_transformers_no_more_than_its_own_kernels_do(
    ask_oracle: Callable[..., dict[str, Tensor]], model: Path, engine: Engine, tmp_path: Path
) -> None:
    """Wrong frequencies or chunk offsets show far from position 0."""
    ids = engine.tokenizer.encode((ROOT / "LICENSE").read_text(encoding="utf-8"))[:600]
    assert len(ids) == 600
    reference = ask_oracle(ids, 0)
    limit = 2 * float((reference["eager"] - reference["sdpa"]).abs().max())
    assert limit > 0
    # In chunks the kernels sum in another order, transformers' as ours: like is compared with like.
    for chunk, theirs in (([], "eager"), (["--chunk", "7"], "chunks")):
        out = tmp_path / "logits.safetensors"
        listed = ",".join(map(str, ids))
        result = lockstep("logits", str(model), "--ids", listed, "--out", str(out), *chunk)
        assert result.returncode == 0, result.stderr
        written = load_file(out)
        assert written["ids"].tolist() == ids
        assert written["logits"].dtype == torch.float32
        difference = float((written["logits"] - reference[theirs]).abs().max())
        assert difference <= limit, f"chunk {chunk}: {difference} > {limit}"


def test_streamed_text_is_the_whole_text_and_never_breaks_a_character(engine: Engine) -> None:
    params = SamplingParams(max_tokens=24, temperature=1.5, seed=3)
    pieces = list(engine.stream("An emoji and two Chinese characters:", params))
    whole = engine.generate("An emoji and two Chinese characters:", params)
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [t for piece in pieces for t in piece.token_ids] == whole.token_ids
    assert pieces[-1].finish_reason == whole.finish_reason


def test_a_chat_ends_at_the_models_own_end_of_turn(engine: Engine) -> None:
    ids = engine.tokenizer.encode_chat([{"role": "user", "content": "What is 2 + 2? One number."}])
    answer = engine.generate(ids, SamplingParams(max_tokens=40))
    assert answer.finish_reason == "stop"
    assert answer.token_ids[-1] in engine.eos_ids
    assert "<|im_end|>" not in answer.text


def test_the_spec_of_the_file_is_that_of_the_model(engine: Engine) -> None:
    attn = engine.spec.layers[0].attn
    assert (engine.spec.n_layers, engine.spec.dim, engine.spec.vocab_size) == (30, 576, 49152)
    assert (attn.n_heads, attn.n_kv_heads, attn.head_dim) == (9, 3, 64)
    decoder = engine.decoder
    assert decoder.logits.weight is decoder.embed.weight, "the tied head shares its storage"
    cache = engine.new_cache(10)
    assert cache.layers[0].stores["k"].data.shape == (1, 3, 10, 64), (
        "the cache has the key/value heads"
    )


# -- public case C05: prompts of different lengths side by side --------------------------------------


def test_c05_padded_and_batched_prompts_answer_as_they_do_alone(engine: Engine) -> None:
    prompts = [PROMPT_IDS, engine.tokenizer.encode("Once upon a time, there was"), [504]]
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    alone = [engine.generate(prompt, params).token_ids for prompt in prompts]
    assert [done.token_ids for done in engine.generate(prompts, params)] == alone
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    padded = engine.logits_of(ids, mask)
    for row, prompt, answer in zip(padded, prompts, alone, strict=True):
        assert torch.allclose(row[-len(prompt) :], engine.logits(prompt), rtol=0, atol=1e-3)
        assert int(row[-1].argmax()) == answer[0]


WORDS = (
    "sea tree house lamp stone river king book door hand milk salt wolf moon ship rope glass sand"
)
REPEATING = [f"{word} is a word. {word} is" for word in WORDS.split()]
REPEATING += ["Count: 1 2 3 4 5 6", "[0, 1, 0, 1, 0"]


def test_twenty_answers_with_drafts_are_those_without(model: Path) -> None:
    """In the mode in which bits do not hang on the shape of a pass: also at ties."""
    params = SamplingParams(max_tokens=10, ignore_eos=True)
    plain = Engine.load(model, batch_invariant=True)
    drafting = with_drafts(plain, PromptLookup())
    answers = [engine.generate(REPEATING, params) for engine in (plain, drafting)]
    assert len(REPEATING) == 20
    assert answers[0] == answers[1]
    assert drafting.counters.drafted > drafting.counters.accepted > 10
