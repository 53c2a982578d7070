"""The reference of every family: all of its operations are shown, what is handed on counts, truth is float64.

Like `test_oracle`, these tests run transformers in their own process: they are about it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.candidate import over_keys
from conformance.cases import Case
from conformance.experts import is_expert_choice
from conformance.oracle.doors import LAYOUTS, layout_of
from conformance.oracle.model import Oracle, follows_length, load
from conformance.oracle.tiny import tiny_checkpoint
from conformance.reorder import Variant
from engine.errors import LockstepError
from tests.conformance.tiny_families import (
    CHOSEN,
    CONFIGS,
    DIM,
    EXPERT_FFN,
    EXPERTS,
    FFN,
    KV_RANK,
    NOPE,
    PLAIN,
    Q_RANK,
    ROPE,
    VALUE,
    D,
    H,
    K,
    V,
)

T = 9
IDS = torch.randint(V, (T,), generator=torch.Generator().manual_seed(3))
Shown = dict[str, Tensor]


def checkpoint_of(family: str, config: dict[str, Any], folder: Path) -> Path:
    """A tiny model of the family, every parameter and stored buffer drawn, in the folder."""
    special = {"bos_token_id": None, "eos_token_id": None}
    tiny_checkpoint(Case(family, family, config | special, seed=1), folder)
    return folder


@cache
def model_of(family: str) -> Any:
    with TemporaryDirectory() as folder:
        return load(checkpoint_of(family, CONFIGS[family], Path(folder)), torch.float32)


def shown_by(
    model: Any,
    change: Callable[[str, Tensor], Tensor] = lambda _, value: value,
    variant: Variant | None = None,
) -> Shown:
    """All that one pass over the ids shows, in order; `change` says what is handed on."""
    seen: Shown = {}

    def tap(probe: str, value: Tensor) -> Tensor:
        assert probe not in seen
        seen[probe] = value.clone()
        return change(probe, value)

    oracle = Oracle(model, variant or Variant())
    oracle.begin(T)
    oracle.step(IDS, tap)
    return seen


Shapes = dict[str, tuple[int, ...]]


def attention_of(family: str, layer: int) -> Shapes:
    hidden, heads, keys = (T, DIM), (H, T, D), (K, T, D)
    scores = {"attn.scores": (H, T, T), "attn.weights": (H, T, T)}
    if family == "deepseek_v3":
        cached = {"latent": (1, T, KV_RANK), "k_rope": (1, T, ROPE)}
        return {
            "attn.q_down": (T, Q_RANK),
            "attn.q_norm": (T, Q_RANK),
            "attn.q": (H, T, NOPE + ROPE),
            "attn.kv_down": (T, KV_RANK),
            "attn.k": (1, T, ROPE),
            "attn.kv_norm": (T, KV_RANK),
            "attn.k_rope": (1, T, ROPE),
            **{f"cache.layers.{layer}.{name}": shape for name, shape in cached.items()},
            "attn.kv_up": (H, T, NOPE + VALUE),
            "attn.q_rope": (H, T, ROPE),
            **scores,
            "attn.context": (H, T, VALUE),
            "attn.out": hidden,
        }
    if family == "gpt2":
        heads = keys = (H, T, DIM // H)
    q, k, v = {"attn.q": heads}, {"attn.k": keys}, {"attn.v": keys}
    q_norm, k_norm = {"attn.q_norm": heads}, {"attn.k_norm": keys}
    if family in ("qwen3", "qwen3_moe", "olmo2"):
        found = q | q_norm | k | k_norm | v
    elif family == "gemma3_text":
        found = q | k | v | q_norm | k_norm
    else:
        found = q | k | v
    if family != "gpt2" and (family, layer) != ("smollm3", 1):
        found |= {"attn.q_rope": heads, "attn.k_rope": keys}
    found |= {f"cache.layers.{layer}.{name}": keys for name in "kv"}
    return found | scores | {"attn.context": heads, "attn.out": hidden}


def feed_forward_of(family: str, layer: int) -> Shapes:
    def gated(at: str, ffn: int) -> Shapes:
        inner = {f"{at}.{op}": (T, ffn) for op in ("gate", "up", "act")}
        return inner | {f"{at}.down": (T, DIM)}

    sparse = {"mixtral": (0, 1), "gpt_oss": (0, 1), "qwen3_moe": (1,), "deepseek_v3": (1,)}
    if layer in sparse.get(family, ()):
        return {
            "mlp.router_logits": (T, EXPERTS),
            "mlp.expert_ids": (T, CHOSEN),
            "mlp.expert_weights": (T, CHOSEN),
            "mlp.experts": (T, DIM),
            **(gated("mlp.shared", EXPERT_FFN) if family == "deepseek_v3" else {}),
            "mlp.out": (T, DIM),
        }
    if family == "gpt2":
        return {"mlp.up": (T, FFN), "mlp.act": (T, FFN), "mlp.down": (T, DIM)}
    return gated("mlp", FFN)


def expected_of(family: str) -> Shapes:
    """The contract: every probe of the family in order, with its shape without the batch."""
    hidden = (T, DIM)
    before, after = family != "olmo2", family in ("gemma2", "gemma3_text", "olmo2")
    found = {"embed": hidden}
    for i in range(2):
        layer = {"pre_attn_norm": hidden} if before else {}
        layer |= attention_of(family, i)
        layer |= {"post_attn_norm": hidden} if after else {}
        layer |= {"after_attn": hidden}
        layer |= {"pre_mlp_norm": hidden} if before else {}
        layer |= feed_forward_of(family, i)
        layer |= {"post_mlp_norm": hidden} if after else {}
        layer |= {"out": hidden}
        found |= {p if p.startswith("cache.") else f"layers.{i}.{p}": s for p, s in layer.items()}
    return found | {"final_norm": hidden, "logits": (T, V)}


families = pytest.mark.parametrize("family", LAYOUTS)


@families
def test_every_operation_is_shown_once_in_order_with_its_shape(family: str) -> None:
    shown = shown_by(model_of(family))
    expected = expected_of(family)
    assert list(shown) == list(expected)
    assert {p: tuple(value.shape[1:]) for p, value in shown.items()} == expected
    assert {p for p, value in shown.items() if value.dtype != torch.float32} == {
        p for p in expected if is_expert_choice(p)
    }


@families
def test_doors_change_no_bit_of_what_the_caller_gets(family: str) -> None:
    model = model_of(family)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        plain = model(IDS[None]).logits
    assert torch.equal(shown_by(model)["logits"], plain)


@families
def test_what_a_tap_hands_back_at_any_probe_is_gone_on_with(family: str) -> None:
    """A lockstep run of the reference would be a free run where a door only opens outwards."""
    model = model_of(family)
    plain = shown_by(model)

    def altered(value: Tensor) -> Tensor:
        if value.is_floating_point():
            return value * 1.5
        return (EXPERTS - 1 - value).flip(-1)

    for probe in [p for p in plain if "layers.0." not in p and p != "logits"]:
        after = shown_by(model, lambda p, value, at=probe: altered(value) if p == at else value)
        assert not torch.equal(after["logits"], plain["logits"]), probe


def test_the_logits_that_a_tap_hands_back_are_the_callers() -> None:
    model = model_of("granite")
    got: list[Tensor] = []
    handle = model.register_forward_hook(lambda _module, _args, output: got.append(output.logits))
    try:
        shown_by(model, lambda p, value: torch.zeros_like(value) if p == "logits" else value)
    finally:
        handle.remove()
    assert not got[0].any()


@families
@pytest.mark.parametrize("variant", [Variant(pad=3, batch=2), Variant(attention="sdpa", batch=3)])
def test_padding_batches_and_sdpa_show_the_same_numbers(family: str, variant: Variant) -> None:
    model = model_of(family)
    if variant.attention == "sdpa" and not model._supports_sdpa:
        variant = Variant(batch=variant.batch)
    plain, other = shown_by(model), shown_by(model, variant=variant)
    for probe, value in other.items():
        assert value.shape == (variant.batch, *plain[probe].shape[1:])
        assert torch.allclose(value.float(), plain[probe].float(), rtol=1e-4, atol=1e-4), probe


@families
def test_a_decode_step_shows_all_keys_where_a_probe_is_over_keys(family: str) -> None:
    """Those that a window has left behind are shown, too."""
    model = model_of(family)
    whole = shown_by(model)
    oracle = Oracle(model)
    oracle.begin(T)
    oracle.step(IDS[:-1], lambda _, value: value)
    last: Shown = {}

    def tap(probe: str, value: Tensor) -> Tensor:
        last[probe] = value.clone()
        return value

    oracle.step(IDS[-1:], tap)
    assert list(last) == list(whole)
    for probe, value in last.items():
        expected = whole[probe] if over_keys(probe) else whole[probe][..., -1:, :]
        assert torch.allclose(value.float(), expected.float(), rtol=1e-4, atol=1e-4), probe


class Float32Results(TorchDispatchMode):
    """Counts the operations of torch, views apart, that give float32 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.dtype == torch.float32:
            self.found.append(str(func))
        return result


