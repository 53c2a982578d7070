"""Public cases of the themes cache, numerics and generation that concern the llama family.

C01 (contiguous), C06, C09, E01, E07, G01, G04, G06, H09. The model is the cases' own: drawn from
N(0, spread) under seed 0, which reproduces the ids that transformers gave for case G01.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conformance.golden import REPOSITORY_GOLDENS
from engine import Engine, SamplingParams
from engine.cache import ContiguousCache, Group, Part
from engine.errors import RequestError
from engine.generate.processors import processed
from engine.generate.sample import Sampler
from engine.layers import RMSNorm
from engine.probe import attached
from engine.spec import RMSNorm as Norm
from engine.tokenizer import Tokenizer
from tests.engine import tiny
from tests.engine.tiny import one_thread  # noqa: F401  (applies to this module)

PROMPT = [3, 7, 11, 2, 9]
GREEDY = [43, 40, 36, 11, 43, 32, 16, 46, 5, 5, 7, 11]  # transformers 5.24, without an end token


# -- C01: later chunks of a prefill ----------------------------------------------------------------


class Restarting(ContiguousCache):
    """The fault: positions of a later chunk count from 0 again."""

    def extend(self, parts: Sequence[Part], read_as: int | None = None) -> tuple[Group, ...]:
        (group,) = super().extend(parts, read_as)
        return (replace(group, q_pos=group.q_pos - group.q_pos[0, 0]),)


class OffByOne(ContiguousCache):
    """The fault: positions of a later chunk are one too large."""

    def extend(self, parts: Sequence[Part], read_as: int | None = None) -> tuple[Group, ...]:
        (group,) = super().extend(parts, read_as)
        return (replace(group, q_pos=group.q_pos + (group.q_pos[0, 0] > 0)),)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("chunk", [1, 3, 7, 23])
def test_c01_chunked_prefill_equals_one_shot(backend: str, chunk: int) -> None:
    model = tiny.decoder(tiny.CASE, backend, draw=tiny.case_draw(0.2))
    steps = [len(part) for part in torch.arange(24).split(chunk)]
    one_shot = tiny.logits(model, tiny.CASE_IDS)
    assert (tiny.logits(model, tiny.CASE_IDS, steps) - one_shot).abs().max() <= 1e-5


@pytest.mark.parametrize("fault", [Restarting, OffByOne])
@pytest.mark.parametrize("chunk", [1, 3, 7, 23])
def test_c01_wrong_positions_would_show(fault: type[ContiguousCache], chunk: int) -> None:
    """Every chunk size of the test above catches both faults, by far."""
    model = tiny.decoder(tiny.CASE, draw=tiny.case_draw(0.3))
    steps = [len(part) for part in torch.arange(24).split(chunk)]
    wrong = tiny.logits(model, tiny.CASE_IDS, steps, fault(model.spec, 24))
    assert (wrong - tiny.logits(model, tiny.CASE_IDS)).abs().max() > 0.5


# -- C06: nothing of an earlier request is left ----------------------------------------------------


def test_c06_an_earlier_request_changes_nothing(tmp_path: Path) -> None:
    """A, then B that shares its beginning, then A again, and once more after an abandoned A."""
    folder = tiny.save_folder(tmp_path, tiny.CASE, draw=tiny.case_draw(0.3))
    used = Engine.load(folder)
    a, b = [*tiny.CASE_IDS, 1, 2, 3, 4], [*tiny.CASE_IDS[:3], 9, 9, 9, 9, 9]
    params = SamplingParams(max_tokens=20, logprobs=3)
    fresh_a, fresh_b = (Engine.load(folder).generate(prompt, params) for prompt in (a, b))
    assert [used.generate(prompt, params) for prompt in (a, b, a)] == [fresh_a, fresh_b, fresh_a]
    abandoned = used.stream(a, params)
    next(abandoned)
    del abandoned
    assert [used.generate(prompt, params) for prompt in (b, a)] == [fresh_b, fresh_a]


# -- C09 and H05: the end of the context -----------------------------------------------------------


@pytest.fixture(scope="module")
def sixteen(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A context of 16 tokens."""
    config = {**tiny.CASE, "max_position_embeddings": 16}
    return Engine.load(tiny.save_folder(tmp_path_factory.mktemp("sixteen"), config))


def test_c09_a_prompt_beyond_the_context_is_refused_with_both_numbers(sixteen: Engine) -> None:
    with pytest.raises(RequestError, match=r"20 tokens .* context is 16"):
        sixteen.generate([1] * 20)


def test_c09_an_answer_ends_where_the_context_does(sixteen: Engine) -> None:
    done = sixteen.generate([1] * 12, SamplingParams(max_tokens=10))
    assert (len(done.token_ids), done.finish_reason) == (4, "length")


