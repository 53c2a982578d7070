"""Quantised engines against transformers on the very numbers that their weights stand for.

Like `test_oracle`, these tests run transformers in their own process: truth and noise are measured on the
spot, for a checkpoint in which every map has those numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from conformance.candidate import operation
from conformance.cases import Case
from conformance.cases.case import TIED_DRAWS, YARN, tiny
from conformance.cases.deepseek_v3 import CASES as DEEPSEEK
from conformance.cases.gemma import PLUS_ONE_TIED
from conformance.cases.gpt2 import CASES as GPT2
from conformance.compiled_candidate import CompiledCandidate, graphs_as_they_are
from conformance.engine_candidate import EngineCandidate
from conformance.golden import Golden
from conformance.oracle.capture import capture_there
from conformance.oracle.tiny import tiny_checkpoint
from conformance.quantised_candidate import candidates, write_dequantised
from conformance.verdict import trial
from engine import Engine
from engine.layers import Linear
from engine.quantised import GROUP, KINDS, Int4Weight, Int8Weight, LooseWeight

#: Inputs of maps are groups of 32, but for one feed-forward, which stays as it is in int4.
_SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
_NEAR = {"rope_type": "default", "rope_theta": 100.0}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        "family": "llama",
        "config": tiny(**_SIZES, attention_bias=True, mlp_bias=True),
    },
    "llama-tied": {
        "family": "llama",
        "config": tiny(**{**_SIZES, "intermediate_size": 56}, tie_word_embeddings=True),
        "draws": TIED_DRAWS,
    },
    "gpt2": {
        "family": "gpt2",
        "config": {**GPT2[0].config, "n_embd": 96},
        "draws": GPT2[0].draws,
    },
    "gemma3": {
        "family": "gemma3_text",
        "config": tiny(
            **_SIZES,
            query_pre_attn_scalar=24,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters={"sliding_attention": _NEAR, "full_attention": _NEAR},
        ),
        "draws": PLUS_ONE_TIED,
    },
    "mixtral": {
        "family": "mixtral",
        "config": tiny(**_SIZES, num_local_experts=4, num_experts_per_tok=2),
    },
    "deepseek-v3": {
        "family": "deepseek_v3",
        "config": {
            **DEEPSEEK[0].config,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "q_lora_rank": 32,
            "kv_lora_rank": 32,
            "v_head_dim": 16,
            "moe_intermediate_size": 32,
            "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.5},
        },
        "draws": DEEPSEEK[0].draws,
    },
}
#: Each model in one of the dtypes by each kind, the first in all of them.
RUNS = [
    *(("llama", kind, dtype) for kind in ("int8", "int4") for dtype in ("float32", "bfloat16")),
    ("llama", "int4", "float16"),
    ("llama-tied", "int8", "float32"),
    ("gpt2", "int4", "float32"),
    ("gemma3", "int4", "bfloat16"),
    ("mixtral", "int8", "float32"),
    ("mixtral", "int4", "float32"),
    ("deepseek-v3", "int4", "bfloat16"),
]
MAPS = {f"attn.{name}" for name in ("q", "k", "v", "out")}
MAPS |= {f"mlp.{name}" for name in ("gate", "up", "down")} | {"logits"}
Made = tuple[Path, Golden]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, str], Made]:
    """A model's folder, and the golden of what its weights stand for; each made once."""
    known: dict[tuple[str, str, str], Made] = {}
    home = tmp_path_factory.mktemp("quantised")

    def make(model: str, kind: str, dtype: str) -> Made:
        if (model, kind, dtype) not in known:
            case = Case(model, **MODELS[model], seed=3, prompt_tokens=10, decode_tokens=2)
            written = home / model
            if not written.exists():
                written.mkdir()
                tiny_checkpoint(case, written)
            again = home / f"{model}-{kind}-{dtype}"
            write_dequantised(written, again, kind, getattr(torch, dtype))
            known[model, kind, dtype] = written, capture_there(case, again, None, dtype)
        return known[model, kind, dtype]

    return make


@pytest.mark.parametrize(("model", "kind", "dtype"), RUNS)
def test_it_is_in_lockstep_with_transformers_on_the_numbers_that_its_weights_stand_for(
    model: str, kind: str, dtype: str, made: Callable[[str, str, str], Made]
) -> None:
    folder, golden = made(model, kind, dtype)
    (candidate,) = candidates(folder, "cpu", dtype, kind)
    result = trial(candidate, golden, getattr(torch, dtype), golden.schedule_in(None))
    assert result.conforms, str(result)
    assert result.probes >= 36


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_as_it_was_is_outside_in_float32(
    kind: str, made: Callable[[str, str, str], Made]
) -> None:
    """All its maps are; in bfloat16, int8 is finer than the dtype."""
    folder, golden = made("llama", kind, "float32")
    plain = EngineCandidate(Engine.load(folder), "eager")
    result = trial(plain, golden, torch.float32, golden.schedule_in(None))
    assert {operation(culprit.finding.probe) for culprit in result.culprits} == MAPS


