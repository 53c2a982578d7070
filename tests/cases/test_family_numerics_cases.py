"""Public cases of the theme numerics in every family that they concern, beside transformers itself.

E02, E04, E06, E07, E09, E10; of the theme cache C03 and C09, of conformance I02. The cases' own numbers
are in test_numerics_cases, and llama's part of E01 and E07 in test_engine_cases.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conformance.oracle.model import Oracle
from conformance.reorder import Variant
from engine import Engine, SamplingParams, spec
from engine.backends import eager
from engine.errors import ModelFileError, RequestError
from engine.families import FAMILIES as KNOWN
from engine.families import read_spec
from engine.families.family import Rename
from engine.layers import AllHeadsNorm, Embedding
from engine.mask import View, visible
from tests.cases.models import FAMILIES, IDS, WINDOW, Models, differ
from tests.engine import tiny
from tests.engine.test_attention import Scores, view
from tests.engine.tiny import one_thread  # noqa: F401  (applies to this module)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def spec_of(family: str, **changes: Any) -> spec.ModelSpec:
    return read_spec({"model_type": family, **FAMILIES[family], **changes})[1]


# -- E02: rows in which every key is masked --------------------------------------------------------


@pytest.mark.parametrize("window", [None, 1, 4])
def test_e02_every_token_sees_itself_so_no_row_is_empty(window: int | None) -> None:
    """The softmax of a row without a key is 0/0. This engine has no padding to make such rows."""
    positions = torch.arange(9)
    seen = visible(positions[2:, None], positions[None], window)
    assert seen.any(-1).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_e02_nothing_is_nan_anywhere(family: str, models: Models) -> None:
    for dtype in DTYPES:
        seen = models.engine(models.folder(family), dtype).trace(IDS)
        assert len(seen) > 25
        assert [name for name, value in seen.items() if value.isnan().any()] == []


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("dtype", "allowed"), [("float32", 1e-5), ("float16", 2e-3), ("bfloat16", 2e-2)]
)
def test_e02_the_references_padded_rows_are_its_unpadded_ones(
    attention: str, dtype: str, allowed: float, tmp_path: Path
) -> None:
    """Padding on the left is part of the noise by which engines are judged: it may not poison that."""
    folder = tiny.save_folder(tmp_path, tiny.CASE, draw=tiny.case_draw(0.2))
    model = Models(tmp_path).reference(folder, DTYPES[dtype])
    rows: list[Tensor] = []
    whole: list[Tensor] = []
    model.register_forward_hook(lambda module, args, output: whole.append(output.logits))

    def tap(probe: str, value: Tensor) -> Tensor:
        if probe == "logits":
            rows.append(value[0].float().clone())
        return value

    for pad in (0, 3):
        oracle = Oracle(model, Variant(attention=attention, pad=pad))
        oracle.begin(5)
        oracle.step(torch.tensor(IDS[:5]), tap)
    assert [logits.shape[1] for logits in whole] == [5, 8]
    assert all(logits.isfinite().all() for logits in whole)
    assert (rows[1] - rows[0]).abs().max() <= allowed


# -- E04: softcaps, and I02: kernels without one ---------------------------------------------------


@pytest.mark.parametrize("cap", [0.1, 1.0, 50.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_e04_no_cap_in_any_dtype_lets_a_hidden_key_through(cap: float, dtype: str) -> None:
    keys = torch.randn(1, 1, 6, 4, generator=torch.Generator().manual_seed(0)).to(DTYPES[dtype])
    attn = Scores(1.0, softcap=cap)
    seen: list[Tensor] = []
    attn.weights.register_forward_hook(lambda module, args, value: seen.append(value))
    shown = torch.tensor([True, False, True, False, True, False])
    k_pos = torch.arange(6).masked_fill(~shown, -1)
    eager.attend(keys[:, :, :1], keys, keys, View(torch.tensor([[5]]), k_pos[None], None), attn)
    assert seen[0][..., ~shown].count_nonzero() == 0
    assert seen[0][..., shown].count_nonzero() == 3


def test_e04_gemma2_with_both_caps_is_the_reference(models: Models) -> None:
    folder = models.folder("gemma2")
    got = models.engine(folder).logits(IDS)
    assert differ(got, models.expected(folder)) < 1e-5
    assert got.abs().max() <= 3


@pytest.mark.parametrize("cap", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_e04_a_cap_that_is_dropped_would_show(cap: str, models: Models) -> None:
    """Beside a model that has this cap alone, so that the other does not hide it."""
    alone = {"attn_logit_softcapping": None, "final_logit_softcapping": None, cap: 2.0}
    with_cap = models.expected(models.folder("gemma2", **alone))
    without = models.engine(models.folder("gemma2", **{**alone, cap: None})).logits(IDS)
    assert differ(without, with_cap) > 0.01


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss"])
def test_i02_both_sides_refuse_the_kernel_that_would_drop_a_cap_or_a_sink(
    family: str, models: Models
) -> None:
    folder = models.folder(family)
    with pytest.raises(ValueError, match="scaled_dot_product_attention"):
        models.expected(folder, "sdpa")
    with pytest.raises(RequestError, match=r"sdpa has no (softcap|sinks), which is needed here"):
        Engine.load(folder, backend="sdpa")


# -- E06: the embedding's scale --------------------------------------------------------------------

E06 = {
    "bfloat16": {640: 25.25, 1152: 34.0, 2048: 45.25, 3072: 55.5},
    "float32": {640: 25.298222, 1152: 33.941124, 2048: 45.254833, 3072: 55.425625},
    "float16": {640: 25.296875, 1152: 33.9375, 2048: 45.25, 3072: 55.4375},
}


@pytest.mark.parametrize("family", ["gemma", "gemma2", "gemma3_text"])
@pytest.mark.parametrize("dtype", E06)
def test_e06_embeddings_are_scaled_by_the_root_in_their_own_dtype(family: str, dtype: str) -> None:
    """Of ones the root comes out; of other numbers products show that it was rounded before them."""
    for dim, value in E06[dtype].items():
        embed = Embedding(spec_of(family, hidden_size=dim))
        weight = torch.stack((torch.ones(dim), torch.linspace(0.5, 1.5, dim))).to(DTYPES[dtype])
        embed.weight = nn.Parameter(weight, requires_grad=False)
        ones, others = embed(torch.tensor([[0, 1]]), torch.tensor([0, 1]))[0]
        assert ones.tolist() == pytest.approx([value] * dim, rel=2e-8)
        assert torch.equal(others, (weight[1].float() * ones[0].float()).to(DTYPES[dtype]))
        late = (weight[1].float() * dim**0.5).to(DTYPES[dtype])
        assert torch.equal(others, late) == (dtype == "float32")


def test_e06_a_multiplier_of_the_config_is_not_rounded_first() -> None:
    """Granite's: 12.3 is 12.3125 in bfloat16, and 3 times that is 37 there, not 36.75."""
    embed = Embedding(spec_of("granite", embedding_multiplier=12.3))
    embed.weight = nn.Parameter(torch.full((2, 32), 3.0).bfloat16(), requires_grad=False)
    assert set(embed(torch.tensor([[1]]), torch.tensor([0])).flatten().tolist()) == {37.0}


