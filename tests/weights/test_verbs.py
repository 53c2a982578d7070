"""Each verb of a layout: which number of the file ends where, and what a file must hold for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from engine.errors import ModelFileError
from engine.families.family import (
    Add,
    Deinterleave,
    Either,
    Microscaled,
    Rename,
    Split,
    Stack,
    Tie,
    Transpose,
    Verb,
)
from engine.weights.arrange import deinterleave
from tests.weights import made, tiny
from tests.weights.made import drawn

X = drawn(12, 8)
PLAIN = Rename("x")
PAIRED = Deinterleave(PLAIN, 1)

# By its indices alone, what each verb makes of X [12, 8].
MADE: dict[str, tuple[Verb, torch.Tensor]] = {
    "rename": (PLAIN, X),
    "transpose": (Transpose(PLAIN), torch.stack([X[:, j] for j in range(8)])),
    "rows": (Split(PLAIN, 2, 5), torch.stack([X[2], X[3], X[4]])),
    "columns": (Split(PLAIN, 1, 3, axis=1), torch.stack([X[:, 1], X[:, 2]], dim=1)),
    "rows of the transpose": (Split(Transpose(PLAIN), 1, 3), torch.stack([X[:, 1], X[:, 2]])),
    "one group": (PAIRED, X[[0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]]),
    "two groups": (Deinterleave(PLAIN, 2), X[[0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]]),
    "two groups of columns": (Deinterleave(PLAIN, 2, axis=1), X[:, [0, 2, 1, 3, 4, 6, 5, 7]]),
    "two groups of the transpose": (Deinterleave(Transpose(PLAIN), 2), X.T[[0, 2, 1, 3, 4, 6, 5, 7]]),
    "the even half": (Split(PAIRED, 0, 6), X[[0, 2, 4, 6, 8, 10]]),
    "the odd half": (Split(PAIRED, 6, 12), X[[1, 3, 5, 7, 9, 11]]),
    "part of the odd half": (Split(PAIRED, 7, 10), X[[3, 5, 7]]),
    "the odd columns": (Split(Deinterleave(PLAIN, 1, axis=1), 4, 8, axis=1), X[:, [1, 3, 5, 7]]),
    "rows of deinterleaved columns": (
        Split(Deinterleave(PLAIN, 1, axis=1), 0, 2), X[:2, [0, 2, 4, 6, 1, 3, 5, 7]],
    ),
    "rows of two groups": (Split(Deinterleave(PLAIN, 2), 1, 4), X[[2, 4, 1]]),
    "rows of the deinterleaved transpose": (
        Split(Deinterleave(Transpose(PLAIN), 1), 4, 8), X.T[[1, 3, 5, 7]],
    ),
    "add": (Add(PLAIN, -1.0), X - 1),
}  # fmt: skip


@pytest.mark.parametrize("case", MADE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_verb_puts_each_number_where_it_belongs(
    tmp_path: Path, case: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounded once, at the end; and nothing more is kept alive than the parameter's own numbers."""
    verb, want = MADE[case]
    monkeypatch.setattr("engine.weights.plan._partly_used", lambda plan, tensors: ())
    got = made.load(tmp_path, {"x": X}, {"p": verb}, {"p": tuple(want.shape)}, dtype)["p"]
    assert got.dtype == dtype
    assert not got.requires_grad
    assert torch.equal(got, want.to(dtype))
    if dtype != torch.float32 or "Deinterleave" in str(verb):
        assert got.untyped_storage().nbytes() == got.nbytes


def test_deinterleave_undoes_pairs_group_by_group() -> None:
    """Two heads of six rows: a0 b0 a1 b1 a2 b2 of each become a0 a1 a2 b0 b1 b2."""
    rows = torch.tensor([[0], [3], [1], [4], [2], [5], [10], [13], [11], [14], [12], [15]])
    want = [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]
    assert deinterleave(rows, groups=2).flatten().tolist() == want
    assert deinterleave(rows.flatten(), groups=2).tolist() == want  # a bias
    assert deinterleave(rows.T, groups=2, axis=1).flatten().tolist() == want


