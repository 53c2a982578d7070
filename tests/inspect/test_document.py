"""What is gathered of a prompt, held against the trace, the answer and plain twins of every figure."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from conformance.golden import REPOSITORY_GOLDENS
from engine import BeamSearch, Choice, Engine, SamplingParams
from engine.command import json_text
from engine.errors import RequestError
from engine.inspect import inspected
from engine.inspect.attention import HeadMaps, block_size
from engine.inspect.formulas import formulas
from engine.inspect.operations import place
from engine.inspect.twin import twin
from tests.cli.command_line import Call
from tests.inspect.conftest import TEXT

IDS = [i * 7 % 41 for i in range(21)]
DRAWN = SamplingParams(max_tokens=6, temperature=0.9, top_k=20, seed=3, ignore_eos=True)


def printed(weights: Tensor) -> list[list[int]]:
    """A map's rows as they are written down: ten-thousandths, up to the row's own column."""
    rows = (weights.double() * 10_000).round().int().tolist()
    return [row[: i + 1] for i, row in enumerate(rows)]


# -- attention -------------------------------------------------------------------------------------


def test_weights_are_those_of_the_trace_command(
    call: Call, document: dict[str, Any], speaking: Path, tmp_path: Path
) -> None:
    out = tmp_path / "trace.safetensors"
    ids = ",".join(str(token["id"]) for token in document["prompt"]["tokens"])
    status, _, err = call("trace", speaking, "--ids", ids, "--out", out)
    assert status == 0, err
    trace = load_file(out)
    maps = document["attention"]["layers"]
    assert document["attention"]["width"] == 1
    assert len(maps) == 2
    for layer, shown in enumerate(maps):
        weights = trace[f"layers.{layer}.attn.weights"][0]
        assert len(shown["heads"]) == len(weights) == 4
        for head, seen in enumerate(shown["heads"]):
            rows = printed(weights[head])
            assert seen["largest"][: len(rows)] == rows


def test_rows_of_steps_are_those_of_the_whole_text(
    engine: Engine, document: dict[str, Any]
) -> None:
    """What a step looks at from the cache is what its row would be if all were read at once."""
    ids = [token["id"] for token in document["prompt"]["tokens"]]
    ids += [row["id"] for row in document["answer"][:-1]]
    eager = Engine.load(engine.checkpoint.path, backend="eager")
    trace = eager.trace(ids)
    assert document["attention"]["rows"] == len(ids)
    for layer, shown in enumerate(document["attention"]["layers"]):
        for head, seen in enumerate(shown["heads"]):
            rows = printed(trace[f"layers.{layer}.attn.weights"][0, head])
            off = [
                abs(a - b)
                for r, s in zip(rows, seen["largest"], strict=True)
                for a, b in zip(r, s, strict=True)
            ]
            assert max(off) <= 1


@pytest.mark.parametrize(("tokens", "width"), [(21, 1), (21, 4), (20, 5), (5, 8)])
@pytest.mark.parametrize("window", [None, 6])
def test_blocks_hold_the_largest_and_the_mean_of_what_can_be_seen(
    tokens: int, width: int, window: int | None
) -> None:
    """Rows that come in chunks, with as many keys as a ring still holds."""
    q, k = torch.arange(tokens)[:, None], torch.arange(tokens)
    seen = (k <= q) & (k > q - window if window else k > -1)
    torch.manual_seed(0)
    weights = torch.randn(3, tokens, tokens).masked_fill(~seen, -torch.inf).softmax(-1)
    maps = HeadMaps(3, tokens, width, window, sinks=False)
    cuts = [cut for cut in (0, 4, 5, 12, 13) if cut < tokens]
    for first, last in pairwise([*cuts, tokens]):
        oldest = 0 if window is None else max(0, last - window - (last - first) + 1)
        maps.add(weights[:, first:last, oldest:last])
    shown = maps.document()
    for head, found in enumerate(shown["heads"]):
        for r, row in enumerate(found["largest"]):
            for c, largest in enumerate(row):
                square = (slice(r * width, (r + 1) * width), slice(c * width, (c + 1) * width))
                block, visible = weights[head][square], seen[square]
                assert largest == round(float(block.max().double()) * 10_000)
                mean = float(block.double().sum()) / max(int(visible.sum()), 1)
                assert width == 1 or abs(found["mean"][r][c] - mean * 10_000) <= 0.51


def test_habits_are_means_over_rows_that_have_a_choice() -> None:
    torch.manual_seed(1)
    weights = torch.randn(2, 7, 7).tril().masked_fill(torch.ones(7, 7).triu(1) > 0, -torch.inf)
    weights = weights.softmax(-1) * 0.8  # the rest is a sink's
    maps = HeadMaps(2, 7, 3, None, sinks=True)
    maps.add(weights)
    for head, found in enumerate(maps.document()["heads"]):
        rows = weights[head].double().tolist()
        plain = [-sum(w * math.log2(w) for w in row if w) for row in rows]
        means = {
            "entropy": sum(plain[1:]) / 6,
            "first": sum(row[0] for row in rows[1:]) / 6,
            "self": sum(rows[i][i] for i in range(1, 7)) / 6,
            "previous": sum(rows[i][i - 1] for i in range(1, 7)) / 6,
            "distance": sum(
                w * (i - j) for i, row in enumerate(rows[1:], 1) for j, w in enumerate(row)
            )
            / 6,
            "sink": 0.2,
        }
        assert {name: found[name] for name in means} == pytest.approx(means, abs=1e-4)
        blocks = [plain[0:3], plain[3:6], plain[6:7]]
        assert found["entropies"] == pytest.approx([sum(b) / len(b) for b in blocks], abs=1e-3)


def test_maps_are_exact_until_they_would_not_fit() -> None:
    assert block_size(64, heads=270) == 1
    assert block_size(65, heads=270) == 2
    assert block_size(608, heads=270) == 10
    side = math.ceil(608 / block_size(608, heads=270))
    assert side * side * 270 <= 1_200_000
    assert block_size(608, heads=10**6) == 76  # never less than eight rows


def test_windows_and_sinks_are_named(windowed: Engine) -> None:
    found = inspected(windowed, IDS, SamplingParams(max_tokens=3))
    layers = found["attention"]["layers"]
    assert [layer["window"] for layer in layers] == [8, None, 8]
    assert not any(layer["sinks"] for layer in layers)
    outside = layers[0]["heads"][0]["largest"][20][:13]
    assert outside == [0] * 13  # of 21 keys the last eight are seen
    assert any(layers[1]["heads"][0]["largest"][20][:13])


# -- the answer and its choices --------------------------------------------------------------------


@pytest.mark.parametrize("params", [SamplingParams(max_tokens=6, ignore_eos=True), DRAWN])
def test_the_answer_is_the_one_that_generate_gives(engine: Engine, params: SamplingParams) -> None:
    done = engine.generate(TEXT, params)
    found = inspected(engine, TEXT, params)
    assert [row["id"] for row in found["answer"]] == done.token_ids
    assert "".join(row["out"] for row in found["answer"]) == done.text
    assert [choice["chosen"] for choice in found["choices"]] == done.token_ids
    assert found["answer"][-1]["finish"] == done.finish_reason
    assert found["params"]["temperature"] == params.temperature


def test_the_last_stage_is_what_the_token_was_chosen_from(engine: Engine) -> None:
    """What came so far counts: penalties look at the answer, too."""
    params = SamplingParams(
        max_tokens=6, ignore_eos=True, presence_penalty=5.0, logprobs=3, logprobs_mode="processed"
    )
    done = engine.generate(TEXT, params)
    found = inspected(engine, TEXT, params)
    assert done.logprobs is not None
    for entry, choice in zip(done.logprobs, found["choices"], strict=True):
        shares = dict(zip(choice["ids"], choice["stages"][-1]["shares"], strict=True))
        for token, logprob in entry.top:
            assert shares[token] == pytest.approx(math.exp(logprob), rel=1e-3)


def test_an_answer_ends_at_an_end_token(engine: Engine) -> None:
    first = engine.generate(TEXT, SamplingParams(max_tokens=1)).token_ids[0]
    found = inspected(engine, TEXT, SamplingParams(stop_token_ids=[first]))
    (row,) = found["answer"]
    assert (row["end"], row["finish"], row["out"]) == (True, "stop", "")


def test_the_last_layer_says_what_the_model_says(engine: Engine, document: dict[str, Any]) -> None:
    ids = [token["id"] for token in document["prompt"]["tokens"]]
    shares = engine.logits(ids)[-1].double().softmax(-1)
    choice = document["choices"][0]
    last = choice["lens"][-1]
    assert len(choice["lens"]) == engine.spec.n_layers + 1
    assert last["ids"] == shares.topk(5).indices.tolist()
    assert last["shares"] == pytest.approx(shares.topk(5).values.tolist(), rel=1e-3)
    assert last["rank"] == 0
    stage = choice["stages"][0]
    assert stage["shares"] == pytest.approx(shares[choice["ids"]].tolist(), rel=1e-3)
    assert stage["left"] == engine.spec.vocab_size


def test_the_lens_reads_each_layer_by_the_last_norm_and_the_head(
    engine: Engine, document: dict[str, Any]
) -> None:
    ids = [token["id"] for token in document["prompt"]["tokens"]]
    eager = Engine.load(engine.checkpoint.path, backend="eager")
    trace = eager.trace(ids)
    for n, name in enumerate(["embed", "layers.0.out", "layers.1.out"]):
        with torch.inference_mode():
            logits = eager.decoder.logits(eager.decoder.final_norm(trace[name]))[0, -1]
        assert document["choices"][0]["lens"][n]["ids"] == logits.topk(5).indices.tolist()


# -- operations ------------------------------------------------------------------------------------


def test_every_probe_stands_there_in_order_with_its_shape(
    engine: Engine, document: dict[str, Any]
) -> None:
    ids = [token["id"] for token in document["prompt"]["tokens"]]
    trace = Engine.load(engine.checkpoint.path, backend="eager").trace(ids)
    seen = document["operations"]["passes"]["prompt"]
    rows = [(None, row) for row in seen["before"]]
    for layer, kind in enumerate(seen["layers"]):
        rows += [(layer, row) for row in seen["kinds"][kind]]
    rows += [(None, row) for row in seen["behind"]]
    shown = [((layer, row["path"]), row["shape"]) for layer, row in rows if row["kind"] == "probe"]
    expected = [(place(name), list(value.shape)) for name, value in trace.items()]
    ends = {(None, "final_norm"), (None, "logits")}  # an answer needs them of one position
    assert [path for path, _ in shown] == [path for path, _ in expected]
    assert [one for one in shown if one[0] not in ends] == [e for e in expected if e[0] not in ends]
    assert all(size[1] == 1 for path, size in shown if path in ends)


def test_views_share_their_bytes_and_are_named(document: dict[str, Any]) -> None:
    seen = document["operations"]["passes"]["prompt"]
    rows = [row for row in seen["kinds"][0] if row["path"] == "attn.q" and row["kind"] != "probe"]
    assert [(row["name"], row["kind"]) for row in rows] == [
        ("t", "view"),
        ("view", "view"),
        ("mm", "new"),
        ("_unsafe_view", "view"),
        ("view", "view"),
        ("transpose", "view"),
    ]
    assert rows[2]["reads"] == ["attn.q.weight"]
    assert rows[2]["bytes"] == 4 * math.prod(rows[2]["shape"])
    writes = [row for row in seen["kinds"][0] if row["kind"] == "in place"]
    assert [(row["path"], row["name"]) for row in writes] == [("cache", "copy_")] * 2


def test_what_is_computed_for_a_probe_is_said_to_be_for_it(document: dict[str, Any]) -> None:
    rows = document["operations"]["passes"]["step"]["kinds"][-1]
    paths = {row["name"]: row["path"] for row in rows if row["kind"] == "new"}
    assert paths["_softmax"] == "attn.weights"
    assert paths["masked_fill"] == "attn.scores"
    assert paths["silu"] == "mlp.act"
    assert not {"attn", "mlp", ""} & {row["path"] for row in rows}


def test_parameters_are_counted_once(engine: Engine, document: dict[str, Any]) -> None:
    parts = document["model"]["parameters"]
    held = list(engine.decoder.parameters())
    assert sum(part["numbers"] for part in parts.values()) == sum(p.numel() for p in held)
    assert sum(part["bytes"] for part in parts.values()) == sum(p.nbytes for p in held)
    layer = engine.decoder.layers[0].mlp
    assert parts["feed-forward"]["numbers"] == 2 * sum(p.numel() for p in layer.parameters())


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_a_head_with_a_table_of_its_own_is_not_called_tied(quantization: str | None) -> None:
    loaded = Engine.load(REPOSITORY_GOLDENS / "llama-gqa", quantization=quantization)
    found = inspected(loaded, IDS, SamplingParams(max_tokens=1))
    assert not found["model"]["tied"]
    assert found["model"]["parameters"]["LM head"]["bytes"] > 0
    assert "a table of its own" in found["operations"]["formulas"]["logits"][2]


def test_every_operation_of_every_block_has_a_formula(
    document: dict[str, Any], windowed: Engine
) -> None:
    for found in (document, inspected(windowed, IDS, SamplingParams(max_tokens=2))):
        passes = found["operations"]["passes"].values()
        paths = {row["path"] for seen in passes for kind in seen["kinds"] for row in kind}
        assert paths <= found["operations"]["formulas"].keys()


def test_a_window_of_some_layers_is_said_to_be_theirs(windowed: Engine) -> None:
    _, _, words = formulas(windowed.spec)["attn.scores"]
    assert words.endswith("−∞ outside of the past, or of the last 8 tokens in layers with a window")


# -- beside others ---------------------------------------------------------------------------------


def test_a_twin_shares_weights_and_no_hooks(engine: Engine) -> None:
    watched = twin(engine.decoder, engine.decoder.layers[0].attn.attend, "cpu")
    pairs = zip(engine.decoder.named_parameters(), watched.named_parameters(), strict=True)
    assert all(a == b and x.data_ptr() == y.data_ptr() for (a, x), (b, y) in pairs)
    called: list[object] = []
    for module in watched.modules():
        module.register_forward_hook(lambda *given: called.append(given))
    before = engine.generate(TEXT, DRAWN).token_ids
    assert not called
    inspected(engine, TEXT, DRAWN)
    assert engine.generate(TEXT, DRAWN).token_ids == before
    assert not any(module._forward_hooks for module in engine.decoder.modules())


def test_the_document_is_json_and_names_every_token(document: dict[str, Any]) -> None:
    again = json.loads(json_text(document))
    assert again["format"] == 1
    spelled = again["spellings"]
    named = {choice["chosen"] for choice in document["choices"]}
    for choice in document["choices"]:
        named |= {*choice["ids"], *(token for each in choice["lens"] for token in each["ids"])}
    named |= {token["id"] for token in document["prompt"]["tokens"]}
    assert {str(token) for token in named} <= spelled.keys()


@pytest.mark.parametrize(
    ("params", "said"),
    [
        (SamplingParams(n=2), "one answer"),
        (SamplingParams(beams=BeamSearch(2)), "one answer"),
        (SamplingParams(structured=Choice(["a"])), "structure"),
    ],
)
def test_what_is_not_one_plain_answer_is_refused(
    engine: Engine, params: SamplingParams, said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        inspected(engine, TEXT, params)


@pytest.mark.parametrize(
    "options",
    [
        {"cache_dtype": "int8"},
        {"cache": "paged", "cache_tokens": 64},
        {"quantization": "int8"},
        {"batch_invariant": True},
    ],
    ids="+".join,
)
def test_however_a_model_is_loaded_the_answer_is_its_own(options: dict[str, Any]) -> None:
    loaded = Engine.load(REPOSITORY_GOLDENS / "llama-gqa", **options)
    params = SamplingParams(max_tokens=4)
    found = inspected(loaded, IDS, params)
    assert [row["id"] for row in found["answer"]] == loaded.generate(IDS, params).token_ids
    assert found["cache"]["kind"] == options.get("cache", "ring")


def test_a_compiled_decoder_is_watched_without_its_graphs() -> None:
    loaded = Engine.load(REPOSITORY_GOLDENS / "llama-gqa", compiled=True)
    plain = Engine.load(REPOSITORY_GOLDENS / "llama-gqa")
    params = SamplingParams(max_tokens=4)
    found = inspected(loaded, IDS, params)
    assert [row["id"] for row in found["answer"]] == plain.generate(IDS, params).token_ids
    assert loaded.decoder.compiled_steps == 0
