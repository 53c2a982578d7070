"""Where each family's tensors lie: fused and apart, old names and new, and what is left aside.

That every name is right, goldens show, whose checkpoints transformers wrote; here are the layouts of
other ages, and what a checkpoint may hold besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import ModelFileError
from engine.families import read_spec
from engine.weights.microscaled import decode
from tests.engine.families.configs import CONFIGS
from tests.weights import made
from tests.weights.made import drawn

BLOCK = "model.layers.0."
E, FFN, DIM = 5, 40, 24  # of the configs; experts of Qwen and DeepSeek have 12


def assert_loads(
    folder: Path,
    family: str,
    held: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    **changes: Any,
) -> None:
    """The tensors `held`, laid out as the family says, are these parameters and nothing else."""
    found, spec = read_spec({**CONFIGS[family]["written"], **changes})
    layout = found.layout(spec)
    shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    loaded = made.load(
        folder, held, layout.verbs, shapes, ignored=layout.ignored, prefixes=layout.prefixes
    )
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(loaded[name], tensor), name


@pytest.mark.parametrize(
    ("family", "ffn", "router", "names"),
    [
        ("mixtral", FFN, "block_sparse_moe.gate", "block_sparse_moe.experts.{}.w{}.weight"),
        ("qwen3_moe", 12, "mlp.gate", "mlp.experts.{}.{}_proj.weight"),
    ],
)
def test_experts_lie_in_one_tensor_or_one_by_one(
    tmp_path: Path, family: str, ffn: int, router: str, names: str
) -> None:
    gate, up, down = drawn(E, ffn, DIM), drawn(E, ffn, DIM, seed=1), drawn(E, DIM, ffn, seed=2)
    expected = {
        "layers.0.mlp.router_logits.weight": drawn(E, DIM, seed=3),
        "layers.0.mlp.experts.gate": gate,
        "layers.0.mlp.experts.up": up,
        "layers.0.mlp.experts.down": down,
    }
    fused = {
        BLOCK + "mlp.gate.weight": drawn(E, DIM, seed=3),
        BLOCK + "mlp.experts.gate_up_proj": torch.cat([gate, up], dim=1),
        BLOCK + "mlp.experts.down_proj": down,
    }
    assert_loads(tmp_path / "fused", family, fused, expected)
    parts = (1, 3, 2) if family == "mixtral" else ("gate", "up", "down")
    apart = {BLOCK + router + ".weight": drawn(E, DIM, seed=3)}
    for part, stacked in zip(parts, (gate, up, down), strict=True):
        apart |= {BLOCK + names.format(e, part): stacked[e] for e in range(E)}
    assert_loads(tmp_path / "apart", family, apart, expected)


def test_gpt_oss_interleaves_gate_and_up_and_stores_them_in_out(tmp_path: Path) -> None:
    gate_up, bias = drawn(E, DIM, 2 * FFN), drawn(E, 2 * FFN, seed=1)
    down, down_bias = drawn(E, FFN, DIM, seed=2), drawn(E, DIM, seed=3)
    experts = BLOCK + "mlp.experts."
    held = {
        BLOCK + "self_attn.sinks": drawn(4),
        BLOCK + "mlp.router.weight": drawn(E, DIM),
        BLOCK + "mlp.router.bias": drawn(E),
        experts + "gate_up_proj": gate_up,
        experts + "gate_up_proj_bias": bias,
        experts + "down_proj": down,
        experts + "down_proj_bias": down_bias,
    }
    expected = {
        "layers.0.attn.sinks": drawn(4),
        "layers.0.mlp.router_logits.weight": drawn(E, DIM),
        "layers.0.mlp.router_logits.bias": drawn(E),
        "layers.0.mlp.experts.gate": gate_up[..., 0::2].mT,
        "layers.0.mlp.experts.up": gate_up[..., 1::2].mT,
        "layers.0.mlp.experts.gate_bias": bias[..., 0::2],
        "layers.0.mlp.experts.up_bias": bias[..., 1::2],
        "layers.0.mlp.experts.down": down.mT,
        "layers.0.mlp.experts.down_bias": down_bias,
    }
    assert_loads(tmp_path, "gpt_oss", held, expected)


def test_gpt_oss_s_blocks_lie_row_by_row_of_what_comes_out(tmp_path: Path) -> None:
    """Decoded they are [E, out, in] at once, where the plain tensors are [E, in, out]."""
    rng = torch.Generator().manual_seed(0)

    def bytes_of(*shape: int, least: int = 0, beyond: int = 256) -> Tensor:
        return torch.randint(least, beyond, shape, generator=rng, dtype=torch.uint8)

    experts = BLOCK + "mlp.experts."
    ffn, dim = 32, 64
    held, decoded = {}, {}
    for name, rows, columns in (("gate_up_proj", 2 * ffn, dim), ("down_proj", dim, ffn)):
        blocks = bytes_of(E, rows, columns // 32, 16)
        scales = bytes_of(E, rows, columns // 32, least=120, beyond=130)
        held |= {f"{experts}{name}_blocks": blocks, f"{experts}{name}_scales": scales}
        decoded[name] = decode(blocks, scales, torch.float32)
    expected = {
        "layers.0.mlp.experts.gate": decoded["gate_up_proj"][:, 0::2],
        "layers.0.mlp.experts.up": decoded["gate_up_proj"][:, 1::2],
        "layers.0.mlp.experts.down": decoded["down_proj"],
    }
    sizes = {"hidden_size": dim, "intermediate_size": ffn}
    assert_loads(tmp_path, "gpt_oss", held, expected, **sizes)


def test_phi3_s_projections_come_apart(tmp_path: Path) -> None:
    """4 query and 2 key/value heads of 6 numbers each; gate before up."""
    qkv, gate_up = drawn(48, DIM), drawn(2 * FFN, DIM, seed=1)
    held = {
        BLOCK + "self_attn.qkv_proj.weight": qkv,
        BLOCK + "mlp.gate_up_proj.weight": gate_up,
    }
    expected = {
        "layers.0.attn.q.weight": qkv[:24],
        "layers.0.attn.k.weight": qkv[24:36],
        "layers.0.attn.v.weight": qkv[36:],
        "layers.0.mlp.gate.weight": gate_up[:FFN],
        "layers.0.mlp.up.weight": gate_up[FFN:],
    }
    assert_loads(tmp_path, "phi3", held, expected)


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_gpt2_stores_in_out_behind_a_prefix_or_none_and_its_mask_besides(
    tmp_path: Path, prefix: str
) -> None:
    fused, bias, out = drawn(DIM, 3 * DIM), drawn(3 * DIM, seed=1), drawn(DIM, DIM, seed=2)
    h = prefix + "h.0."
    held = {
        prefix + "wte.weight": drawn(61, DIM),
        prefix + "wpe.weight": drawn(64, DIM, seed=3),
        h + "attn.c_attn.weight": fused,
        h + "attn.c_attn.bias": bias,
        h + "attn.c_proj.weight": out,
        h + "attn.bias": torch.ones(1, 1, 64, 64).tril(),
        h + "attn.masked_bias": torch.tensor(-1e4),
    }
    expected = {
        "embed.weight": drawn(61, DIM),
        "embed.positions": drawn(64, DIM, seed=3),
        "logits.weight": drawn(61, DIM),
        "layers.0.attn.q.weight": fused[:, :24].T,
        "layers.0.attn.k.weight": fused[:, 24:48].T,
        "layers.0.attn.v.weight": fused[:, 48:].T,
        "layers.0.attn.q.bias": bias[:24],
        "layers.0.attn.k.bias": bias[24:48],
        "layers.0.attn.v.bias": bias[48:],
        "layers.0.attn.out.weight": out.T,
    }
    assert_loads(tmp_path, "gpt2", held, expected)


def test_deepseek_s_latents_come_apart_and_further_layers_are_left_aside(tmp_path: Path) -> None:
    down, bias = drawn(16, DIM), drawn(16, seed=1)
    attn = BLOCK + "self_attn."
    held = {
        attn + "q_a_proj.weight": drawn(14, DIM),
        attn + "q_a_layernorm.weight": drawn(14, seed=2),
        attn + "q_b_proj.weight": drawn(60, 14),
        attn + "kv_a_proj_with_mqa.weight": down,
        attn + "kv_a_proj_with_mqa.bias": bias,
        attn + "kv_a_layernorm.weight": drawn(10),
        attn + "kv_b_proj.weight": drawn(64, 10),
        BLOCK + "mlp.gate.e_score_correction_bias": drawn(8),
        "model.layers.4.eh_proj.weight": drawn(DIM, 2 * DIM),
        "model.layers.4.self_attn.q_a_proj.weight": drawn(14, DIM),
    }
    expected = {
        "layers.0.attn.q_down.weight": drawn(14, DIM),
        "layers.0.attn.q_norm.weight": drawn(14, seed=2),
        "layers.0.attn.q.weight": drawn(60, 14),
        "layers.0.attn.kv_down.weight": down[:10],
        "layers.0.attn.kv_down.bias": bias[:10],
        "layers.0.attn.k.weight": down[10:],
        "layers.0.attn.k.bias": bias[10:],
        "layers.0.attn.kv_norm.weight": drawn(10),
        "layers.0.attn.kv_up.weight": drawn(64, 10),
        "layers.0.mlp.correction": drawn(8),
    }
    assert_loads(tmp_path, "deepseek_v3", held, expected)
    whole = {"layers.0.attn.q.weight": drawn(60, DIM)}
    plain = {attn + "q_proj.weight": drawn(60, DIM)}
    assert_loads(tmp_path / "plain", "deepseek_v3", plain, whole, q_lora_rank=None)


@pytest.mark.parametrize("family", ["gemma3_text", "mistral"])
@pytest.mark.parametrize(
    ("base", "head", "others"),
    [
        ("model.", "", "no_such_part."),
        ("model.language_model.", "", "model."),
        ("language_model.model.", "language_model.", ""),
    ],
)
def test_a_text_part_lies_where_either_age_puts_it(
    tmp_path: Path, family: str, base: str, head: str, others: str
) -> None:
    held = {
        base + "embed_tokens.weight": drawn(61, DIM),
        base + "norm.weight": drawn(DIM, seed=1),
        base + "layers.0.self_attn.q_proj.weight": drawn(32, DIM),
        head + "lm_head.weight": drawn(61, DIM, seed=2),
        others + "vision_tower.layers.0.self_attn.q_proj.weight": drawn(3, 4),
        others + "multi_modal_projector.norm.weight": drawn(3),
    }
    expected = {
        "embed.weight": drawn(61, DIM),
        "final_norm.weight": drawn(DIM, seed=1),
        "layers.0.attn.q.weight": drawn(32, DIM),
        "logits.weight": drawn(61, DIM, seed=2),
    }
    assert_loads(tmp_path, family, held, expected)


def test_frequencies_of_old_files_are_left_aside_and_other_tensors_are_not(tmp_path: Path) -> None:
    held = {"model.norm.weight": drawn(DIM), BLOCK + "self_attn.rotary_emb.inv_freq": drawn(4)}
    expected = {"final_norm.weight": drawn(DIM)}
    assert_loads(tmp_path, "llama", held, expected)
    for name in ("vision_tower.norm.weight", "model.layers.4.self_attn.q_proj.weight"):
        with pytest.raises(ModelFileError, match=f"no parameter for: {name}"):
            assert_loads(tmp_path, "llama", {**held, name: drawn(3)}, expected)