# -- E07: where a norm casts -----------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_e07_every_norm_of_every_family_rounds_as_the_reference_does(
    family: str, models: Models
) -> None:
    """Bit for bit: llama casts before the product with the weight, Gemma after it."""
    folder = models.folder(family)
    for dtype, kind in DTYPES.items():
        decoder = models.engine(folder, dtype).decoder
        layout = KNOWN[family].layout(decoder.spec)
        modules = dict(models.reference(folder, kind).named_modules())
        compared = 0
        for name, ours in decoder.named_modules():
            if name.startswith("layers.0.") or not name.endswith("norm"):
                continue
            verb = layout.verbs.get(f"{name}.weight".replace("layers.1.", "layers.{i}."))
            if not isinstance(verb, Rename) or isinstance(ours, AllHeadsNorm | nn.Identity):
                continue
            source = verb.source.replace("{i}", "1").removesuffix(".weight")
            theirs = next(modules[p + source] for p in layout.prefixes if p + source in modules)
            x = torch.randn(64, *ours.weight.shape, generator=torch.Generator().manual_seed(1))
            x = (3 * x).to(kind)
            assert torch.equal(ours(x), theirs(x)), name
            compared += 1
        assert compared >= 3


# -- E09: sinks ------------------------------------------------------------------------------------


