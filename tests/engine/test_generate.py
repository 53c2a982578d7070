"""The loop: ids, ends, reasons, usage and log-probabilities; what cannot be served is refused first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.golden import REPOSITORY_GOLDENS
from conformance.strategies import ids
from engine import Engine, SamplingParams
from engine.errors import LockstepError, ModelFileError, RequestError
from engine.generate.checks import shown
from engine.generate.logprobs import top
from tests.engine import tiny

PROMPT = [3, 7, 11, 2, 9]


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A model without a tokenizer: vocabulary 50, context 64."""
    return Engine.load(tiny.save_folder(tmp_path_factory.mktemp("silent"), tiny.CASE))


def uncached(model: Engine, prompt: list[int], n: int) -> list[int]:
    """Greedy decoding as its definition says: the whole sequence again for every token."""
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(tiny.logits(model.decoder, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


# -- what comes out --------------------------------------------------------------------------------


@tiny.examples(15)
@given(prompt=ids(50, max_size=12), n=st.integers(1, 10))
def test_greedy_equals_recomputing_everything(silent: Engine, prompt: list[int], n: int) -> None:
    done = silent.generate(prompt, SamplingParams(max_tokens=n))
    assert done.token_ids == uncached(silent, prompt, n)
    assert (done.finish_reason, done.prompt_token_ids, done.text) == ("length", prompt, "")
    assert done.usage == {
        "prompt_tokens": len(prompt),
        "completion_tokens": n,
        "total_tokens": len(prompt) + n,
    }


def test_a_prompt_longer_than_a_prefill_chunk(
    silent: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = silent.generate(tiny.CASE_IDS, SamplingParams(max_tokens=5)).token_ids
    monkeypatch.setattr(silent, "step_tokens", 7)
    assert silent.generate(tiny.CASE_IDS, SamplingParams(max_tokens=5)).token_ids == want


def test_no_token_of_a_long_prompt_is_lost(tmp_path: Path) -> None:
    """The first token must still be seen by the last of 2,300, at its own position."""
    config = {**tiny.CASE, "max_position_embeddings": 2400, "num_hidden_layers": 1}
    engine = Engine.load(tiny.save_folder(tmp_path, config))
    ids = [n * 13 % 50 for n in range(2300)]
    done = engine.generate(ids, SamplingParams(max_tokens=1, logprobs=0, ignore_eos=True))
    whole = engine.logits(ids)[-1].log_softmax(-1)
    chosen = int(whole.argmax())
    assert done.token_ids == [chosen]
    assert done.logprobs is not None
    assert done.logprobs[0].logprob == pytest.approx(float(whole[chosen]), abs=1e-5)
    cut = engine.logits(ids[-1024:])[-1].log_softmax(-1)
    assert abs(float(cut[chosen] - whole[chosen])) > 1e-4, "the case no longer tells them apart"


def test_a_step_computes_one_position(silent: Engine) -> None:
    """Decoding that runs the whole sequence again would give the same tokens, slowly."""
    sizes: list[tuple[int, ...]] = []
    handle = silent.decoder.embed.register_forward_hook(
        lambda module, args, value: sizes.append(tuple(value.shape[:2]))
    )
    tokens = list(silent.stream(PROMPT, SamplingParams(max_tokens=4)))
    handle.remove()
    assert len(tokens) == 4
    assert sizes == [(1, 5), (1, 1), (1, 1), (1, 1)], "and nothing is computed after the last token"


def test_a_text_is_encoded_with_the_special_tokens_of_its_file(engine: Engine) -> None:
    done = engine.generate("The capital", SamplingParams(max_tokens=2))
    assert done.prompt_token_ids == engine.tokenizer.encode("The capital")
    assert done.text == engine.tokenizer.decode(done.token_ids, skip_special_tokens=True)


def test_a_list_of_prompts_gives_a_list_in_order(engine: Engine) -> None:
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    prompts = ["one", [1, 2, 3], "three"]
    done = engine.generate(prompts, params)
    assert done == [engine.generate(prompt, params) for prompt in prompts]
    assert engine.generate(["one"], params) == done[:1]
    assert engine.generate([], params) == []


def test_a_seed_repeats_a_whole_answer(silent: Engine) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=3)
    first = silent.generate(PROMPT, params)
    torch.manual_seed(99)
    assert silent.generate(PROMPT, params) == first
    assert silent.generate([PROMPT, PROMPT], params) == [first, first]
    other = SamplingParams(max_tokens=12, temperature=1.0, seed=4)
    assert silent.generate(PROMPT, other).token_ids != first.token_ids


def test_without_a_seed_answers_differ(silent: Engine) -> None:
    params = SamplingParams(max_tokens=20, temperature=1.5)
    assert len({tuple(silent.generate(PROMPT, params).token_ids) for _ in range(4)}) > 1


def test_the_document_is_plain_json(engine: Engine) -> None:
    done = engine.generate("a", SamplingParams(max_tokens=2, logprobs=1, ignore_eos=True))
    document = json.loads(json.dumps(done.to_dict(), allow_nan=False))
    assert list(document) == [
        "text",
        "token_ids",
        "prompt_token_ids",
        "finish_reason",
        "logprobs",
        "usage",
        "prompt_logprobs",
        "index",
        "score",
    ]
    assert list(document["logprobs"][0]) == ["token_id", "logprob", "top", "text_offset"]


# -- where it ends ---------------------------------------------------------------------------------


def test_a_stop_token_ends_the_answer_and_counts(silent: Engine) -> None:
    free = uncached(silent, PROMPT, 8)
    stop = free[3]
    n = free.index(stop) + 1
    for most in (n, n + 1, 60):
        done = silent.generate(PROMPT, SamplingParams(max_tokens=most, stop_token_ids=[stop]))
        assert (done.token_ids, done.finish_reason) == (free[:n], "stop")
        assert done.usage["completion_tokens"] == n
    short = silent.generate(PROMPT, SamplingParams(max_tokens=n - 1, stop_token_ids=[stop]))
    assert (short.token_ids, short.finish_reason) == (free[: n - 1], "length")


@pytest.mark.parametrize("max_tokens", [4, 5, 60])
def test_the_context_s_end_is_an_end(silent: Engine, max_tokens: int) -> None:
    """60 tokens in a context of 64 leave room for 4, however many are asked for."""
    prompt = (tiny.CASE_IDS * 3)[:60]
    params = SamplingParams(max_tokens=max_tokens)
    done = silent.generate(prompt, params)
    assert (len(done.token_ids), done.finish_reason) == (4, "length")
    assert [p.finish_reason for p in silent.stream(prompt, params)] == [None] * 3 + ["length"]


def test_ignore_eos_goes_on_but_not_past_a_stop_token(tmp_path: Path) -> None:
    model = Engine.load(tiny.save_folder(tmp_path, tiny.CASE))
    free = uncached(model, PROMPT, 8)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": free[2]}))
    model = Engine.load(tmp_path)
    n = free.index(free[2]) + 1
    assert model.generate(PROMPT, SamplingParams(max_tokens=8)).token_ids == free[:n]
    on = SamplingParams(max_tokens=8, ignore_eos=True)
    assert model.generate(PROMPT, on).token_ids == free
    both = SamplingParams(max_tokens=8, ignore_eos=True, stop_token_ids=[free[0]])
    assert model.generate(PROMPT, both).token_ids == free[:1]


@pytest.mark.parametrize("eos", ["11", [11, "49"], {"id": 11}, True, 1.5])
def test_an_end_token_that_is_no_id_is_refused_by_its_key(tmp_path: Path, eos: Any) -> None:
    tiny.save_folder(tmp_path, tiny.CASE)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    with pytest.raises(ModelFileError, match="eos_token_id must be an id or a list of ids"):
        Engine.load(tmp_path).generate(PROMPT)


# -- log-probabilities -----------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_logprobs_are_the_model_s_own_and_belong_to_the_chosen_token(
    silent: Engine, temperature: float
) -> None:
    """Not of the cut or tempered distribution, not the neighbour's, not always the best token's."""
    params = SamplingParams(
        max_tokens=8, temperature=temperature, top_k=5 if temperature else None, seed=1, logprobs=3
    )
    done = silent.generate(PROMPT, params)
    assert done.logprobs is not None
    whole = tiny.logits(silent.decoder, PROMPT + done.token_ids).log_softmax(-1)
    for n, (token, entry) in enumerate(zip(done.token_ids, done.logprobs, strict=True)):
        row = whole[len(PROMPT) - 1 + n]
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(float(row[token]), abs=1e-4)
        best = row.topk(3)
        assert [t for t, _ in entry.top] == best.indices.tolist()
        assert [p for _, p in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)
    if temperature:
        assert any(e.token_id != e.top[0][0] for e in done.logprobs)


@pytest.mark.parametrize(("n", "entries"), [(0, 0), (1, 1), (50, 50), (1000, 50)])
def test_as_many_top_tokens_as_asked_for_and_there_are(
    silent: Engine, n: int, entries: int
) -> None:
    done = silent.generate(PROMPT, SamplingParams(max_tokens=1, logprobs=n))
    assert done.logprobs is not None
    assert len(done.logprobs[0].top) == entries


def test_none_are_recorded_unless_asked_for(silent: Engine) -> None:
    assert silent.generate(PROMPT, SamplingParams(max_tokens=1)).logprobs is None


@given(
    row=st.lists(st.sampled_from([-2.0, -1.0, 0.0]), min_size=1, max_size=9), n=st.integers(1, 9)
)
def test_the_top_list_takes_the_lower_ids_of_equal_tokens(row: list[float], n: int) -> None:
    """As greedy choice does: otherwise the first of the list is not the token that was chosen."""
    n = min(n, len(row))
    found = top(torch.tensor(row), n)
    assert [t for t, _ in found] == sorted(range(len(row)), key=lambda i: (-row[i], i))[:n]


# -- what is refused, before anything is computed --------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([[]], "no tokens"),
        ([PROMPT, []], "no tokens"),
        ([50], "token id 50 is unknown: the model has ids 0 to 49"),
        ([1, -1], "token id -1 is unknown"),
        ([PROMPT, [10**20]], "token id 100000000000000000000 is unknown"),
        ([True, 1], "True is no token id"),
        ([1.0], "1.0 is no token id"),
        ([1, "a"], "'a' is no token id"),
        ([1, None], "None is no token id"),
        (None, "a text or a list of token ids, not a NoneType"),
        (7, "a text or a list of token ids, not a int"),
        (b"ab", "a text or a list of token ids, not a bytes"),
        (b"", "a text or a list of token ids, not a bytes"),
        (bytearray(b"ab"), "a text or a list of token ids, not a bytearray"),
        ([1, -(10**5000)], "a number of thousands of digits is unknown"),
        (torch.tensor([1, 2]), "a text or a list of token ids, not a Tensor"),
        ([1] * 64, "the prompt has 64 tokens and the model's context is 64"),
        ([1] * 10_000, "the prompt has 10000 tokens and the model's context is 64"),
        ([PROMPT, [1] * 65], "65 tokens .* 64"),
    ],
    ids=shown,
)
def test_a_prompt_that_cannot_be_served_costs_nothing(
    silent: Engine, monkeypatch: pytest.MonkeyPatch, prompt: Any, message: str
) -> None:
    monkeypatch.setattr(silent.decoder, "forward", lambda *a, **k: pytest.fail("computed"))
    monkeypatch.setattr(silent, "new_cache", lambda *a, **k: pytest.fail("allocated"))
    with pytest.raises(RequestError, match=message):
        silent.generate(prompt)
    one = prompt[-1] if isinstance(prompt, list) and isinstance(prompt[-1], list) else prompt
    with pytest.raises(RequestError, match=message):
        silent.stream(one)  # at the call, not at the first piece


