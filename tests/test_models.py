"""MODEL, as commands take it, to a path: what is on disk, known names, ids of the model hub."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import fetching, models
from engine.assets import KNOWN
from engine.errors import LockstepError, ModelFileError, RequestError

# -- the table -----------------------------------------------------------------------------------


def test_every_known_asset_is_whole() -> None:
    names = ["llama3", "llama3_1", "qwen3", "gemma3", "gptoss", "deepseek_v3", "gpt4o", "llama2"]
    assert list(KNOWN) == ["smollm2-135m", "gemma3-270m", *(f"tokenizer-{n}" for n in names)]
    for asset in KNOWN.values():
        assert asset.licence
        hashes = [file.sha256 for file in asset.files] + [p.sha256 for p in asset.packages]
        assert all(len(h) == 64 and set(h) <= set("0123456789abcdef") for h in hashes)
        assert len(set(hashes)) == len(hashes)
        assert all(file.size > 0 for file in asset.files)
        assert all("/" not in file.name for file in asset.files)


# -- resolving -----------------------------------------------------------------------------------


def test_a_folder_or_a_gguf_file_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").touch()
    assert models.resolve(str(tmp_path)) == tmp_path
    assert models.resolve(tmp_path / "m.gguf") == tmp_path / "m.gguf"
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert models.resolve(f"~/{tmp_path.name}") == tmp_path


def test_what_is_on_disk_comes_before_a_known_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr(fetching, "run_client")
    (tmp_path / "smollm2-135m").mkdir()
    assert models.resolve("smollm2-135m") == Path("smollm2-135m")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("", "the model's name is empty; known names are smollm2-135m, gemma3-270m, tokenizer-"),
        ("smollm2", "did you mean smollm2-135m? known names are"),
        ("nonexistent", "'nonexistent' is no folder, no .gguf file and no known name; known names"),
        ("./nowhere/at/all", "no folder"),
        ("models/missing.gguf", "no folder, no .gguf file"),
    ],
)
def test_a_name_that_is_nothing_lists_the_known_ones(model: str, message: str) -> None:
    with pytest.raises(RequestError) as refusal:
        models.resolve(model)
    assert message in str(refusal.value)
    assert "smollm2-135m" in str(refusal.value)


def test_fetching_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(RequestError, match=r"no model named 'gpt5'; known names are smollm2-135m"):
        models.fetch("gpt5")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelFileError, match=r"neither a model folder nor a \.gguf file"):
        models.resolve(tmp_path / "model.safetensors")


def _hub(monkeypatch: pytest.MonkeyPatch, download: Callable[..., str]) -> None:
    module = types.ModuleType("huggingface_hub")
    module.snapshot_download = download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)


def test_a_hub_id_is_downloaded_without_pickles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, list[str], list[str]]] = []

    def download(model: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        asked.append((model, allow_patterns, ignore_patterns))
        return str(tmp_path)

    _hub(monkeypatch, download)
    assert models.resolve("some-org/Some-Model_1.0") == tmp_path
    ((model, allowed, ignored),) = asked
    assert model == "some-org/Some-Model_1.0"
    assert allowed == ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.tiktoken"]
    assert ignored == ["*/*", "consolidated*.safetensors"]


def test_a_hub_that_fails_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(model: str, **_: object) -> str:
        raise ValueError("404 not there\nand a long story")

    _hub(monkeypatch, download)
    with pytest.raises(LockstepError, match=r"org/model does not exist here .*\(404 not there\)"):
        models.resolve("org/model")


def test_without_the_hub_package_the_message_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(LockstepError, match=r"pip install 'lockstep-llm\[hub\]'"):
        models.resolve("org/model")


# -- the cache's place ---------------------------------------------------------------------------


def test_the_cache_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    assert models.cache_dir() == tmp_path
    monkeypatch.setenv("LOCKSTEP_CACHE", "~/there")
    assert models.cache_dir() == Path.home() / "there"
    monkeypatch.delenv("LOCKSTEP_CACHE")
    assert models.cache_dir().name == "lockstep"
