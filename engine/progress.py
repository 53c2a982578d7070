"""Progress on standard error: a bar in bytes for downloads and large models, a spinner for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn


@contextmanager
def byte_bar(label: str, total: int, *, show: bool) -> Iterator[Callable[[int], None]]:
    """Yields a function that is told how many bytes are done so far.

    The bar appears if `show` is set and standard error is a terminal (or rich is told to act so).
    """
    console = Console(stderr=True)
    if not (show and console.is_terminal):
        yield lambda done: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=min(done, total))


@contextmanager
def busy(label: str, *, show: bool) -> Iterator[None]:
    """A spinner beside `label`, if `show` is set and standard error is a terminal."""
    console = Console(stderr=True)
    if not (show and console.is_terminal):
        yield
        return
    with console.status(label):
        yield
