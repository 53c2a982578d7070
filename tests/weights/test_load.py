"""From tensors to parameters: renaming, reordering, tying, dtypes, and strictness in both directions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.backends import backend
from engine.decoder import Decoder
from engine.errors import LockstepError, ModelFileError
from engine.weights import load_parameters, open_checkpoint
from tests.weights import tiny

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TIED = tiny.CONFIG | {"tie_word_embeddings": True}


@pytest.mark.parametrize("bias", [False, True])
def test_every_parameter_is_the_tensor_it_should_be(tmp_path: Path, bias: bool) -> None:
    held = tiny.tensors(bias=bias)
    config = tiny.CONFIG | {"attention_bias": bias, "mlp_bias": bias}
    got = tiny.parameters(tiny.load(tiny.save_folder(tmp_path, held, config)))
    want = tiny.expected(held)
    assert got.keys() == want.keys()
    assert len(got) == len(held)
    for name, value in got.items():
        assert torch.equal(value, want[name]), name
        assert not value.requires_grad, name


# -- tying: what transformers 5.24 does in each of the cases (run once, and stated here) -----------


@pytest.mark.parametrize(
    ("config", "in_file", "shared", "embed", "head"),
    [
        pytest.param(TIED, "E", True, "E", "E", id="tied, head left out"),
        pytest.param(TIED, "H", True, "H", "H", id="tied, embedding left out"),
        pytest.param(TIED, "EE", True, "E", "E", id="tied, both and equal"),
        pytest.param(TIED, "EH", False, "E", "H", id="tied, both and different"),
        pytest.param(tiny.CONFIG, "EE", False, "E", "E", id="untied, both and equal"),
        pytest.param(tiny.CONFIG, "EH", False, "E", "H", id="untied, both and different"),
    ],
)
def test_tying_follows_the_file_as_in_transformers(
    tmp_path: Path, config: dict[str, object], in_file: str, shared: bool, embed: str, head: str
) -> None:
    """Two different matrices under a config that says tied stay two: the file has the last word."""
    drawn = tiny.tensors()
    values = {"E": drawn.pop(EMBED), "H": drawn.pop(HEAD)}
    match in_file:
        case "E":
            drawn[EMBED] = values["E"]
        case "H":
            drawn[HEAD] = values["H"]
        case _:
            drawn[EMBED], drawn[HEAD] = values["E"], values[in_file[1]].clone()
    decoder = tiny.load(tiny.save_folder(tmp_path, drawn, config))
    assert (decoder.embed.weight is decoder.logits.weight) == shared
    assert torch.equal(decoder.embed.weight, values[embed])
    assert torch.equal(decoder.logits.weight, values[head])


@pytest.mark.parametrize(
    ("config", "left_out", "message"),
    [
        (TIED, (EMBED, HEAD), f"missing tensors: {EMBED} (for embed.weight), {HEAD}"),
        (tiny.CONFIG, (HEAD,), f"missing tensors: {HEAD} (for logits.weight)"),
        (tiny.CONFIG, (EMBED,), f"missing tensors: {EMBED} (for embed.weight)"),
    ],
)
def test_a_head_or_embedding_that_nothing_can_stand_for_is_missing(
    tmp_path: Path, config: dict[str, object], left_out: tuple[str, ...], message: str
) -> None:
    """transformers draws these at random with a warning; this loader never invents a number."""
    held = {name: value for name, value in tiny.tensors().items() if name not in left_out}
    with pytest.raises(ModelFileError) as refusal:
        tiny.load(tiny.save_folder(tmp_path, held, config))
    assert message in str(refusal.value)


def test_loading_anew_does_not_tie_to_what_was_there_before(tmp_path: Path) -> None:
    held = tiny.tensors()
    del held[HEAD]
    first = tiny.save_folder(tmp_path / "a", held, TIED)
    held[HEAD] = held.pop(EMBED) + 1
    second = open_checkpoint(tiny.save_folder(tmp_path / "b", held, TIED))
    decoder = tiny.load(first)
    load_parameters(decoder, second, "cpu", torch.float32)
    assert torch.equal(decoder.embed.weight, held[HEAD])
    assert decoder.embed.weight is decoder.logits.weight


# -- strictness ----------------------------------------------------------------------------------


def test_all_problems_are_in_one_sentence_with_names_and_both_shapes(tmp_path: Path) -> None:
    held = tiny.tensors()
    del held["model.layers.1.mlp.up_proj.weight"]
    held["model.norm.weight"] = torch.zeros(tiny.DIM + 1)
    for i in range(5):
        held[f"surplus.{i}"] = torch.zeros(1)
    folder = tiny.save_folder(tmp_path, held)
    with pytest.raises(ModelFileError) as refusal:
        tiny.load(folder)
    message = str(refusal.value)
    for part in (
        str(folder),
        "missing tensors: model.layers.1.mlp.up_proj.weight (for layers.1.mlp.up.weight)",
        "wrong shapes: model.norm.weight is [65], but final_norm.weight is [64]",
        "no parameter for: surplus.0, surplus.1, surplus.2 and 2 more",
    ):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize("name", tiny.LINEARS)
def test_a_transposed_matrix_is_a_wrong_shape(tmp_path: Path, name: str) -> None:
    held = tiny.tensors()
    key = f"model.layers.0.{name}.weight"
    held[key] = held[key].T.contiguous()
    with pytest.raises(ModelFileError, match="wrong shapes"):
        tiny.load(tiny.save_folder(tmp_path, held))


def test_nothing_is_read_before_the_shapes_agree(tmp_path: Path) -> None:
    """A half-loaded decoder would be worse than none."""
    held = tiny.tensors()
    held["model.norm.weight"] = torch.zeros(3)
    checkpoint = open_checkpoint(tiny.save_folder(tmp_path, held))
    decoder = Decoder(checkpoint.spec, backend("eager", checkpoint.spec))
    with pytest.raises(ModelFileError):
        load_parameters(decoder, checkpoint, "cpu", torch.float32)
    assert all(parameter.is_meta for parameter in decoder.parameters())


def test_a_parameter_without_a_rule_is_an_error_that_names_it(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny.save_folder(tmp_path, tiny.tensors()))
    decoder = Decoder(checkpoint.spec, backend("eager", checkpoint.spec))
    decoder.layers[0].extra = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(LockstepError, match=r"no rule for the parameter layers\.0\.extra"):
        load_parameters(decoder, checkpoint, "cpu", torch.float32)


# -- dtypes --------------------------------------------------------------------------------------

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16, torch.float16])
def test_a_file_of_mixed_dtypes_loads_in_the_one_asked_for(
    tmp_path: Path, wanted: torch.dtype
) -> None:
    """Each tensor is rounded once, from its own dtype to the one asked for."""
    held = {
        name: value.to(FLOATS[i % len(FLOATS)])
        for i, (name, value) in enumerate(tiny.tensors().items())
    }
    folder = tiny.save_folder(tmp_path, held)
    stored = open_checkpoint(folder).tensors.values()
    assert {tensor.dtype for tensor in stored} == {"F64", "F32", "F16", "BF16"}
    got = tiny.parameters(tiny.load(folder, wanted))
    for name, value in tiny.expected(held).items():
        assert got[name].dtype == wanted
        assert torch.equal(got[name], value.to(wanted)), name


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_a_parameter_is_never_read_from_integers_or_scaled_floats(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    """Such tensors need scales; their bare values are wrong weights."""
    held = tiny.tensors()
    held["model.norm.weight"] = torch.ones(tiny.DIM).to(dtype)
    with pytest.raises(ModelFileError, match=r"model\.norm\.weight is stored as .*only"):
        tiny.load(tiny.save_folder(tmp_path, held))


def test_a_tensor_that_has_the_dtype_already_is_mapped_not_copied(tmp_path: Path) -> None:
    """Changing the file shows through, which a copy would not let it."""
    held = tiny.tensors()
    folder = tiny.save_folder(tmp_path, held)
    decoder = tiny.load(folder)
    old, new = held[HEAD].numpy().tobytes(), (held[HEAD] * 2).numpy().tobytes()
    file = folder / "model.safetensors"
    at = file.read_bytes().index(old)
    with file.open("r+b") as out:
        out.seek(at)
        out.write(new)
    assert torch.equal(decoder.logits.weight, held[HEAD] * 2)
