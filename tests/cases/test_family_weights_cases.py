"""Public cases of the theme weights in every family, beside transformers itself: F02, F04 to F08, and D08.

Files and configs are as transformers 5.24 writes them, or made from those; llama's own part of F02, F04,
F05 and D08 is in test_weights_cases.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from conformance.oracle.configs import skeleton, written
from conformance.oracle.model import load
from engine import Engine
from engine.errors import ModelFileError
from engine.families import read_spec
from engine.probe import attached
from engine.spec import ClampedSwiGLU, MoE
from tests.cases.models import FAMILIES, IDS, ROTARY, Models, differ
from tests.engine.tiny import one_thread  # noqa: F401  (applies to this module)

FILE = "model.safetensors"


def rewritten(folder: Path, to: Path, tensors: Mapping[str, Tensor]) -> Path:
    """The model of `folder` with other tensors."""
    to.mkdir(exist_ok=True)
    shutil.copy(folder / "config.json", to)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, to / FILE)
    return to


def same_parameters(one: Path, other: Path) -> bool:
    left, right = (dict(Engine.load(path).decoder.named_parameters()) for path in (one, other))
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


def _one_of_its_kind(name: str) -> bool:
    """A tensor of the second layer or of none; of experts, one."""
    return not re.search(r"(layers|h)\.0\.|experts\.[^3]\.", name)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_writes_is_the_model_that_transformers_runs(
    family: str, models: Models
) -> None:
    """What all cases below build upon; every number of the file takes part."""
    folder = models.folder(family)
    assert differ(models.engine(folder).logits(IDS), models.expected(folder)) < 1e-5


# -- F02: an incomplete file -----------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_f02_any_tensor_that_is_missing_is_named(
    family: str, models: Models, tmp_path: Path
) -> None:
    tensors = load_file(models.folder(family) / FILE)
    last = [name for name in tensors if _one_of_its_kind(name)]
    assert len(last) > 8
    for name in last:
        held = {other: tensor for other, tensor in tensors.items() if other != name}
        with pytest.raises(ModelFileError) as refusal:
            Engine.load(rewritten(models.folder(family), tmp_path, held))
        # What has had two names is missed by the newer.
        newer = name.replace("block_sparse_moe.gate", "mlp.gate")
        assert f"{newer} (for" in str(refusal.value)


# -- F04: the width of a head ----------------------------------------------------------------------


def test_f04_a_given_width_is_that_of_shapes_norms_and_scale(models: Models) -> None:
    folder = models.folder("qwen3", head_dim=16)
    engine = models.engine(folder)
    attn = engine.spec.layers[0].attn
    assert (attn.head_dim, attn.scale) == (16, 0.25)
    shapes = {name: tuple(t.shape) for name, t in load_file(folder / FILE).items()}
    assert shapes["model.layers.0.self_attn.q_proj.weight"] == (64, 32)
    assert shapes["model.layers.0.self_attn.o_proj.weight"] == (32, 64)
    assert shapes["model.layers.0.self_attn.q_norm.weight"] == (16,)
    assert differ(engine.logits(IDS), models.expected(folder)) < 1e-5


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text"])
def test_f04_gemma_scales_by_a_number_of_its_own(family: str) -> None:
    _, spec = read_spec({"model_type": family, **FAMILIES[family], "query_pre_attn_scalar": 9})
    assert {(layer.attn.head_dim, layer.attn.scale) for layer in spec.layers} == {(12, 1 / 3)}


@pytest.mark.parametrize("family", [f for f in ROTARY if f != "deepseek_v3"])
def test_f04_without_a_width_it_is_transformers_default(family: str) -> None:
    """The quotient, or a number of the family's own: Qwen3's 128, Gemma's 256, gpt-oss's 64."""
    given = {k: v for k, v in FAMILIES[family].items() if k != "head_dim"}
    config = written(family, given)
    attention = skeleton(config).model.layers[0].self_attn
    _, spec = read_spec({"model_type": family, **given})
    assert spec.layers[0].attn.head_dim == attention.head_dim
    assert read_spec(config)[1] == spec
    assert spec.layers[0].attn.head_dim * 4 == attention.o_proj.in_features


@pytest.mark.parametrize("family", ["llama", "mistral", "mixtral", "qwen2"])
def test_f04_null_is_the_quotient(family: str) -> None:
    _, spec = read_spec({"model_type": family, **FAMILIES[family], "head_dim": None})
    assert spec.layers[0].attn.head_dim == 8


# -- F05: biases -----------------------------------------------------------------------------------

BIASED = {
    "gpt2": {},
    "llama": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {},
    "qwen3": {"attention_bias": True},
    "gemma": {"attention_bias": True},
    "gemma2": {"attention_bias": True},
    "gemma3_text": {"attention_bias": True},
    "olmo2": {"attention_bias": True},
    "smollm3": {"attention_bias": True, "mlp_bias": True},
    "granite": {"attention_bias": True, "mlp_bias": True},
    "qwen3_moe": {"attention_bias": True},
    "gpt_oss": {},
    "deepseek_v3": {"attention_bias": True},
}


@pytest.mark.parametrize("family", BIASED)
def test_f05_every_bias_of_the_file_is_added(family: str, models: Models) -> None:
    """As the reference does, and each one moves the logits: none is loaded and then left out."""
    folder = models.folder(family, **BIASED[family])
    engine = Engine.load(folder)
    expected = models.expected(folder)
    assert differ(engine.logits(IDS), expected) < 1e-5
    biases = [n for n, _ in engine.decoder.named_parameters() if "bias" in n and ".0." in n]
    assert len(biases) >= 3
    for name in biases:
        owner, _, leaf = name.rpartition(".")
        module = engine.decoder.get_submodule(owner)
        held = getattr(module, leaf)
        setattr(module, leaf, nn.Parameter(torch.zeros_like(held), requires_grad=False))
        moved = differ(engine.logits(IDS), expected)
        setattr(module, leaf, held)
        # Without a rotation a key's bias adds the same to all scores of a query.
        assert (moved > 1e-4) == (name != "layers.0.attn.k.bias" or family != "gpt2"), name


@pytest.mark.parametrize("family", FAMILIES)
def test_f05_a_bias_that_the_config_does_not_declare_is_refused(
    family: str, models: Models, tmp_path: Path
) -> None:
    tensors = load_file(models.folder(family) / FILE)
    matrices = [name for name, t in tensors.items() if t.dim() == 2 and _one_of_its_kind(name)]
    extra = [name.removesuffix("weight") + "bias" for name in matrices if name.endswith("weight")]
    undeclared = [name for name in extra if name not in tensors]
    assert undeclared
    for name in undeclared:
        held = {**tensors, name: torch.ones(tensors[name.removesuffix("bias") + "weight"].shape[0])}
        with pytest.raises(ModelFileError, match=f"no parameter for: {name}"):
            Engine.load(rewritten(models.folder(family), tmp_path, held))


# -- F06: GPT-2's matrices, prefix and buffers -----------------------------------------------------


def test_f06_files_of_either_prefix_with_their_mask_buffers_are_the_same_model(
    models: Models, tmp_path: Path
) -> None:
    folder = models.folder("gpt2")
    tensors = load_file(folder / FILE)
    assert all(
        name.startswith("transformer.") for name in tensors
    )  # no head of its own: it is tied
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    mask = torch.ones(64, 64).tril().view(1, 1, 64, 64)
    buffers = {
        **{f"h.{i}.attn.bias": mask.clone() for i in range(2)},
        **{f"h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(2)},
    }
    hub = rewritten(folder, tmp_path / "hub", {**bare, **buffers})
    longer = {f"transformer.{name}": tensor for name, tensor in buffers.items()}
    old = rewritten(folder, tmp_path / "old", {**tensors, **longer})
    headed = {**tensors, "lm_head.weight": tensors["transformer.wte.weight"].clone()}
    expected = models.engine(folder).logits(IDS)
    for path in (hub, old, rewritten(folder, tmp_path / "headed", headed)):
        assert torch.equal(Engine.load(path).logits(IDS), expected)
        assert torch.equal(_reference_logits(path), models.expected(folder))


def _reference_logits(path: Path) -> Tensor:
    return Models(path).expected(path)


@pytest.mark.parametrize("name", ["h.0.attn.bias", "h.1.attn.bias"])
def test_f06_a_buffer_stands_for_no_bias_that_is_missing(
    name: str, models: Models, tmp_path: Path
) -> None:
    folder = models.folder("gpt2")
    tensors = load_file(folder / FILE)
    del tensors[f"transformer.{name.replace('attn.bias', 'attn.c_attn.bias')}"]
    held = {**tensors, f"transformer.{name}": torch.ones(1, 1, 64, 64)}
    with pytest.raises(ModelFileError, match=r"attn\.c_attn\.bias"):
        Engine.load(rewritten(folder, tmp_path, held))


def test_f06_a_square_matrix_left_untransposed_would_show(models: Models) -> None:
    """The shapes fit, so only numbers tell."""
    folder = models.folder("gpt2")
    engine = Engine.load(folder)
    for layer in engine.decoder.layers:
        layer.attn.out.weight = nn.Parameter(layer.attn.out.weight.T, requires_grad=False)
    assert differ(engine.logits(IDS), models.expected(folder)) > 0.1


# -- F07: what experts' results are weighed by -----------------------------------------------------

ROUTED = ["mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3"]


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_f07_the_flag_is_obeyed_and_matters(family: str, models: Models) -> None:
    shown = []
    for normalised in (False, True):
        folder = models.folder(family, norm_topk_prob=normalised)
        shown.append(models.engine(folder).logits(IDS))
        assert differ(shown[-1], models.expected(folder)) < 1e-5
    assert differ(*shown) > 0.01


@pytest.mark.parametrize("family", ROUTED)
@pytest.mark.parametrize("normalised", [False, True])
def test_f07_weights_sum_to_one_where_they_are_normalised(
    family: str, normalised: bool, models: Models
) -> None:
    """Always in Mixtral and, by its softmax over the chosen, in gpt-oss; DeepSeek scales the sum."""
    has_flag = family in ("qwen3_moe", "deepseek_v3")
    folder = models.folder(family, **({"norm_topk_prob": normalised} if has_flag else {}))
    decoder = models.engine(folder).decoder
    moe = next(layer.mlp for layer in decoder.spec.layers if isinstance(layer.mlp, MoE))
    sums: list[Tensor] = []

    def keep(probe: str, value: Tensor) -> Tensor:
        if probe.endswith("expert_weights"):
            sums.append(value.sum(-1) / moe.router.scale)
        return value

    with attached(keep, ("", decoder)):
        models.engine(folder).logits(IDS)
    one = torch.ones(())
    assert sums
    assert all(torch.allclose(s, one, atol=1e-6) == (normalised or not has_flag) for s in sums)


# -- F08: experts in every layout ------------------------------------------------------------------

ONE_BY_ONE = {
    "mixtral": "model.layers.1.block_sparse_moe.experts.3.w1.weight",
    "qwen3_moe": "model.layers.1.mlp.experts.3.gate_proj.weight",
    "deepseek_v3": "model.layers.1.mlp.experts.3.gate_proj.weight",
}


@pytest.mark.parametrize("family", ONE_BY_ONE)
def test_f08_experts_one_by_one_and_fused_are_the_same_model(
    family: str, models: Models, tmp_path: Path
) -> None:
    folder = models.folder(family)
    load(folder, torch.bfloat16).save_pretrained(tmp_path, save_original_format=False)
    apart, fused = load_file(folder / FILE), load_file(tmp_path / FILE)
    together = "model.layers.1.mlp.experts.gate_up_proj"
    assert ONE_BY_ONE[family] in apart and together not in apart
    assert ONE_BY_ONE[family] not in fused and together in fused
    assert same_parameters(folder, tmp_path)
    assert torch.equal(Engine.load(tmp_path).logits(IDS), models.engine(folder).logits(IDS))
    experts = models.engine(folder).decoder.layers[1].mlp.experts
    half = experts.gate.shape[1]
    assert torch.equal(experts.gate, fused[together][:, :half].float())
    assert torch.equal(experts.up, fused[together][:, half:].float())
    assert torch.equal(experts.gate[3], apart[ONE_BY_ONE[family]].float())


def test_f08_gpt_oss_interleaves_gate_and_up(models: Models) -> None:
    folder = models.folder("gpt_oss")
    tensors = load_file(folder / FILE)
    engine = models.engine(folder)
    for i, layer in enumerate(engine.decoder.layers):
        name = f"model.layers.{i}.mlp.experts.gate_up_proj"
        both, biases = tensors[name].float().transpose(1, 2), tensors[name + "_bias"].float()
        experts = layer.mlp.experts
        assert torch.equal(experts.gate, both[:, ::2])
        assert torch.equal(experts.up, both[:, 1::2])
        assert torch.equal(experts.gate_bias, biases[:, ::2])
        assert torch.equal(experts.up_bias, biases[:, 1::2])
    assert {layer.mlp.activation for layer in engine.spec.layers} == {ClampedSwiGLU(1.702, 7.0)}


@pytest.mark.parametrize("change", [{"swiglu_limit": 0.5}, {"swiglu_alpha": 3.0}], ids="+".join)
def test_f08_gpt_oss_s_clamp_and_slope_are_the_files(
    change: dict[str, float], models: Models
) -> None:
    folder = models.folder("gpt_oss", **change)
    got = models.engine(folder).logits(IDS)
    assert differ(got, models.expected(folder)) < 1e-5
    assert differ(got, models.expected(models.folder("gpt_oss"))) > 1e-3


@pytest.mark.parametrize("family", ONE_BY_ONE)
def test_f08_an_expert_too_few_or_too_many_is_named(
    family: str, models: Models, tmp_path: Path
) -> None:
    folder = models.folder(family)
    tensors = load_file(folder / FILE)
    name = ONE_BY_ONE[family]
    with pytest.raises(ModelFileError, match="experts"):
        Engine.load(rewritten(folder, tmp_path, {n: t for n, t in tensors.items() if n != name}))
    beyond = name.replace("experts.3.", "experts.9.")
    with pytest.raises(ModelFileError, match=f"no parameter for: {beyond}"):
        Engine.load(rewritten(folder, tmp_path, {**tensors, beyond: tensors[name].clone()}))


# -- D08: rope parameters as transformers 5 writes them, and as the hub's files have them ----------

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}


@pytest.mark.parametrize(
    ("family", "kind"),
    # Phi-3 has LongRoPE and no other scaling.
    [(f, kind) for f in ROTARY for kind in SCALINGS if f != "phi3" or kind == "default"],
)
def test_d08_every_spelling_of_a_rope_is_the_same_model(family: str, kind: str) -> None:
    """Equal specs are equal logits; and transformers' own translation of a spelling is that model, too."""
    given = {**FAMILIES[family], "rope_theta": 500000.0}
    names = ["rope_type"] if family == "gemma3_text" else ["rope_type", "type"]
    spellings = [{**given, "rope_scaling": {name: kind, **SCALINGS[kind]}} for name in names]
    if kind == "default":
        spellings = [given, {**given, "rope_scaling": None}]
    files = [written(family, config) for config in spellings]
    assert not any({"rope_theta", "rope_scaling"} & file.keys() for file in files)
    specs = [read_spec({"model_type": family, **config})[1] for config in spellings + files]
    assert all(spec == specs[0] for spec in specs)
    ropes = {layer.attn.rope for layer in specs[0].layers} - {None}
    assert 500000.0 in {rope.theta for rope in ropes}
    default = {"model_type": family, **FAMILIES[family]}
    assert read_spec(default)[1] != specs[0]