@pytest.mark.parametrize("heads", [tiny.HEADS, tiny.KV_HEADS])
def test_deinterleave_is_the_inverse_of_interleaving_by_hand(heads: int) -> None:
    rows = torch.randn(heads * tiny.HEAD_DIM, 5)
    assert torch.equal(deinterleave(tiny.interleaved(rows, heads), heads), rows)


def test_a_one_is_taken_off_before_the_numbers_are_rounded(tmp_path: Path) -> None:
    """1 + weight in bfloat16 would keep two digits of a small weight; the file has it in float32."""
    weight = torch.tensor([0.0123, -0.0007]).bfloat16()
    held = {"norm": 1 + weight.float()}
    got = made.load(tmp_path, held, {"p": Add(Rename("norm"), -1.0)}, {"p": (2,)}, torch.bfloat16)
    assert torch.equal(got["p"], weight)


def test_what_a_layout_keeps_in_float32_is_not_rounded(tmp_path: Path) -> None:
    """DeepSeek's router, say, in a bfloat16 model."""
    verbs: dict[str, Verb] = {f"layers.{{i}}.{part}": Rename(f"{{i}}.{part}") for part in "ab"}
    held = {f"{i}.{part}": drawn(4, seed=i) for i in range(2) for part in "ab"}
    shapes: dict[str, tuple[int, ...]] = {f"layers.{name}": (4,) for name in held}
    kept = frozenset({"layers.{i}.b"})
    got = made.load(tmp_path, held, verbs, shapes, torch.bfloat16, float32=kept)
    for i in range(2):
        assert torch.equal(got[f"layers.{i}.a"], held[f"{i}.a"].bfloat16())
        assert torch.equal(got[f"layers.{i}.b"], held[f"{i}.b"])


# -- layouts of real families ----------------------------------------------------------------------

CONV1D: dict[str, Verb] = {
    "embed.weight": Tie("wte.weight", "logits.weight"),
    "logits.weight": Tie("lm_head.weight", "embed.weight"),
} | {
    f"layers.{{i}}.attn.{part}.weight": Split(
        Transpose(Rename("h.{i}.attn.c_attn.weight")), 8 * n, 8 * n + 8
    )
    for n, part in enumerate("qkv")
}
CONV1D_SHAPES: dict[str, tuple[int, ...]] = {"embed.weight": (5, 8), "logits.weight": (5, 8)} | {
    f"layers.{i}.attn.{part}.weight": (8, 8) for i in range(11) for part in "qkv"
}
CONV1D_HELD = {"wte.weight": drawn(5, 8)} | {
    f"h.{i}.attn.c_attn.weight": drawn(8, 24, seed=i) for i in range(11)
}


@pytest.mark.parametrize("prefix", ["", "transformer."])
@pytest.mark.parametrize("head", [False, True])
def test_fused_columns_behind_either_prefix_come_apart_layer_by_layer(
    tmp_path: Path, prefix: str, head: bool
) -> None:
    """GPT-2 as on the hub, and as transformers writes it; its head stands outside of the prefix."""
    held = {prefix + name: value for name, value in CONV1D_HELD.items()}
    held |= {f"{prefix}h.{i}.attn.bias": torch.ones(1, 1) for i in range(11)}
    if head:
        held["lm_head.weight"] = drawn(5, 8, seed=99)
    got = made.load(
        tmp_path,
        held,
        CONV1D,
        CONV1D_SHAPES,
        ignored=("h.*.attn.bias",),
        prefixes=("", "transformer."),
    )
    for i in range(11):
        for n, part in enumerate("qkv"):
            fused = CONV1D_HELD[f"h.{i}.attn.c_attn.weight"]
            want = torch.stack([fused[:, column] for column in range(8 * n, 8 * n + 8)])
            assert torch.equal(got[f"layers.{i}.attn.{part}.weight"], want)
    assert (got["logits.weight"] is got["embed.weight"]) == (not head)
    assert torch.equal(
        got["logits.weight"], held["lm_head.weight" if head else f"{prefix}wte.weight"]
    )


