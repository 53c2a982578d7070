"""`lockstep memory` says beforehand what is allocated then; `generate` and `logits` take a kind of cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import engine.footprint as module
from conformance.golden import REPOSITORY_GOLDENS
from engine import Engine
from engine.footprint import footprint
from tests.cli.command_line import Call

WINDOWS = REPOSITORY_GOLDENS / "gemma3"  # layers with a window of 8 and without


@pytest.mark.parametrize("cache", ["ring", "contiguous", "paged"])
@pytest.mark.parametrize("cache_dtype", [None, "int8"])
@pytest.mark.parametrize("name", ["gemma3", "deepseek-v3"])
def test_it_is_what_the_engine_allocates(name: str, cache: str, cache_dtype: str | None) -> None:
    folder = REPOSITORY_GOLDENS / name
    said = footprint(folder, 40, 3, cache=cache, cache_dtype=cache_dtype, dtype="bfloat16")
    engine = Engine.load(folder, dtype="bfloat16", cache=cache, cache_dtype=cache_dtype)
    made = engine.new_cache(40, 3, longest_pass=engine.step_tokens)
    assert said.cache == sum(store.data.nbytes for store in made.stores())
    assert said.weights == sum(p.nbytes for p in engine.decoder.parameters())
    assert sum(kind.layers for kind in said.kinds) == len(engine.spec.layers)


@pytest.mark.parametrize("name", ["mixtral-tied", "gpt2", "gpt-oss-mxfp4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_are_tied_or_decoded_or_kept_wide_are_counted_as_they_lie_in_memory(
    name: str, dtype: str
) -> None:
    folder = REPOSITORY_GOLDENS / name
    held = sum(p.nbytes for p in Engine.load(folder, dtype=dtype).decoder.parameters())
    assert footprint(folder, 8, dtype=dtype).weights == held


def test_a_window_is_no_longer_than_it_needs_to_be_and_int8_takes_a_byte_a_number() -> None:
    """A ring has the window and a pass; 20 numbers of float32, or as bytes with a scale of four."""
    plain, small = (footprint(WINDOWS, 10**4, cache_dtype=d) for d in (None, "int8"))
    for kind in (*plain.kinds, *small.kinds):
        expected = 10**4 if kind.window is None else kind.window - 1 + Engine.step_tokens
        assert kind.tokens == expected
        assert kind.bytes == kind.tokens * kind.per_token
    width = Engine.load(WINDOWS).spec.layers[0].attn.cached["k"][1]
    assert small.cache * 4 * width == plain.cache * (width + 4)


def test_the_table_and_the_document_say_the_same(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "free_bytes", lambda device: 2**20)
    status, out, err = call("memory", WINDOWS, "--tokens", "64", "--batch", "2", "--json")
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert document["total"] == document["weights"] + document["cache"]
    assert document["cache"] == sum(kind["bytes"] for kind in document["caches"])
    assert (document["free"], document["fits"]) == (2**20, document["total"] <= 2**20)
    status, out, err = call("memory", WINDOWS, "--tokens", "64", "--batch", "2")
    assert (status, err) == (0, "")
    for kind in document["caches"]:
        assert f"{kind['tokens']:,} tokens of {kind['per_token']:,} bytes" in out
    assert "with a window of 8" in out
    assert out.splitlines()[-1] == "fits"


def test_what_does_not_fit_is_said_here_and_refused_when_it_is_tried(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "free_bytes", lambda device: 10**4)
    status, out, _ = call("memory", WINDOWS)
    assert (status, out.splitlines()[-1]) == (0, "does not fit")
    monkeypatch.setattr("engine.cache.cache.free_bytes", lambda device: 10**3)
    status, out, err = call("logits", WINDOWS, "--ids", "1,2", "--out", tmp_path / "never")
    assert (status, out, list(tmp_path.iterdir())) == (2, "", [])
    assert "needs" in err and "are free" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--cache", "round"], "there are contiguous, ring, paged"),
        (["--cache-dtype", "int4"], "there is int8"),
        (["--dtype", "float8"], "float8"),
        (["--device", "abacus"], "abacus"),
        (["--tokens", "0"], "at least 1 token"),
        (["--batch", "0"], "at least 1 token"),
        (["--batch", str(10**15)], "too many; ask for"),
    ],
)
def test_a_fault_of_the_request_is_one_sentence_and_status_2(
    call: Call, argv: list[str], says: str
) -> None:
    status, out, err = call("memory", WINDOWS, *argv)
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1
    assert says in err


@pytest.mark.parametrize("cache", ["ring", "contiguous", "paged"])
def test_logits_come_from_any_cache_and_int8_moves_them_a_little(
    call: Call, tmp_path: Path, cache: str
) -> None:
    ids = ",".join(str(n) for n in range(1, 24))
    ways = {
        "exact": [],
        "kind": ["--cache", cache],
        "int8": ["--cache", cache, "--cache-dtype", "int8"],
    }
    got = {}
    for name, options in ways.items():
        status, _, err = call(
            "logits", WINDOWS, "--ids", ids, "--out", tmp_path / name, "--chunk", "5", *options
        )
        assert (status, err) == (0, "")
        got[name] = load_file(tmp_path / name)["logits"]
    largest = got["exact"].abs().max()
    assert (got["kind"] - got["exact"]).abs().max() < 1e-5 * largest
    assert 1e-4 * largest < (got["int8"] - got["exact"]).abs().max() < 0.1 * largest
    assert torch.isfinite(got["int8"]).all()


def test_the_same_bits_are_had_for_the_asking(call: Call, tmp_path: Path) -> None:
    ids, ways = (
        "1,2,3,4,5,6,7,8,9,10,11",
        {"whole": [], "cut": ["--cache", "paged", "--chunk", "3"]},
    )
    for name, options in ways.items():
        made = call(
            "logits", WINDOWS, "--ids", ids, "--out", tmp_path / name, "--batch-invariant", *options
        )
        assert made == (0, "", "")
    whole, cut = (load_file(tmp_path / name)["logits"] for name in ways)
    assert torch.equal(whole, cut)