#: In bfloat16 a prompt's experts may be near-ties, which logits alone do not tell from faults.
COMPILED = [run for run in RUNS if run[0] == "llama"]
COMPILED += [("mixtral", kind, "float32") for kind in KINDS]


@pytest.mark.parametrize(("model", "kind", "dtype"), COMPILED)
def test_compiled_steps_are_in_lockstep_with_it_too(
    model: str, kind: str, dtype: str, made: Callable[[str, str, str], Made]
) -> None:
    """Sums of products of whole numbers, experts that are picked in a graph, and torch's own kernel there."""
    folder, golden = made(model, kind, dtype)
    torch.compiler.reset()
    with graphs_as_they_are() as graphs:
        engine = Engine.load(folder, dtype=dtype, quantization=kind, compiled=True)
        candidate = CompiledCandidate(engine, "eager", (None,))
        result = trial(candidate, golden, getattr(torch, dtype), golden.schedule_in(None))
    torch.compiler.reset()
    assert result.conforms, str(result)
    assert graphs


def another_rows_step(weight: LooseWeight) -> None:
    cast("Tensor", weight.steps).copy_(cast("Tensor", weight.steps).roll(1, 0))


def another_groups_step(weight: LooseWeight) -> None:
    for part in weight.parts[1:]:
        part.copy_(part.roll(1, 1))


def middle_lost(weight: LooseWeight) -> None:
    cast("Tensor", weight.middles).zero_()


def halves_swapped(weight: LooseWeight) -> None:
    numbers = cast("Tensor", weight.numbers)
    numbers.copy_(numbers << 4 | numbers >> 4)


def group_off_by_one(weight: LooseWeight) -> None:
    """Numbers moved on by one input, past the border of their group."""
    numbers = cast("Tensor", weight.numbers)
    both = torch.cat((numbers & 15, numbers >> 4), -1).flatten(-2).roll(1, -1)
    first, second = both.unflatten(-1, (-1, GROUP)).chunk(2, -1)
    numbers.copy_(first | second << 4)


def one_number_off(weight: LooseWeight) -> None:
    """In one row of each map, the largest number of all less one step: half the allowance twice."""
    numbers = cast("Tensor", weight.numbers)
    assert isinstance(weight, Int8Weight)
    row, column = divmod(int(numbers.argmax()), numbers.shape[1])
    numbers[row, column] -= 1


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("int8", another_rows_step),
        ("int8", one_number_off),
        ("int4", another_rows_step),
        ("int4", another_groups_step),
        ("int4", middle_lost),
        ("int4", halves_swapped),
        ("int4", group_off_by_one),
    ],
)
def test_a_fault_of_the_weights_is_blamed_on_all_maps_and_on_nothing_else(
    kind: str, fault: Callable[[Any], None], made: Callable[[str, str, str], Made]
) -> None:
    folder, golden = made("llama", kind, "float32")
    (candidate,) = candidates(folder, "cpu", "float32", kind)
    for module in candidate.engine.decoder.modules():
        if isinstance(module, Linear):
            assert isinstance(module.weight, Int8Weight | Int4Weight)
            fault(module.weight)
    result = trial(candidate, golden, torch.float32, golden.schedule_in(None))
    assert {operation(culprit.finding.probe) for culprit in result.culprits} == MAPS


def test_a_tied_head_that_is_not_quantised_is_blamed(
    made: Callable[[str, str, str], Made],
) -> None:
    folder, golden = made("llama-tied", "int8", "float32")
    (candidate,) = candidates(folder, "cpu", "float32", "int8")
    decoder = candidate.engine.decoder
    del decoder.logits.weight
    decoder.logits.weight = decoder.embed.weight
    result = trial(candidate, golden, torch.float32, golden.schedule_in(None))
    assert {operation(culprit.finding.probe) for culprit in result.culprits} == {"logits"}


def test_a_table_that_is_changed_with_its_head_is_blamed(
    made: Callable[[str, str, str], Made],
) -> None:
    folder, golden = made("llama-tied", "int8", "float32")
    (candidate,) = candidates(folder, "cpu", "float32", "int8")
    decoder = candidate.engine.decoder
    head = decoder.logits.weight
    assert isinstance(head, Int8Weight)
    decoder.embed.weight = nn.Parameter(head.dequantised(), requires_grad=False)
    result = trial(candidate, golden, torch.float32, golden.schedule_in(None))
    assert {operation(culprit.finding.probe) for culprit in result.culprits} == {"embed"}