@pytest.mark.parametrize(("prompt", "room"), [(63, 1), (64, 0), (65, 0), (10_000, 0), (60, 4)])
def test_h05_nothing_is_cut_off_and_both_ways_agree(tmp_path: Path, prompt: int, room: int) -> None:
    engine = Engine.load(tiny.save_folder(tmp_path, tiny.CASE))
    params = SamplingParams(max_tokens=10)
    if room:
        done = engine.generate([1] * prompt, params)
        assert (len(done.token_ids), done.finish_reason) == (room, "length")
        pieces = list(engine.stream([1] * prompt, params))
        assert [t for piece in pieces for t in piece.token_ids] == done.token_ids
        assert pieces[-1].finish_reason == "length"
    else:
        for ask in (engine.generate, engine.stream):
            with pytest.raises(RequestError, match=f"{prompt} tokens .* context is 64"):
                ask([1] * prompt, params)
    assert engine.generate([1, 2], params).token_ids, "the engine goes on"


# -- E01: query heads and their key/value head -----------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_e01_heads_are_repeated_per_group_not_tiled(backend: str) -> None:
    """With the values of key/value head 1 at zero, query heads 2 and 3 say nothing, 0 and 1 do."""
    model = tiny.decoder({**tiny.CASE, "num_hidden_layers": 1}, backend, draw=tiny.case_draw(0.2))
    model.layers[0].attn.v.weight[8:16] = 0
    seen: dict[str, Tensor] = {}

    def keep(probe: str, value: Tensor) -> Tensor:
        seen[probe] = value
        return value

    with attached(keep, ("", model)):
        tiny.logits(model, tiny.CASE_IDS)
    norms = seen["layers.0.attn.context"][0, :, -1].norm(dim=-1).tolist()
    assert norms[2:] == [0.0, 0.0]
    assert min(norms[:2]) > 0.1


# -- E07: the norm ---------------------------------------------------------------------------------


def norm(weight: list[float], eps: float, dtype: torch.dtype) -> RMSNorm:
    made = RMSNorm(len(weight), Norm(eps))
    made.weight = nn.Parameter(torch.tensor(weight, dtype=dtype), requires_grad=False)
    return made


def test_e07_the_norm_casts_back_before_it_multiplies() -> None:
    """Multiplying in float32 and casting last gives 0.248046875 first."""
    weight = [1.2109375, 0.333984375, 0.77734375, 2.0625]
    x = torch.tensor([0.3, -1.7, 2.2, 0.9], dtype=torch.bfloat16)
    got = norm(weight, 1e-5, torch.bfloat16)(x)
    assert got.dtype == torch.bfloat16
    assert got.tolist() == [0.2470703125, -0.38671875, 1.1640625, 1.2578125]


@pytest.mark.parametrize(("eps", "value"), [(1e-5, 0.301511377), (1e-6, 0.707106769)])
def test_e07_eps_is_inside_the_root_and_from_the_config(eps: float, value: float) -> None:
    got = norm([1.0] * 8, eps, torch.float32)(torch.full((8,), 1e-3))
    assert got.tolist() == pytest.approx([value] * 8, abs=1e-7)


# -- G01 and G06: where a generation ends, and how it is counted -----------------------------------


def model_folder(folder: Path, config: Any = None, generation: Any = None) -> Path:
    tiny.save_folder(folder, {**tiny.CASE, **(config or {})}, draw=tiny.case_draw(0.3))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def test_g01_without_an_end_token_the_answer_is_transformers_own(tmp_path: Path) -> None:
    done = Engine.load(model_folder(tmp_path)).generate(PROMPT, SamplingParams(max_tokens=12))
    assert (done.token_ids, done.finish_reason) == (GREEDY, "length")


@pytest.mark.parametrize(
    ("config", "generation"),
    [
        ({}, {"eos_token_id": [11, 49]}),
        ({}, {"eos_token_id": [49, 11]}),
        ({}, {"eos_token_id": 11}),
        ({"eos_token_id": 11}, None),
        ({"eos_token_id": [49, 11]}, {"eos_token_id": None}),
        ({"eos_token_id": 11}, {"eos_token_id": 49}),  # the union, not the first that is found
        ({"eos_token_id": 49}, {"eos_token_id": 11}),
    ],
)
def test_g01_every_spelling_of_the_end_token_ends_the_answer(
    tmp_path: Path, config: dict[str, Any], generation: dict[str, Any] | None
) -> None:
    engine = Engine.load(model_folder(tmp_path, config, generation))
    done = engine.generate(PROMPT, SamplingParams(max_tokens=12))
    assert (done.token_ids, done.finish_reason) == (GREEDY[:4], "stop")
    assert done.usage == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
    on = engine.generate(PROMPT, SamplingParams(max_tokens=12, ignore_eos=True))
    assert (on.token_ids, on.finish_reason) == (GREEDY, "length")