def test_e09_a_sink_of_minus_infinity_is_none_and_a_large_one_takes_all() -> None:
    q, v = torch.ones(1, 1, 1, 2), torch.eye(2).view(1, 1, 2, 2)

    def context(sink: float | None) -> Tensor:
        sinks = None if sink is None else torch.tensor([sink])
        return eager.attend(q, v, v, view(1, 1), Scores(1.0, sinks=sinks))

    assert torch.equal(context(-torch.inf), context(None))
    assert context(80.0).abs().max() < 1e-30


@pytest.mark.parametrize("chunk", [None, 7, 1])
def test_e09_prompts_and_single_tokens_with_sinks_are_the_references(
    chunk: int | None, models: Models
) -> None:
    folder = models.folder("gpt_oss")
    engine = models.engine(folder)
    assert differ(engine.logits(IDS, chunk), models.expected(folder)) < 1e-5
    assert all(layer.attn.sinks.count_nonzero() == 4 for layer in engine.decoder.layers)


def test_e09_sinks_that_are_dropped_would_show(models: Models) -> None:
    folder = models.folder("gpt_oss")
    engine = Engine.load(folder)
    for layer in engine.decoder.layers:
        layer.attn.sinks = nn.Parameter(torch.full((4,), -torch.inf), requires_grad=False)
    assert differ(engine.logits(IDS), models.expected(folder)) > 0.01


# -- E10: GPT-2's scale ----------------------------------------------------------------------------

E10: list[dict[str, Any]] = [
    {"scale_attn_by_inverse_layer_idx": True},
    {"scale_attn_weights": False},
    {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
    {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
]


@pytest.mark.parametrize("flags", E10, ids="+".join)
def test_e10_both_kernels_scale_as_the_flags_say(flags: dict[str, Any], models: Models) -> None:
    folder = models.folder("gpt2", n_layer=3, **flags)
    expected = models.expected(folder)
    for backend in ("eager", "sdpa"):
        assert differ(Engine.load(folder, backend=backend).logits(IDS), expected) < 1e-5
    plain = models.engine(models.folder("gpt2", n_layer=3)).logits(IDS)
    assert differ(plain, expected) > 0.01, "a flag that is ignored would show"


@pytest.mark.parametrize(
    "flag", ["scale_attn_by_layer_idx", "use_alibi", "parallel_residual", "scale_attn_weigths"]
)
def test_e10_an_unknown_flag_is_refused(flag: str) -> None:
    with pytest.raises(ModelFileError, match=f"{flag} is not understood for the family gpt2"):
        spec_of("gpt2", **{flag: True})


# -- C03 and C09: what of the theme cache concerns other families ----------------------------------

SLIDING = [f for f in FAMILIES if any(layer.attn.window for layer in spec_of(f).layers)]


@pytest.mark.parametrize("family", SLIDING)
def test_c03_every_step_with_a_window_is_the_references_recompute(
    family: str, models: Models
) -> None:
    """Through the lengths around the window and its double, after prefills that end around it."""
    folder = models.folder(family)
    decoder, expected = models.engine(folder).decoder, models.expected(folder)
    for first in (1, WINDOW, WINDOW + 1):
        steps = [first] + [1] * (len(IDS) - first)
        assert differ(tiny.logits(decoder, IDS, steps), expected) < 1e-5


@pytest.mark.parametrize("by", [-1, 1])
def test_c03_a_window_off_by_one_would_show(by: int, models: Models) -> None:
    expected = models.expected(models.folder("mistral"))
    wrong = models.engine(models.folder("mistral", sliding_window=WINDOW + by)).logits(IDS)
    assert differ(wrong[: WINDOW - 1], expected[: WINDOW - 1]) < 1e-5
    assert differ(wrong[WINDOW:], expected[WINDOW:]) > 0.01


def test_c09_learned_positions_end_in_a_sentence_not_in_an_index_error(models: Models) -> None:
    engine = models.engine(models.folder("gpt2", n_positions=16))
    with pytest.raises(RequestError, match=r"20 tokens .* context is 16"):
        engine.generate([1] * 20)
    done = engine.generate([1] * 12, SamplingParams(max_tokens=10))
    assert (len(done.token_ids), done.finish_reason) == (4, "length")