@pytest.mark.parametrize("params", [7, {}, {"max_tokens": 3}, torch.tensor([1, 2])])
def test_params_of_another_type_are_refused(silent: Engine, params: Any) -> None:
    for ask in (silent.generate, silent.stream, silent.astream, silent.request):
        with pytest.raises(RequestError, match="params must be SamplingParams, got "):
            ask(PROMPT, params)


def test_a_prompt_one_short_of_the_context_gives_one_token(silent: Engine) -> None:
    assert len(silent.generate([1] * 63).token_ids) == 1


def test_a_text_without_tokens_is_refused(engine: Engine) -> None:
    if not engine.tokenizer.encode(""):
        with pytest.raises(RequestError, match="no tokens"):
            engine.generate("")
    else:
        assert len(engine.generate("", SamplingParams(max_tokens=1)).token_ids) == 1


def test_a_text_for_a_model_without_a_tokenizer_is_refused(silent: Engine) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        silent.generate("hello")
    with pytest.raises(RequestError, match=r"no tokenizer, .*stop_token_ids"):
        silent.stream(PROMPT, SamplingParams(stop="x"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "tpu"}, "tpu"),
        ({"device": "meta"}, "'meta' is not supported; there are cpu and cuda"),
        ({"device": "nonsense:x"}, "no device 'nonsense:x'"),
        ({"dtype": "int8"}, "no dtype 'int8'; there are float32, bfloat16, float16"),
        ({"backend": "flashy"}, "no attention backend 'flashy'"),
    ],
)
def test_loading_refuses_what_there_is_not(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Engine.load(REPOSITORY_GOLDENS / "llama-gqa", **arguments)


def test_a_vocabulary_that_no_file_could_hold_is_refused_by_shape(tmp_path: Path) -> None:
    """Nothing of the size that config.json claims is allocated before the tensors are compared."""
    tiny.save_folder(tmp_path, tiny.CASE)
    (tmp_path / "config.json").write_text(json.dumps({**tiny.CASE, "vocab_size": 2**31}))
    with pytest.raises(ModelFileError, match="wrong shapes"):
        Engine.load(tmp_path)


# -- logits and traces -----------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [None, 1, 5, 24, 100])
def test_logits_of_every_position(silent: Engine, chunk: int | None) -> None:
    got = silent.logits(tiny.CASE_IDS, chunk=chunk)
    assert (got.shape, got.dtype) == ((24, 50), torch.float32)
    assert (got - tiny.logits(silent.decoder, tiny.CASE_IDS)).abs().max() < 1e-4


def test_logits_of_a_full_context_and_not_more(silent: Engine) -> None:
    assert len(silent.logits([1] * 64)) == 64
    with pytest.raises(RequestError, match="65 tokens were given and the model's context is 64"):
        silent.logits([1] * 65)
    with pytest.raises(RequestError, match="at least 1 token, got 0"):
        silent.logits([1], chunk=0)
    with pytest.raises(RequestError, match="no tokens"):
        silent.logits([])


def test_a_trace_holds_every_probe(silent: Engine) -> None:
    trace = silent.trace(tiny.CASE_IDS)
    assert torch.equal(trace["logits"][0], silent.logits(tiny.CASE_IDS))
    assert trace["cache.layers.1.k"].shape == (1, 2, 24, 8)
    assert "layers.0.attn.weights" not in trace, "the default backend never forms them"


def test_logits_in_bfloat16_come_out_as_float32(tmp_path: Path) -> None:
    model = Engine.load(tiny.save_folder(tmp_path, tiny.CASE), dtype="bfloat16")
    assert model.logits(PROMPT).dtype == torch.float32
    assert model.new_cache(3).layers[0].stores["k"].data.dtype == torch.bfloat16
    assert len(model.generate(PROMPT, SamplingParams(max_tokens=3)).token_ids) == 3


def test_damaged_weights_end_in_an_error_not_in_an_answer(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    tiny.save_folder(tmp_path, tiny.CASE, tensors={name: torch.full((48, 32), torch.nan)})
    with pytest.raises(LockstepError, match="logits are not finite"):
        Engine.load(tmp_path).generate(PROMPT)