@families
def test_truth_is_float64_in_every_single_operation(family: str, tmp_path: Path) -> None:
    checkpoint_of(family, CONFIGS[family], tmp_path)
    model = load(tmp_path, torch.float64)
    assert not follows_length(model.config)
    with Float32Results() as narrow:
        truth = shown_by(model)
    assert narrow.found == []
    rounded = shown_by(load(tmp_path, torch.float32))
    scale = truth["logits"].abs().max()
    assert 1e-9 < float((rounded["logits"] - truth["logits"]).abs().max() / scale) < 1e-5


@pytest.mark.parametrize("family", ["gpt_oss", "deepseek_v3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_a_family_keeps_in_float32_does_not_keep_it_from_half_precision(
    family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    checkpoint_of(family, CONFIGS[family], tmp_path)
    shown = shown_by(load(tmp_path, dtype))
    wide = {p.rpartition(".")[2] for p, value in shown.items() if value.dtype != dtype}
    assert wide - {"router_logits", "expert_weights"} == {"expert_ids"}


def test_other_experts_that_are_handed_on_get_their_own_weights() -> None:
    model = model_of("mixtral")
    other = torch.tensor([1, 4]).expand(1, T, 2)
    ids = "layers.0.mlp.expert_ids"
    shown = shown_by(model, lambda p, value: other if p == ids else value)
    logits = shown["layers.0.mlp.router_logits"]
    assert torch.allclose(
        shown["layers.0.mlp.expert_weights"], logits[..., [1, 4]].softmax(-1), atol=1e-6
    )
    experts = shown_by(model)[ids]
    assert (experts.diff(dim=-1) > 0).all()


@pytest.mark.parametrize(
    ("family", "rope"),
    [
        ("llama", {"rope_type": "dynamic", "factor": 2.0}),
        (
            "phi3",
            {
                "rope_type": "longrope",
                "factor": 4.0,
                "original_max_position_embeddings": 6,
                "short_factor": [1.0 + 0.1 * i for i in range(DIM // H // 2)],
                "long_factor": [1.0 + 0.5 * i for i in range(DIM // H // 2)],
            },
        ),
    ],
    ids=["dynamic", "longrope"],
)
def test_a_run_starts_with_the_frequencies_of_its_own_length(
    family: str, rope: dict[str, Any], tmp_path: Path
) -> None:
    """A longer run before it would leave its own; in float64 they are the same float32 numbers."""
    config = {key: value for key, value in PLAIN.items() if key != "head_dim"} | {
        "max_position_embeddings": 6,
        "original_max_position_embeddings": 6,
        "rope_parameters": rope | {"rope_theta": 10000.0},
    }
    checkpoint_of(family, config, tmp_path)
    tables = {}
    for dtype in (torch.float32, torch.float64):
        model = load(tmp_path, dtype)
        assert follows_length(model.config)
        first = shown_by(model)["logits"]
        oracle = Oracle(model)
        oracle.begin(40)
        oracle.step(IDS.repeat(4), lambda _, value: value)
        assert torch.equal(shown_by(model)["logits"], first)
        tables[dtype] = model.model.rotary_emb.inv_freq.clone()
    assert torch.equal(tables[torch.float32].double(), tables[torch.float64].double())
    assert not torch.equal(tables[torch.float32], model.model.rotary_emb.original_inv_freq.float())


def test_an_architecture_without_doors_is_an_error_that_names_it() -> None:
    with pytest.raises(LockstepError, match=r"no operations of a bloom; .* qwen3_moe"):
        layout_of(SimpleNamespace(model_type="bloom"))
