"""Long inputs: queries, keys and feed-forwards in pieces give what they give at once, in memory that grows with length."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine import decoder as decoding
from engine.backends import sdpa
from engine.cache import ContiguousCache
from engine.mask import View
from engine.probe import attached
from tests.engine import tiny
from tests.engine.zoo import ATTENTION, LAYER, ZOO, model

IDS = [i * 7 % 31 for i in range(50)]


@pytest.mark.parametrize("kind", list(ZOO))
def test_a_feed_forward_in_pieces_is_that_of_all_tokens(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tiny.decoder_of(ZOO[kind])
    whole = tiny.logits(made, IDS)
    monkeypatch.setattr(decoding, "PIECE", 7)
    torch.testing.assert_close(tiny.logits(made, IDS), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["plain", "sinks"])
def test_a_watched_feed_forward_shows_all_tokens(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, shapes = tiny.decoder_of(ZOO[kind]), dict[str, list[int]]()
    monkeypatch.setattr(decoding, "PIECE", 7)

    def keep(probe: str, value: Tensor) -> Tensor:
        assert probe not in shapes
        shapes[probe] = list(value.shape)
        return value

    with attached(keep, ("", made)):
        tiny.logits(made, IDS)
    shown = [shape for name, shape in shapes.items() if ".mlp." in name]
    assert len(shown) > 3 and all(shape[:2] == [1, len(IDS)] for shape in shown)


def test_fused_attention_never_makes_a_mask_of_all_queries_and_all_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In slices it gives what it gives at once, and the largest mask has one slice's queries."""
    window = replace(LAYER, attn=replace(ATTENTION, window=9))
    made = tiny.decoder_of(model(LAYER, window), "sdpa")
    whole = tiny.logits(made, IDS)
    monkeypatch.setattr(sdpa, "QUERIES", 8)
    tall: list[int] = []
    visible = vars(View)["visible"].fget

    def seen(view: Any) -> Tensor:
        mask: Tensor = visible(view)
        tall.append(mask.shape[-2])
        return mask

    monkeypatch.setattr(View, "visible", property(seen))
    torch.testing.assert_close(tiny.logits(made, IDS), whole, rtol=1e-4, atol=1e-4)
    # The layer without a window is causal, as is the first slice of the other: that takes no mask.
    assert max(tall) == 8 and len(tall) == 6


#: Reads a prompt of so many tokens by a kernel, and prints how far the process grew meanwhile, in MiB.
CHILD = """
import sys, torch
from tests.engine import tiny, test_long
kernel, tokens = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
print(test_long.growth(kernel, tokens) / 2**20)
"""


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line
    )
    return int(line.split()[1]) * 1024


def growth(kernel: str, tokens: int) -> int:
    """By how much one whole pass of so many tokens, its cache aside, raises the peak: bytes."""
    attn = replace(ATTENTION, n_heads=1, n_kv_heads=1)
    spec = replace(model(replace(LAYER, attn=attn)), context=2**15)
    made, ids = tiny.decoder_of(spec, kernel), torch.arange(tokens)[None] % spec.vocab_size
    cache = ContiguousCache(spec, tokens)
    with torch.inference_mode():
        made(ids[:, :2000], ContiguousCache(spec, 2000), last=1)  # what is loaded once
        before = peak()
        made(ids, cache, last=1)
    return peak() - before


def measured(kernel: str, tokens: int) -> float:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, kernel, str(tokens)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


#: How long a pass is, and how many MiB it may add for each 1,000 tokens.
BOUNDS = {"tiled": (2**15, 1.0), "sdpa": (2**14, 5.0)}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
@pytest.mark.parametrize("kernel", list(BOUNDS))
def test_memory_of_a_long_pass_stays_within_a_bound_that_grows_with_its_tokens(kernel: str) -> None:
    """Scores of 32k tokens would be 4 GiB, and a mask of them 1 GiB."""
    tokens, per_1000 = BOUNDS[kernel]
    assert measured(kernel, tokens) < per_1000 * tokens / 1000


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
def test_the_bound_would_find_scores_of_all_tokens() -> None:
    assert measured("eager", 2**12) > 2 * 5.0 * 4.1
