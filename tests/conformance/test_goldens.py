"""The committed goldens: the engine conforms to each, and a damaged one is refused by name."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest

from conformance import goldens
from conformance.cases import CASES, REAL_CASES
from conformance.cases.answers import ANSWERS_CASES
from conformance.cases.beams import BEAMS_CASES
from conformance.check import run_check
from conformance.decision_cases import NAME as DECISIONS
from conformance.golden import FORMAT, REPOSITORY_GOLDENS, Golden
from conformance.text_cases import TEXT_CASES
from conformance.tokens import TOKENS_CASES, differences
from engine.errors import LockstepError, ModelFileError, RequestError
from engine.families import FAMILIES
from engine.layers import RMSNorm

TINY = [case.name for case in CASES]
FIRST = list({case.family: case.name for case in reversed(CASES)}.values())
FEW_BITS = [*((name, "bfloat16") for name in TINY), *((name, "float16") for name in FIRST)]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A golden that a test may damage."""
    return Path(shutil.copytree(REPOSITORY_GOLDENS / "llama-tied", tmp_path / "llama-tied"))


@pytest.mark.parametrize(("name", "dtype"), FEW_BITS)
def test_the_engine_conforms_to_a_tiny_golden_in_few_bits(
    name: str, dtype: str, pytestconfig: pytest.Config
) -> None:
    """In float16 one golden of each family; in float32: see test_edit_check."""
    device = pytestconfig.getoption("--lockstep-device")
    report = run_check(golden=REPOSITORY_GOLDENS / name, dtype=dtype, device=device)
    assert [c for t in report.trials for c in t.culprits] == []
    assert report.exit_status == 0
    assert all(0 < share <= 1 for t in report.trials for _, share in t.worst.values())
    assert not any(not d.is_tie for t in report.trials for d in t.disagreements)


@pytest.mark.parametrize("name", [case.name for case in TEXT_CASES])
def test_the_tokenizer_conforms_to_a_text_golden(name: str) -> None:
    report = run_check(golden=REPOSITORY_GOLDENS / name)
    assert report.texts[0].findings == ()
    assert report.exit_status == 0


def test_a_real_tokenizer_conforms_to_its_golden(asset: Callable[[str], Path]) -> None:
    """One of ten, as `lockstep check` does it; all are in tests/tokenizer/test_against_reference."""
    asset("tokenizer-llama2")
    report = run_check(golden=REPOSITORY_GOLDENS / "tokens-llama2")
    assert [said.case for said in report.texts] == ["tokens-llama2"]
    assert report.exit_status == 0


@pytest.mark.parametrize(
    ("key", "stage"), [("ids", "encode"), ("starts", "offsets"), ("decoded", "decode")]
)
def test_a_wrong_token_is_found_where_it_stands(key: str, stage: str, tmp_path: Path) -> None:
    """Two thousand ids side by side say nothing: the report shows the first that differ."""
    golden = json.loads((REPOSITORY_GOLDENS / "tokens-llama3" / "tokens.json").read_text("utf-8"))
    right = golden["ids"], list(zip(golden["starts"], golden["ends"], strict=True))
    text = golden["decoded"]
    wrong = golden[key]
    golden[key] = (
        f"{wrong[:40]}?{wrong[41:]}" if key == "decoded" else [*wrong[:40], 3, *wrong[41:]]
    )
    (tmp_path / "tokens.json").write_text(json.dumps(golden), encoding="utf-8")
    (found,) = differences(tmp_path, *right, text)
    assert found.stage == f"tokenizer.{stage}"
    assert "(from item 40 on)" in found.text
    assert found.expected[0] != found.got[0]
    assert found.expected[1:] == found.got[1:]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_smollm2_conforms_to_its_compact_golden(
    dtype: str, asset: Callable[[str], Path], pytestconfig: pytest.Config
) -> None:
    asset("smollm2-135m")
    device = pytestconfig.getoption("--lockstep-device")
    golden = REPOSITORY_GOLDENS / "smollm2-135m"
    report = run_check(golden=golden, dtype=dtype, device=device)
    assert report.exit_status == 0
    assert report.trials[0].probes > 100
    assert report.texts[0].answer is not None
    assert report.texts[0].answer.startswith(" Paris")


