"""Kernels of torch's against the eager one, on models of every kind; those for CUDA by what they are given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from engine.backends import BACKENDS, backend, eager, flash, flex, sdpa, supports
from engine.cache import ContiguousCache, Part, RingCache
from engine.decoder import Decoder
from engine.errors import RequestError
from engine.families import read_spec
from engine.mask import Custom, View
from tests.conformance.tiny_families import CONFIGS
from tests.engine import tiny
from tests.engine.test_attention import Scores, view
from tests.engine.tiny import one_thread  # noqa: F401  (applies to this module)
from tests.engine.zoo import ATTENTION, LAYER, ZOO, model

IDS = [i * 7 % 31 for i in range(30)]
CUDA = torch.device("cuda")


def close(got: Tensor, want: Tensor) -> bool:
    """Within some roundings, of the dtype of both, of the largest number."""
    roundings = 200 if want.dtype == torch.float32 else 8
    allowed = roundings * torch.finfo(want.dtype).eps * want.abs().max()
    return bool((got - want).abs().max() < allowed)


def cache_of(made: Decoder) -> ContiguousCache:
    return ContiguousCache(made.spec, len(IDS), dtype=made.embed.weight.dtype)


@torch.inference_mode()
def packed(made: Decoder) -> Tensor:
    """Logits [1, 24, V] of passes that hold chunks of one sequence and single tokens of two longer ones."""
    cache = RingCache(made.spec, 30, batch=3, longest_pass=6, dtype=made.embed.weight.dtype)
    rooms = [cache.open() for _ in range(3)]
    ids = torch.tensor([IDS]) % made.spec.vocab_size
    seen, start = [], 0
    for shares in ((5, 6, 1), (1, 1, 4), (1, 1, 4)):
        parts = [Part(room, n) for room, n in zip(rooms, shares, strict=True)]
        seen.append(made(ids[:, start : start + sum(shares)], cache, parts))
        start += sum(shares)
    return torch.cat(seen, dim=1)


# -- against eager -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["sdpa", "flash"])
@pytest.mark.parametrize("family", CONFIGS)
def test_each_familys_logits_are_those_of_eager_however_they_are_cut(
    family: str, name: str, dtype: torch.dtype
) -> None:
    """Whole, in chunks, token by token, and packed with other sequences."""
    spec = read_spec({"model_type": family, **CONFIGS[family]})[1]
    if not supports(name, spec):
        pytest.skip(f"{name} cannot form the scores of {family}")
    ids = [token % spec.vocab_size for token in IDS]
    made = tiny.decoder_of(spec).to(dtype)
    whole, in_rows = tiny.logits(made, ids, cache=cache_of(made)), packed(made)
    made.use(BACKENDS[name].attend)
    for steps in ([30], [7, 12, *[1] * 11]):
        assert close(tiny.logits(made, ids, steps, cache_of(made)), whole), f"chunks of {steps}"
    assert close(packed(made), in_rows)


@pytest.mark.parametrize("kind", ["windows", "sinks", "latent"])
def test_flex_gives_the_logits_of_eager_however_they_are_cut(kind: str) -> None:
    """Softcaps and windows, sinks, and values of another width than keys."""
    made = tiny.decoder_of(ZOO[kind])
    whole, in_rows = tiny.logits(made, IDS), packed(made)
    made.use(flex.attend)
    assert close(tiny.logits(made, IDS), whole)
    assert close(tiny.logits(made, IDS, [28, 1, 1]), whole)
    if kind == "windows":
        assert close(packed(made), in_rows)


def test_flex_has_no_graph_of_its_own_for_a_new_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each step of decoding would be compiled, for seconds."""
    counter = CompileCounter()
    kernel = flex.compiled(counter)
    monkeypatch.setattr(flex, "compiled", lambda compiler: kernel)
    torch._dynamo.reset()
    rng = torch.Generator().manual_seed(0)
    for old, new in ((0, 9), (9, 1), (10, 1), (11, 4), (15, 1), (16, 20), (99, 1)):
        q = torch.randn(1, 4, new, 6, generator=rng)
        k = torch.randn(1, 2, old + new, 6, generator=rng)
        seen, scores = view(old, new, 5), Scores(0.4, softcap=2.0)
        assert close(flex.attend(q, k, k, seen, scores), eager.attend(q, k, k, seen, scores))
    assert counter.frame_count == 3  # of whole prompts, of chunks and of single tokens


