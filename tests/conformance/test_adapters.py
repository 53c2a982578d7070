"""Candidates of other kinds: the reference itself and a module of a foreign style, sound and broken.

The sound ones must conform to every golden, the broken ones fail at the level where they are broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conformance.candidate import Candidate, Level
from conformance.cases import CASES
from conformance.check import run_check
from conformance.golden import REPOSITORY_GOLDENS, Golden
from conformance.oracle import candidate as reference
from conformance.report import Report
from conformance.tapped import Tapped
from conformance.verdict import Trial, trial
from tests.conformance import foreign_candidate
from tests.conformance.foreign import Attend, ForeignLlama
from tests.conformance.foreign_candidate import ForeignCandidate

TRANSFORMERS = "conformance.oracle.candidate:candidates"
FOREIGN = "tests.conformance.foreign_candidate:candidates"
TINY = REPOSITORY_GOLDENS / "llama-tied"
ROPES = ("default", "linear", "llama3")  # those that the foreign llama has
NAMES = [
    case.name
    for case in CASES
    if case.family == "llama" and case.config["rope_parameters"]["rope_type"] in ROPES
]
RUNS = [
    *((name, "float32") for name in NAMES),
    ("llama-gqa", "bfloat16"),
    ("llama-bias", "float16"),
]


def check(name: str, candidate: str, dtype: str = "float32", level: str = "L5") -> Report:
    folder = REPOSITORY_GOLDENS / name
    return run_check([str(folder)], dtype=dtype, level=level, candidate=candidate)


@pytest.mark.parametrize(("name", "dtype"), RUNS)
def test_transformers_conforms_to_every_tiny_golden(name: str, dtype: str) -> None:
    report = check(name, TRANSFORMERS, dtype)
    assert report.conforms, "\n".join(str(t) for t in report.trials)
    eager, sdpa = report.trials
    assert eager.probes == len(Golden(REPOSITORY_GOLDENS / name).manifest["probes"]) + 1
    assert (eager.schedule[0], sdpa.schedule[0]) == (sum(eager.schedule[:1]), 5)


@pytest.mark.parametrize("level", ["L1", "L2", "L3", "L4"])
def test_transformers_conforms_at_every_level(level: str) -> None:
    report = check("llama-tied", TRANSFORMERS, level=level)
    assert report.conforms
    assert len(report.trials) == 2


@pytest.mark.xdist_group("smollm2")
def test_transformers_conforms_on_a_real_model_in_words_too(asset: Callable[[str], Path]) -> None:
    asset("smollm2-135m")
    report = check("smollm2-135m", TRANSFORMERS, level="L0")
    assert report.conforms
    assert report.texts[0].answer is not None and report.texts[0].answer.startswith(" Paris")
    deeper = check("smollm2-135m", TRANSFORMERS, level="L3")
    assert deeper.conforms
    assert all(t.rows > 0 for t in deeper.trials)


@pytest.mark.parametrize(("name", "dtype"), RUNS)
def test_a_module_of_a_foreign_style_conforms(name: str, dtype: str) -> None:
    """It has no place for a third of the probes: what stands right behind such a gap is no culprit."""
    report = check(name, FOREIGN, dtype)
    assert report.conforms, "\n".join(str(t) for t in report.trials)
    whole, chunked = report.trials
    assert whole.schedule[0] > chunked.schedule[0] == 5
    assert any("foreign llama has no attn.k, attn.q" in note for note in report.notes)


# -- broken twins --------------------------------------------------------------------------------


def judged(candidate: Candidate, level: Level = Level.L5) -> Trial:
    return trial(candidate, Golden(TINY), torch.float32, None, level)


def culprits(found: Trial) -> list[str]:
    return [c.finding.probe for c in found.culprits]


@pytest.fixture
def transformers() -> reference.TransformersCandidate:
    eager, _ = reference.candidates(TINY, "cpu", "float32")
    return eager


def test_a_wrong_eps_in_one_norm_of_transformers_is_blamed_there(
    transformers: reference.TransformersCandidate,
) -> None:
    transformers.model.model.layers[1].input_layernorm.variance_epsilon *= 2
    found = judged(transformers, Level.L4)
    assert culprits(found) == ["layers.1.pre_attn_norm"]
    assert found.culprits[0].graft_confirms


def test_an_overwritten_slot_in_the_cache_of_transformers_is_blamed_there(
    transformers: reference.TransformersCandidate,
) -> None:
    """The value of one token replaced by its neighbour's: attention is innocent."""

    def overwrite(probe: str, value: Tensor) -> Tensor:
        if probe != "cache.layers.0.v" or value.shape[2] < 9:
            return value
        value = value.clone()
        value[:, :, 7] = value[:, :, 8]
        return value

    broken = Tapped(transformers, overwrite)
    found = judged(broken)
    assert culprits(found) == ["cache.layers.0.v"]
    assert found.culprits[0].finding.position == 7
    assert not judged(broken, Level.L3).conforms, "what is read from the slot is wrong as well"