def test_every_golden_has_a_case_and_every_case_a_golden() -> None:
    names = {folder.name for folder in goldens.inventory(REPOSITORY_GOLDENS)}
    cases = (*CASES, *REAL_CASES, *ANSWERS_CASES, *BEAMS_CASES, *TEXT_CASES, *TOKENS_CASES)
    assert names == {case.name for case in cases} | {DECISIONS}


@pytest.mark.parametrize("name", TINY)
def test_every_parameter_of_a_tiny_golden_was_drawn(name: str) -> None:
    """Norms of one and biases of zero hide the operations that forget them."""
    from safetensors.torch import load_file

    tensors = load_file(REPOSITORY_GOLDENS / name / "model.safetensors")
    assert tensors
    for parameter, values in tensors.items():
        assert values.float().std() > 0.01, f"{parameter} is constant"


@pytest.mark.parametrize("name", TINY)
def test_no_matrix_of_a_tiny_golden_is_square(name: str) -> None:
    """A wrong transpose fails by its shape, and no width of the model stands for another."""
    from safetensors.torch import load_file

    tensors = load_file(REPOSITORY_GOLDENS / name / "model.safetensors")
    square = {p for p, t in tensors.items() if t.ndim > 1 and t.shape[-1] == t.shape[-2]}
    # Where the family or the case says that all heads together are as wide as the model:
    as_wide = ("gpt2*.attn.c_proj.weight", "mistral-derived*.[qo]_proj.weight")
    as_wide += ("phi3-longrope-*.o_proj.weight",)
    assert {p for p in square if not any(fnmatch(f"{name}.{p}", w) for w in as_wide)} == set()


@pytest.mark.parametrize("name", TINY)
def test_heads_of_a_tiny_golden_share_keys_and_its_prompt_is_beyond_every_boundary(
    name: str,
) -> None:
    config = json.loads((REPOSITORY_GOLDENS / name / "config.json").read_text())
    if config["model_type"] not in ("gpt2", "deepseek_v3"):  # where each head has its own keys
        assert config["num_attention_heads"] != config["num_key_value_heads"]
    rope = config.get("rope_parameters") or {}
    tables = [rope, *(table for table in rope.values() if isinstance(table, dict))]
    boundaries = [table.get("original_max_position_embeddings", 0) for table in tables]
    boundaries.append(config.get("sliding_window") or 0)
    if rope.get("rope_type") == "dynamic":
        boundaries.append(config["max_position_embeddings"])
    golden = Golden(REPOSITORY_GOLDENS / name)
    answered = golden.schedule[0] + len(golden.manifest["greedy"])
    if name == "phi3-longrope-short":  # the one on the near side of its boundary
        assert answered <= max(boundaries)
    else:
        assert golden.schedule[0] > max(boundaries)


def test_every_family_has_three_tiny_goldens_and_each_is_small() -> None:
    cases = Counter(case.family for case in CASES)
    assert cases.keys() == FAMILIES.keys()
    assert min(cases.values()) >= 3
    for name in TINY:
        assert sum(f.stat().st_size for f in (REPOSITORY_GOLDENS / name).iterdir()) <= 2**20


@pytest.mark.parametrize("name", TINY)
def test_a_tiny_model_does_not_echo_its_input(name: str) -> None:
    golden = Golden(REPOSITORY_GOLDENS / name)
    answers = golden.truth("logits", 0, len(golden.ids)).argmax(-1)
    assert (answers == golden.ids).float().mean() < 0.2