def test_a_whole_prompt_takes_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that are told that it is causal leave half of the products out."""
    made = tiny.decoder_of(ZOO["plain"])
    whole = tiny.logits(made, IDS)
    monkeypatch.setattr(View, "visible", property(lambda view: pytest.fail("a mask was made")))
    for name in ("sdpa", "flash"):
        made.use(BACKENDS[name].attend)
        assert close(tiny.logits(made, IDS), whole)


@pytest.mark.parametrize(
    ("old", "new", "window", "custom", "whole"),
    [
        (0, 5, None, Custom(), True),
        (0, 5, 5, Custom(), True),
        (0, 5, 4, Custom(), False),
        (2, 5, None, Custom(), False),
        (0, 5, None, Custom(bias=lambda q, k: (q - k).float()), False),
        (0, 5, None, Custom(mask=lambda q, k: q - k < 3), False),
    ],
)
def test_what_is_causal_and_nothing_else_is_known_from_shapes(
    old: int, new: int, window: int | None, custom: Custom, whole: bool
) -> None:
    seen = view(old, new, window)
    assert View(seen.q_pos, seen.k_pos, window, custom).whole is whole


def test_flash_takes_no_other_kernel() -> None:
    """torch's sdpa forms all scores where no fused kernel fits: values of another width are made to fit."""
    q, v = torch.randn(1, 2, 5, 6), torch.randn(1, 2, 5, 8)
    for k_width, value in ((6, v), (8, q)):
        wide = torch.randn(1, 2, 5, k_width)
        seen, scores = view(0, 5), Scores(0.5)
        got = flash.attend(wide, wide, value, seen, scores)
        assert close(got, eager.attend(wide, wide, value, seen, scores))
        with pytest.raises(RuntimeError, match="No available kernel"):
            flash._masked(wide, wide, value, seen, 0.5)


# -- what the kernels for CUDA are given -------------------------------------------------------------


def varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor,
) -> Tensor:
    """What torch's documentation of varlen_attn says, one query at a time."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == seqused_k.dtype == torch.int32
    out, (left, right), group = torch.zeros_like(q), window_size, q.shape[1] // k.shape[1]
    assert enable_gqa is (group > 1)
    rows = zip(cu_seq_q.tolist(), cu_seq_q[1:].tolist(), cu_seq_k.tolist(), seqused_k, strict=False)
    for first, end, key, held in rows:
        assert end - first <= max_q and int(held) <= max_k
        for t in range(first, end):
            own = int(held) - (end - t)  # the last query's own key is the last one
            begin = 0 if left < 0 else max(0, own - left)
            seen = slice(key + begin, key + own + 1 + right)
            for h in range(q.shape[1]):
                weights = (k[seen, h // group] @ q[t, h] * scale).softmax(0)
                out[t, h] = weights @ v[seen, h // group]
    return out


RAGGED = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 7, -1, -1], [9, 10, -1, -1, -1, -1, -1]])


@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.parametrize(
    ("q_pos", "k_pos"),
    [
        (RAGGED.amax(1)[:, None], RAGGED),
        (torch.tensor([[4, 5, 6]]), RAGGED[:1]),
        (torch.arange(7).expand(2, -1), RAGGED[:1].expand(2, -1)),
    ],
    ids=["decoding", "chunk", "prompts"],
)
def test_on_cuda_flash_is_told_where_each_sequence_begins_and_ends(
    q_pos: Tensor, k_pos: Tensor, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences of other lengths side by side, of which some have slots without a token."""
    monkeypatch.setattr(flash, "varlen_attn", varlen)
    rng = torch.Generator().manual_seed(0)
    (B, T), S = q_pos.shape, k_pos.shape[1]
    q = torch.randn(B, 4, T, 6, generator=rng)
    k, v = torch.randn(2, B, 2, S, 6, generator=rng)
    seen = View(q_pos, k_pos, window)
    want = eager.attend(q, k, v, seen, Scores(0.4))
    assert close(flash._ragged(q, k, v, seen, 0.4), want)
    assert seen.once(flash._lengths) is seen.once(flash._lengths)


def test_where_flash_has_no_kernel_it_is_refused_by_name_and_not_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first reason in a sentence, with what fits instead."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(flex, "find_spec", lambda name: object())
    plain, half = ZOO["plain"], torch.bfloat16
    assert backend(None, plain, device=CUDA, dtype=half) is flash.attend
    assert backend(None, ZOO["sinks"], device=CUDA, dtype=half) is eager.attend
    assert backend(None, plain, device=CUDA) is sdpa.attend

    def refused(sentence: str, *given: Any, name: str = "flash") -> None:
        with pytest.raises(RequestError, match=f"the attention backend {name} {sentence}; use "):
            backend(name, *given)

    refused("takes float16 and bfloat16 on CUDA, not float32", plain, Custom(), CUDA, torch.float32)
    wide = model(replace(LAYER, attn=replace(ATTENTION, head_dim=264)))
    refused("takes heads of up to 256 numbers on CUDA, not 264", wide, Custom(), CUDA, half)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    refused("needs a CUDA device of compute capability 8.0 or later", plain, Custom(), CUDA, half)
    assert backend(None, plain, device=CUDA, dtype=half) is sdpa.attend
    monkeypatch.setattr(flex, "find_spec", lambda name: None)
    refused("needs Triton on CUDA", plain, Custom(), CUDA, half, name="flex")