def test_d08_transformers_5_names_no_base_and_no_pattern_of_gemma_3() -> None:
    """It nests a table for each kind of layer, and says which layer is which."""
    older = {
        **{k: v for k, v in FAMILIES["gemma3_text"].items() if k != "layer_types"},
        "num_hidden_layers": 7,
        "rope_theta": 500000.0,
        "rope_local_base_freq": 20000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 3,
    }
    file = written("gemma3_text", older)
    assert file["rope_parameters"].keys() == {"full_attention", "sliding_attention"}
    assert not {"rope_theta", "rope_local_base_freq"} & file.keys()
    spec = read_spec(file)[1]
    assert spec == read_spec({"model_type": "gemma3_text", **older})[1]
    attn = [layer.attn for layer in spec.layers]
    assert [a.window is None for a in attn] == [False, False, True, False, False, True, False]
    assert [a.rope.theta for a in attn if a.rope] == [20000.0, 20000.0, 500000.0] * 2 + [20000.0]


def test_d08_a_spelling_that_transformers_drops_is_refused() -> None:
    """Gemma 3's code there looks for rope_type alone, and takes the scaling below for none."""
    dropped = {"rope_scaling": {"type": "linear", "factor": 8.0}}
    file = written("gemma3_text", {**FAMILIES["gemma3_text"], **dropped})
    assert file["rope_parameters"]["full_attention"]["rope_type"] == "default"
    with pytest.raises(ModelFileError, match="factor"):
        read_spec({"model_type": "gemma3_text", **FAMILIES["gemma3_text"], **dropped})


@pytest.mark.parametrize("family", ROTARY)
def test_d08_an_unknown_scheme_is_refused_in_every_family(family: str) -> None:
    tables: list[dict[str, Any]] = [
        {"rope_scaling": {"type": "dynamite", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "dynamite", "factor": 2.0}},
        {"rope_scaling": {"factor": 2.0}},
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "dynamite"}},
    ]
    if family == "gemma3_text":
        tables[-1] = {"rope_parameters": {"sliding_attention": {"rope_type": "dynamite"}}}
    for table in tables:
        with pytest.raises(ModelFileError, match=r"config\.json"):
            read_spec({"model_type": family, **FAMILIES[family], **table})


def test_d08_a_saved_folder_has_the_config_that_is_read_above(models: Models) -> None:
    for family in ("llama", "gemma3_text", "gpt_oss"):
        file = json.loads((models.folder(family) / "config.json").read_text())
        assert read_spec(file)[1] == read_spec(written(family, FAMILIES[family]))[1]
        assert "dtype" in file and "torch_dtype" not in file
