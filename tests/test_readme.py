"""The README's tree is the first thing a newcomer follows; it must be the tree that is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


def listed() -> Iterator[str]:
    """The paths that the tree names, read from its indentation."""
    section = (
        (ROOT / "README.md").read_text(encoding="utf-8").split("## The files, in reading order")[1]
    )
    folders: list[tuple[int, str]] = []
    for line in section.split("\n## ")[0].splitlines():
        if match := re.match(r"( +)([\w/.-]+)", line):
            depth, name = len(match[1]), match[2]
            folders = [(d, folder) for d, folder in folders if d < depth]
            path = "".join(folder for _, folder in folders) + name
            yield path
            if name.endswith("/"):
                folders.append((depth, name))


def test_every_path_of_the_tree_exists() -> None:
    paths = list(listed())
    assert len(paths) > 50
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_room_and_module_is_in_the_tree() -> None:
    """Rooms whose files are few and alike are listed as one line."""
    paths = set(listed())
    rooms = {path for path in paths if path.endswith("/")}
    closed = {room for room in rooms if not any(p != room and p.startswith(room) for p in paths)}
    files = {
        file.relative_to(ROOT).as_posix()
        for package in ("engine", "conformance")
        for file in (ROOT / package).rglob("*.py")
        if not file.name.startswith("__")
    }
    assert {f for f in files if not f.startswith(tuple(closed))} <= paths
