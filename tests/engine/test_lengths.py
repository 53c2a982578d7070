"""Frequencies that follow the length of the sequence: prompts in chunks, the turning point, and after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine import Engine, SamplingParams
from engine.probe import attached
from engine.rope import Rotate, frequencies, table
from tests.engine import tiny

ORIGINAL = 12
ROPES: dict[str, dict[str, Any]] = {
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 100.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [2.0, 3.0, 4.0, 5.0],
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "dynamic": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0},
}
IDS = [n * 7 % 50 for n in range(20)]


def load(folder: Path, rope: str) -> Engine:
    """A tiny model, whose frequencies change behind its twelfth token."""
    config = {k: v for k, v in tiny.CASE.items() if k != "rope_theta"}
    positions = ORIGINAL if rope == "dynamic" else 48  # whose factor makes 48 of them
    changed = {"rope_parameters": ROPES[rope], "max_position_embeddings": positions}
    return Engine.load(tiny.save_folder(folder, config | changed))


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engine]:
    return {rope: load(tmp_path_factory.mktemp(rope), rope) for rope in ROPES}


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("length", [ORIGINAL, ORIGINAL + 1, 20])
@pytest.mark.parametrize("chunk", [1, 5, 7])
def test_a_prompt_in_chunks_is_the_prompt(
    engines: dict[str, Engine], rope: str, length: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first chunk of a long prompt has the frequencies of long sequences already."""
    engine, ids = engines[rope], IDS[:length]
    whole = engine.logits(ids)
    assert (engine.logits(ids, chunk) - whole).abs().max() < 1e-4
    monkeypatch.setattr(engine, "step_tokens", chunk)
    with torch.inference_mode():
        last = engine.prefill(ids, engine.new_cache(length))
    assert (last - whole[-1]).abs().max() < 1e-4


@pytest.mark.parametrize("rope", ROPES)
def test_chunks_by_themselves_would_be_another_model(engines: dict[str, Engine], rope: str) -> None:
    """So that the test above is known to bite: here every chunk takes the length that is there."""
    engine = engines[rope]
    chunked = tiny.logits(engine.decoder, IDS, [5, 5, 5, 5])
    assert (chunked - engine.logits(IDS)).abs().max() > 1e-2


@pytest.mark.parametrize("prompt", [4, ORIGINAL - 1, ORIGINAL, ORIGINAL + 1, 16])
def test_answers_across_the_original_context_are_those_of_recomputing_everything(
    engines: dict[str, Engine], prompt: int
) -> None:
    """Keys turned by the short frequencies are of no use after it, so the cache is filled again."""
    engine = engines["longrope"]
    done = engine.generate(IDS[:prompt], SamplingParams(max_tokens=14, ignore_eos=True, logprobs=0))
    assert done.logprobs is not None
    seen = list(IDS[:prompt])
    for entry in done.logprobs:
        row = engine.logits(seen)[-1].log_softmax(-1)
        assert entry.token_id == int(row.argmax())
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
        seen.append(entry.token_id)


def test_the_cache_is_filled_again_once_and_only_there(
    engines: dict[str, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    engine = engines["longrope"]
    handle = engine.decoder.embed.register_forward_hook(
        lambda module, args, value: sizes.append(args[0].shape[1])
    )
    engine.generate(IDS[:9], SamplingParams(max_tokens=8, ignore_eos=True))
    handle.remove()
    assert sizes == [9, 1, 1, 1, ORIGINAL + 1, 1, 1, 1]


def test_a_base_that_grows_turns_each_new_key_by_the_length_of_its_own_step(
    engines: dict[str, Engine],
) -> None:
    """Nothing is recomputed then, as in transformers: cached keys keep the base of their time."""
    engine = engines["dynamic"]
    assert not engine.spec.turning_points
    shown: dict[str, list[Tensor]] = {"k": [], "k_rope": []}

    def keep(probe: str, value: Tensor) -> Tensor:
        if probe.startswith("layers.0.attn.k"):
            shown[probe.rpartition(".")[2]].append(value)
        return value

    with attached(keep, ("", engine.decoder)):
        engine.generate(IDS[:10], SamplingParams(max_tokens=9, ignore_eos=True))
    rope = engine.spec.layers[0].attn.rope
    assert rope is not None
    lengths = [10, *range(11, 19)]
    for length, k, turned in zip(lengths, *shown.values(), strict=True):
        positions = torch.arange(length - k.shape[2], length)
        at_once = table(rope, frequencies(rope, length), positions, torch.float32)
        assert torch.equal(turned, Rotate(rope)(k, at_once))


def test_a_long_request_leaves_nothing_to_a_short_one(engines: dict[str, Engine]) -> None:
    for engine in engines.values():
        before = engine.logits(IDS[:6])
        engine.logits(IDS)
        assert torch.equal(engine.logits(IDS[:6]), before)
