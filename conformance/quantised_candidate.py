"""Engines with quantised weights as candidates, and the checkpoint that they are judged by.

To be named in `lockstep check --candidate conformance.quantised_candidate:int8`, with a golden of what
`write_dequantised` makes of the model: every weight the number that it stands for. To a golden of the model
itself they have a distance, which docs/measurements/quantised.md measures, and no envelope.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from conformance.engine_candidate import EngineCandidate
from engine import Engine
from engine.backends import backend
from engine.decoder import Decoder
from engine.families.family import Add, Deinterleave, Rename, Split, Stack, Transpose, Verb
from engine.quantised import KINDS, LooseWeight
from engine.weights import open_checkpoint
from engine.weights.arrange import sources
from engine.weights.plan import planned
from engine.weights.quantise import maps, untied


def candidates(model: Path, device: str, dtype: str, kind: str) -> list[EngineCandidate]:
    """The engine with weights of that kind, on the backend that shows everything."""
    engine = Engine.load(model, device=device, dtype=dtype, quantization=kind)
    candidate = EngineCandidate(engine, "eager", (None, 5))
    candidate.name += f" with {kind} weights"
    return [candidate]


int8 = partial(candidates, kind="int8")
int4 = partial(candidates, kind="int4")


def write_dequantised(model: Path, target: Path, kind: str, dtype: torch.dtype) -> None:
    """Writes the model folder again in float32, maps with the weights that stand for them in `dtype`.

    A head has a tensor of its own there, as the embeddings are not quantised.
    """
    checkpoint = open_checkpoint(model)
    decoder = Decoder(checkpoint.spec, backend(None, checkpoint.spec), "meta")
    plan = untied(planned(decoder, checkpoint), checkpoint)
    tensors = {
        name: tensor.float() for name, tensor in load_file(model / "model.safetensors").items()
    }
    quantised: dict[str, Tensor] = {}
    for parameter in maps(decoder, KINDS[kind]):
        for name in sources(plan[parameter]):
            quantised[name] = _again(tensors[name], kind, dtype, turned=_is_turned(plan[parameter]))
    head = plan["logits.weight"]
    if isinstance(head, Rename) and head == plan["embed.weight"]:
        quantised["lm_head.weight"] = quantised.pop(head.source)
    config: dict[str, Any] = json.loads((model / "config.json").read_text())
    target.mkdir()
    (target / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    whole = {name: tensor.contiguous() for name, tensor in {**tensors, **quantised}.items()}
    save_file(whole, target / "model.safetensors", metadata={"format": "pt"})


def _again(weight: Tensor, kind: str, dtype: torch.dtype, *, turned: bool) -> Tensor:
    """The numbers that stand for a tensor [..., out, in], or [in, out] where it is turned."""
    rows = weight.mT if turned else weight
    # As experts, which are never packed: what is packed says its numbers in bfloat16 alone.
    made = KINDS[kind].quantise(rows[None], dtype)
    assert isinstance(made, LooseWeight)
    numbers = made.dequantised()[0]
    return numbers.mT if turned else numbers


def _is_turned(verb: Verb) -> bool:
    match verb:
        case Transpose():
            return True
        case Split(of) | Deinterleave(of) | Stack(of) | Add(of):
            return _is_turned(of)
        case _:
            return False
