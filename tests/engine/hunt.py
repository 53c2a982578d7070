"""Whether the machine finds a planted fault, and in how few operations: each fault in a process of its own.

The engine is imported when the fault is planted, so that nothing here imports it before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conformance.mutants.mutant import Mutant
from conformance.mutants.planting import plant
from conformance.mutants.run import processes


@dataclass(frozen=True)
class Hunted:
    """What went wrong, if anything did, and the fewest operations that were found to make it."""

    id: str
    wrong: str | None
    operations: Sequence[str]


def hunt(mutants: Sequence[Mutant]) -> Iterator[Hunted]:
    """Random schedules against each fault, until one fails and is as short as can be."""
    with processes() as pool:
        yield from pool.map(_hunted, mutants)


def _hunted(mutant: Mutant) -> Hunted:
    plant([mutant])
    import torch
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis.stateful import run_state_machine_as_test

    from tests.engine.machine import Serving

    torch.set_num_threads(1)
    short_and_repeatable = settings(
        max_examples=2000,
        stateful_step_count=12,
        deadline=None,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(Serving, settings=short_and_repeatable)
    except Exception as error:
        return Hunted(mutant.id, f"{type(error).__name__}: {error}", Serving.operations)
    return Hunted(mutant.id, None, ())