def test_a_prefix_is_named_where_a_tensor_behind_it_is_missing(tmp_path: Path) -> None:
    held = {f"transformer.{name}": value for name, value in CONV1D_HELD.items()}
    del held["transformer.h.10.attn.c_attn.weight"]
    with pytest.raises(ModelFileError) as refusal:
        made.load(tmp_path, held, CONV1D, CONV1D_SHAPES, prefixes=("", "transformer."))
    assert "missing tensors: transformer.h.10.attn.c_attn.weight (for layers.10.attn.q.weight)" in str(
        refusal.value
    )  # fmt: skip


E, FFN, DIM = 12, 6, 10


def _expert(old: str) -> Stack:
    return Stack(Rename(f"layers.{{i}}.experts.{{e}}.{old}.weight"), E)


def _fused(start: int, stop: int) -> Split:
    return Split(Rename("layers.{i}.experts.gate_up_proj"), start, stop, axis=1)


EXPERTS: dict[str, Verb] = {
    "layers.{i}.mlp.experts.gate": Either((_fused(0, FFN), _expert("gate_proj"))),
    "layers.{i}.mlp.experts.up": Either((_fused(FFN, 2 * FFN), _expert("up_proj"))),
}
EXPERTS_SHAPES: dict[str, tuple[int, ...]] = {
    f"layers.{i}.mlp.experts.{part}": (E, FFN, DIM) for i in range(2) for part in ("gate", "up")
}


def _old(layer: int) -> dict[str, torch.Tensor]:
    return {
        f"layers.{layer}.experts.{e}.{part}_proj.weight": drawn(FFN, DIM, seed=2 * e + n)
        for e in range(E)
        for n, part in enumerate(("gate", "up"))
    }


def _new(layer: int) -> dict[str, torch.Tensor]:
    fused = [
        torch.cat([drawn(FFN, DIM, seed=2 * e), drawn(FFN, DIM, seed=2 * e + 1)]) for e in range(E)
    ]
    return {f"layers.{layer}.experts.gate_up_proj": torch.stack(fused)}


AGES: dict[str, Mapping[str, torch.Tensor]] = {
    "one tensor per expert": _old(0) | _old(1),
    "fused": _new(0) | _new(1),
    "one age per layer": _old(0) | _new(1),
}


@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_experts_of_both_ages_are_the_same_parameters(
    tmp_path: Path, age: str, dtype: torch.dtype
) -> None:
    """Twelve of them, so that an order by names (10 before 2) shows."""
    got = made.load(tmp_path, AGES[age], EXPERTS, EXPERTS_SHAPES, dtype)
    for i in range(2):
        for e in range(E):
            for n, part in enumerate(("gate", "up")):
                want = drawn(FFN, DIM, seed=2 * e + n).to(dtype)
                assert torch.equal(got[f"layers.{i}.mlp.experts.{part}"][e], want)


def test_experts_of_both_ages_in_one_layer_are_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError) as refusal:
        made.load(tmp_path, _old(0) | _new(0) | _new(1), EXPERTS, EXPERTS_SHAPES)
    assert (
        "no parameter for: layers.0.experts.0.gate_proj.weight "
        "(layers.0.mlp.experts.gate is made from layers.0.experts.gate_up_proj)"
    ) in str(refusal.value)
    assert "and 21 more" in str(refusal.value)


