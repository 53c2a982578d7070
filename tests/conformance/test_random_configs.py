"""Random llama configs that nobody chose, against transformers itself.

Deliberately one process for both: each config's truth and noise are measured on the spot, by the
same code that makes the committed goldens, so nothing lies between.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from conformance import strategies
from conformance.cases import Case
from conformance.engine_candidate import EngineCandidate
from conformance.oracle.capture import Run, capture, tiny_checkpoint, tiny_ids
from conformance.verdict import trial
from engine import Engine

HARMLESS = ("model_type", "architectures")


@settings(
    max_examples=max(1, settings().max_examples // 12),
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # each example takes seconds
)
@given(
    config=strategies.llama_configs(context=48),
    seed=st.integers(0, 2**31),
    prompt=st.integers(1, 30),
    data=st.data(),
)
def test_the_engine_is_in_lockstep_with_transformers_on_any_llama(
    config: dict[str, Any], seed: int, prompt: int, data: st.DataObject
) -> None:
    case = Case(
        "random",
        "llama",
        {k: v for k, v in config.items() if k not in HARMLESS}
        | {"bos_token_id": None, "eos_token_id": None},
        seed=seed,
        prompt_tokens=prompt,
    )
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, out = Path(folder) / "model", Path(folder) / "golden"
        out.mkdir()
        tiny_checkpoint(case, checkpoint)
        run = Run(checkpoint, tiny_ids(case), 3, ("*",), ("float32",), torch.float64)
        golden = capture(
            run, out, about={"case": "random", "checkpoint": ".", "command": "this test"}
        )
        engine = Engine.load(checkpoint)
        for backend in ("eager", "sdpa"):
            schedule = data.draw(strategies.schedules(len(golden.ids)))
            result = trial(EngineCandidate(engine, backend), golden, torch.float32, schedule)
            assert [str(c) for c in result.culprits] == []
            assert [str(f) for f in result.propagated] == []
            assert result.probes >= 20