def test_scaled_logits_of_transformers_show_from_their_level_on(
    transformers: reference.TransformersCandidate,
) -> None:
    """Greedy tokens are the same: ids alone cannot tell."""
    broken = Tapped(transformers, lambda probe, value: value * 1.01 if probe == "logits" else value)
    assert judged(broken, Level.L1).conforms
    assert not judged(broken, Level.L3).conforms
    assert culprits(judged(broken)) == ["logits"]


class SeesOneAhead(Attend):
    """The mask of an engine that counts from one."""

    def forward(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        T, H, D = q.shape
        S, K, _ = keys.shape
        scores = torch.einsum("tkgd,skd->kgts", q.view(T, K, H // K, D) * D**-0.5, keys)
        later = torch.arange(S)[None, :] > torch.arange(S - T, S)[:, None] + 1
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)
        return torch.einsum("kgts,skd->tkgd", weights, values).reshape(T, H, D)


def test_a_mask_one_ahead_in_the_foreign_module_is_blamed_in_its_layer() -> None:
    model = ForeignLlama(TINY, "cpu", torch.float32)
    model.layers[1].attend = SeesOneAhead()
    found = judged(ForeignCandidate(model))
    assert culprits(found) == ["layers.1.attn.context"]
    assert found.culprits[0].graft_confirms
    assert found.culprits[0].file == __file__


def test_a_slot_overwritten_in_the_foreign_buffer_is_the_caches_fault() -> None:
    model = ForeignLlama(TINY, "cpu", torch.float32)
    layer: Any = model.layers[0]
    store = layer.store.forward

    def spoilt(buffer: Tensor, start: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        views: tuple[Tensor, Tensor] = store(buffer, start, k, v)
        buffer[0, 3] = buffer[0, 4]
        return views

    layer.store.forward = spoilt
    found = judged(ForeignCandidate(model))
    assert culprits(found) == ["cache.layers.0.k"]
    assert found.culprits[0].finding.position == 3


# -- what is no engine's fault -------------------------------------------------------------------


def test_goldens_of_this_engines_own_parts_are_skipped_by_name_for_others() -> None:
    folders = [str(REPOSITORY_GOLDENS / name) for name in ("text-gpt2", "decisions", "llama-tied")]
    report = run_check(folders, candidate=FOREIGN)
    assert report.conforms
    assert {t.case for t in report.trials} == {"llama-tied"}
    for name in ("text-gpt2", "decisions"):
        assert any(note.startswith(f"{name}: it asks") for note in report.notes)


def raising(model: Path, device: str, dtype: str) -> Sequence[Candidate]:
    raise KeyError("no such kernel")


def none(model: Path, device: str, dtype: str) -> Sequence[Candidate]:
    return []


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        (f"{__name__}:raising", r"raising made no candidate of .*KeyError: 'no such kernel'"),
        (f"{__name__}:none", r"none must give Candidates in a list, not \[\]"),
        ("conformance.engine_candidate:nothing", "cannot be imported: .*nothing"),
        ("no.such.module:candidates", "cannot be imported: .*no.such|No module named 'no'"),
        ("nonsense", "is named module:function, not 'nonsense'"),
    ],
)
def test_a_factory_that_makes_no_candidate_is_an_error(factory: str, says: str) -> None:
    """Neither a pass nor a failure of the engine."""
    from engine.errors import LockstepError

    with pytest.raises(LockstepError, match=says):
        run_check([str(TINY)], candidate=factory)


def test_every_adapter_is_a_page() -> None:
    """ "Under 100 lines" is what is promised to who writes one."""
    modules = (reference, foreign_candidate)
    import conformance.engine_candidate
    import conformance.http_candidate

    for module in (*modules, conformance.engine_candidate, conformance.http_candidate):
        assert len(Path(str(module.__file__)).read_text(encoding="utf-8").splitlines()) < 100