def test_g01_an_end_token_that_only_the_tokenizer_names_ends_the_answer(tmp_path: Path) -> None:
    """And its text does not leak. The model says one token for ever: the tokenizer's end token."""
    folder = tiny.text_folder(tmp_path)
    (end,) = Tokenizer.load(folder).eos_ids
    config = json.loads((folder / "config.json").read_text())
    assert "eos_token_id" not in config
    # Zero matrices leave the embedding as it is, so every token answers with the end token.
    tensors = {
        f"model.layers.{i}.{name}.weight": torch.zeros(32, width)
        for i in range(2)
        for name, width in (("self_attn.o_proj", 32), ("mlp.down_proj", 48))
    }
    head = torch.zeros(config["vocab_size"], 32)
    head[end] = 1.0
    tensors |= {
        "lm_head.weight": head,
        "model.embed_tokens.weight": torch.ones(config["vocab_size"], 32),
        "model.norm.weight": torch.ones(32),
    }
    tiny.save_folder(folder, config, tensors=tensors)
    engine = Engine.load(folder)
    done = engine.generate("x", SamplingParams(max_tokens=6))
    assert (done.token_ids, done.finish_reason, done.text) == ([end], "stop", "")
    on = engine.generate("x", SamplingParams(max_tokens=6, ignore_eos=True))
    assert (on.token_ids, on.finish_reason) == ([end] * 6, "length")


@pytest.mark.parametrize(
    ("max_tokens", "completed", "reason"),
    [(1, 1, "length"), (3, 3, "length"), (4, 4, "stop"), (5, 4, "stop")],
)
def test_g06_usage_and_reason_when_the_end_token_is_the_last_allowed(
    tmp_path: Path, max_tokens: int, completed: int, reason: str
) -> None:
    engine = Engine.load(model_folder(tmp_path, generation={"eos_token_id": 11}))
    done = engine.generate(PROMPT, SamplingParams(max_tokens=max_tokens))
    assert (done.token_ids, done.finish_reason) == (GREEDY[:completed], reason)
    assert done.usage["completion_tokens"] == completed
    assert done.usage["total_tokens"] == 5 + completed
    pieces = list(engine.stream(PROMPT, SamplingParams(max_tokens=max_tokens)))
    assert [t for piece in pieces for t in piece.token_ids] == done.token_ids
    assert pieces[-1].finish_reason == reason


def test_g06_no_tokens_at_all_is_refused() -> None:
    with pytest.raises(RequestError, match="max_tokens must be a whole number of at least 1"):
        SamplingParams(max_tokens=0)


# -- G04: the edges of sampling --------------------------------------------------------------------


@pytest.mark.parametrize("top_k", [9999999, 0, -1])
def test_g04_top_k_beyond_the_vocabulary_or_off_cuts_nothing(tmp_path: Path, top_k: int) -> None:
    engine = Engine.load(model_folder(tmp_path))
    plain = SamplingParams(max_tokens=8, temperature=0.8, seed=7)
    same = SamplingParams(max_tokens=8, temperature=0.8, seed=7, top_k=top_k)
    assert engine.generate(PROMPT, same) == engine.generate(PROMPT, plain)


def test_g04_greedy_ties_go_to_the_lowest_id() -> None:
    choose = Sampler(SamplingParams(temperature=0.0))
    assert {choose(torch.tensor([1.0, 3.0, 3.0])) for _ in range(100)} == {1}


def test_g04_top_k_keeps_all_that_tie_at_its_end() -> None:
    """As transformers does: 3 of these are kept by a top_k of 2."""
    row = processed(torch.tensor([1.0, 1, 1, 0]), SamplingParams(temperature=1.0, top_k=2))
    assert row.isfinite().tolist() == [True, True, True, False]


# -- H09: what JSON cannot hold ------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_h09_logprobs_of_a_narrow_choice_are_finite(temperature: float) -> None:
    """What the cuts remove would be -inf in their distribution, which JSON cannot hold."""
    engine = Engine.load(REPOSITORY_GOLDENS / "llama-gqa")
    params = SamplingParams(max_tokens=3, temperature=temperature, top_k=1, logprobs=5)
    done = engine.generate(PROMPT, params)
    assert done.logprobs is not None
    assert all(math.isfinite(p) for entry in done.logprobs for _, p in entry.top)
    json.dumps(done.to_dict(), allow_nan=False)
