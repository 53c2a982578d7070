"""One progress bar in bytes, on standard error, for downloads and for reading large models."""

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
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    hidden = not (show and console.is_terminal)
    with Progress(*columns, console=console, disable=hidden) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=min(done, total))