@pytest.mark.parametrize("file", ["trace.safetensors", "model.safetensors", "noise.json"])
def test_one_flipped_byte_is_found_and_its_file_named(copy: Path, file: str) -> None:
    damaged = bytearray((copy / file).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (copy / file).write_bytes(damaged)
    with pytest.raises(
        ModelFileError, match=rf"{file} was altered.*lockstep golden capture llama-tied"
    ):
        run_check(golden=copy)


def test_a_missing_file_is_named(copy: Path) -> None:
    (copy / "noise.json").unlink()
    with pytest.raises(ModelFileError, match=r"noise.json is missing; make it again with"):
        run_check(golden=copy)


def test_a_file_that_the_manifest_does_not_list_is_named(copy: Path) -> None:
    (copy / "notes.txt").write_text("mine")
    with pytest.raises(ModelFileError, match=r"notes.txt, which its manifest does not list"):
        run_check(golden=copy)


def test_a_golden_of_another_format_is_refused(copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(ModelFileError, match=f"has format 99, this version reads {FORMAT}"):
        run_check(golden=copy)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null", '{"format": 1, "kind": "model"}'])
def test_a_manifest_that_is_none_is_refused(copy: Path, text: str) -> None:
    (copy / "manifest.json").write_text(text)
    with pytest.raises(ModelFileError, match="is not a manifest"):
        run_check(golden=copy)


def test_a_missing_and_an_unused_golden_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "golden"
    shutil.copytree(REPOSITORY_GOLDENS, root)
    monkeypatch.setattr(goldens, "REPOSITORY_GOLDENS", root)
    assert len(goldens.inventory(root)) == len(goldens.NAMES)
    (root / "llama-of-nobody").mkdir()
    with pytest.raises(ModelFileError, match="llama-of-nobody belongs to no case"):
        goldens.inventory(root)
    shutil.rmtree(root / "llama-gqa")
    with pytest.raises(ModelFileError, match="golden capture llama-gqa"):
        goldens.inventory(root)


def test_a_folder_without_a_golden_says_the_command(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="lockstep golden capture"):
        run_check(golden=tmp_path)


@pytest.mark.parametrize("level", ["L1", "L2", "L3", "L4", "L5"])
def test_the_engine_conforms_at_every_level(level: str) -> None:
    report = run_check(golden=REPOSITORY_GOLDENS / "llama-tied", level=level)
    assert report.exit_status == 0
    probes = {"L1": 0, "L2": 1, "L3": 2}.get(level)
    assert report.trials[0].probes == probes if probes is not None else report.trials[0].probes > 30


@pytest.mark.parametrize("level", ["L1", "L2", "L3"])
def test_a_fault_shows_at_every_level(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = RMSNorm.forward
    monkeypatch.setattr(RMSNorm, "forward", lambda self, x: forward(self, x).flip(-1))
    report = run_check(golden=REPOSITORY_GOLDENS / "llama-tied", level=level)
    assert report.exit_status == 1


def test_the_lowest_level_has_nothing_to_say_of_a_model_without_text() -> None:
    """An empty report would read as "conforms"."""
    with pytest.raises(LockstepError, match="nothing was checked: llama-tied: it has no text"):
        run_check(golden=REPOSITORY_GOLDENS / "llama-tied", level="L0")


def test_an_unknown_case_or_level_is_refused() -> None:
    with pytest.raises(RequestError, match="no case 'nonsense'; there are gpt2, "):
        goldens.capture(["nonsense"], None, print)
    with pytest.raises(RequestError, match="no level 'L9'"):
        run_check(level="L9")


def test_a_model_of_another_shape_diverges_and_does_not_crash() -> None:
    """Checking a model against somebody else's golden is a divergence in every tensor's shape."""
    report = run_check(
        [str(REPOSITORY_GOLDENS / "llama-tied")], golden=REPOSITORY_GOLDENS / "llama-gqa"
    )
    assert report.exit_status == 1
    assert "has the shape" in str(report.trials[0].culprits[0])