def test_an_expert_that_is_missing_is_named_and_nothing_is_read(tmp_path: Path) -> None:
    held = _old(0) | _new(1)
    del held["layers.0.experts.7.up_proj.weight"]
    with pytest.raises(ModelFileError) as refusal:
        made.load(tmp_path, held, EXPERTS, EXPERTS_SHAPES)
    assert "missing tensors: layers.0.experts.7.up_proj.weight (for layers.0.mlp.experts.up)" in str(
        refusal.value
    )  # fmt: skip
    assert "no parameter" not in str(refusal.value)


BLOCKS = torch.randint(0, 256, (3, 8, 2, 16), dtype=torch.uint8)
SCALES = torch.randint(120, 135, (3, 8, 2), dtype=torch.uint8)
PACKED: Verb = Microscaled("blocks", "scales")
PACKED_VERBS: dict[str, Verb] = {
    "gate": Split(Deinterleave(PACKED, 1, axis=1), 0, 4, axis=1),
    "up": Split(Deinterleave(PACKED, 1, axis=1), 4, 8, axis=1),
}
PACKED_SHAPES = {"gate": (3, 4, 64), "up": (3, 4, 64)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_microscaled_rows_are_picked_apart_and_decoded(tmp_path: Path, dtype: torch.dtype) -> None:
    """As in gpt-oss: rows of gate and up alternate within each expert."""
    held = {"blocks": BLOCKS, "scales": SCALES}
    whole = made.load(tmp_path / "whole", held, {"p": PACKED}, {"p": (3, 8, 64)}, dtype)["p"]
    turned = made.load(tmp_path / "t", held, {"p": Transpose(PACKED)}, {"p": (3, 64, 8)}, dtype)[
        "p"
    ]
    got = made.load(tmp_path / "apart", held, PACKED_VERBS, PACKED_SHAPES, dtype)
    assert whole.dtype == dtype
    assert torch.equal(turned, whole.mT)
    for row in range(4):
        assert torch.equal(got["gate"][:, row], whole[:, 2 * row])
        assert torch.equal(got["up"][:, row], whole[:, 2 * row + 1])


# -- what a file must hold -------------------------------------------------------------------------

QKV: dict[str, Verb] = {
    "q": Split(Rename("qkv"), 0, 4),
    "k": Split(Rename("qkv"), 4, 6),
    "v": Split(Rename("qkv"), 6, 8),
}
QKV_SHAPES = {"q": (4, 3), "k": (2, 3), "v": (2, 3)}
STACKED: dict[str, Verb] = {"p": Stack(Rename("x.{e}"), 2)}

MISFITS: dict[
    str, tuple[dict[str, torch.Tensor], Mapping[str, Verb], dict[str, tuple[int, ...]], str]
] = {
    "rows left over": (
        {"qkv": drawn(9, 3)}, QKV, QKV_SHAPES,
        "wrong shapes: of qkv, [9, 3], the model uses 8 of 9 on axis 0",
    ),
    "too few rows": (
        {"qkv": drawn(7, 3)}, QKV, QKV_SHAPES,
        "wrong shapes: qkv is [7, 3], from which v, [2, 3], cannot be made",
    ),
    "a gap": (
        {"qkv": drawn(8, 3)}, {"q": QKV["q"], "v": QKV["v"]}, {"q": (4, 3), "v": (2, 3)},
        "of qkv, [8, 3], the model uses 4 of 8 on axis 0",
    ),
    "another width": (
        {"qkv": drawn(8, 2)}, QKV, QKV_SHAPES, "qkv is [8, 2], from which q, [4, 3], cannot be made",
    ),
    "a list where rows are cut": (
        {"qkv": drawn(8)}, {"p": Split(Rename("qkv"), 0, 2, axis=1)}, {"p": (2,)},
        "qkv is [8], from which p, [2], cannot be made",
    ),
    "a list transposed": (
        {"x": drawn(8)}, {"p": Transpose(Rename("x"))}, {"p": (8,)}, "x is [8], from which p",
    ),
    "pairs of an odd number": (
        {"x": drawn(9, 2)}, {"p": Deinterleave(Rename("x"), 3)}, {"p": (9, 2)}, "x is [9, 2], from",
    ),
    "a half of both halves": (
        {"x": drawn(8, 2)}, {"p": Split(Deinterleave(Rename("x"), 1), 2, 6)}, {"p": (4, 2)},
        "x is [8, 2], from which p, [4, 2], cannot be made",
    ),
    "experts of two shapes": (
        {"x.0": drawn(4, 2), "x.1": drawn(1, 2)}, STACKED, {"p": (2, 4, 2)},
        "x.0 is [4, 2], from which p, [2, 4, 2], cannot be made",
    ),
    "one expert more": (
        {"x.0": drawn(4), "x.1": drawn(4), "x.2": drawn(4)}, STACKED, {"p": (2, 4)},
        "no parameter for: x.2",
    ),
    "scales of another shape": (
        {"blocks": BLOCKS, "scales": SCALES[:, :4]}, PACKED_VERBS, PACKED_SHAPES,
        "blocks is [3, 8, 2, 16], from which gate, [3, 4, 64], cannot be made",
    ),
    "blocks in floating point": (
        {"blocks": BLOCKS.float(), "scales": SCALES}, PACKED_VERBS, PACKED_SHAPES,
        "blocks is stored as F32, not as U8",
    ),
    "integers as weights": (
        {"x": BLOCKS}, {"p": PLAIN}, {"p": (3, 8, 2, 16)}, "x is stored as U8; parameters are read",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISFITS)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, case: str) -> None:
    held, verbs, shapes, message = MISFITS[case]
    with pytest.raises(ModelFileError) as refusal:
        made.load(tmp_path, held, verbs, shapes)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


BIASED: dict[str, Verb] = {
    f"layers.{{i}}.q.{part}": Rename(f"h.{{i}}.q.{part}") for part in ("weight", "bias")
}
WEIGHTS = {f"h.{i}.q.weight": drawn(2, 2) for i in range(2)}
BIASES = {f"h.{i}.q.bias": drawn(2) for i in range(2)}
WEIGHT_SHAPES: dict[str, tuple[int, ...]] = {f"layers.{i}.q.weight": (2, 2) for i in range(2)}
BIAS_SHAPES: dict[str, tuple[int, ...]] = {f"layers.{i}.q.bias": (2,) for i in range(2)}


def test_a_bias_is_there_exactly_where_the_config_declares_it(tmp_path: Path) -> None:
    both = made.load(tmp_path / "a", WEIGHTS | BIASES, BIASED, WEIGHT_SHAPES | BIAS_SHAPES)
    assert torch.equal(both["layers.1.q.bias"], BIASES["h.1.q.bias"])
    with pytest.raises(ModelFileError) as undeclared:
        made.load(tmp_path / "b", WEIGHTS | BIASES, BIASED, WEIGHT_SHAPES)
    with pytest.raises(ModelFileError) as missing:
        made.load(tmp_path / "c", WEIGHTS, BIASED, WEIGHT_SHAPES | BIAS_SHAPES)
    assert "h.0.q.bias (the config declares no layers.0.q.bias)" in str(undeclared.value)
    assert "h.0.q.bias (for layers.0.q.bias, which the config declares)" in str(missing.value)


def test_a_cut_of_a_mapped_tensor_is_mapped_not_copied(tmp_path: Path) -> None:
    """Changing the file shows through, which a copy would not let it."""
    qkv = drawn(8, 3)
    got = made.load(tmp_path, {"qkv": qkv}, QKV, QKV_SHAPES)
    file = tmp_path / "model.safetensors"
    at = file.read_bytes().index(qkv.numpy().tobytes())
    with file.open("r+b") as out:
        out.seek(at)
        out.write((qkv * 2).numpy().tobytes())
    assert torch.equal(got["q"], qkv[:4] * 2)
    assert torch.equal(got["v"], qkv[6:] * 2)
