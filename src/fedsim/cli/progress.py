"""A bar with speed and time left on a terminal, nothing anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

Progressed = Callable[[int, int], None]


@contextmanager
def progress_bar(title: str) -> Iterator[Progressed | None]:
    """A callable ``(done, total)`` that moves the bar; ``None`` where nobody is looking."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    rate = TextColumn("{task.fields[rate]}")
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        rate,
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task(title, total=None, rate="")
        started = time.perf_counter()

        def move(done: int, total: int) -> None:
            speed = done / max(time.perf_counter() - started, 1e-9)
            progress.update(task, completed=done, total=total, rate=f"{speed:,.0f} records/s")

        yield move


@contextmanager
def no_progress(title: str) -> Iterator[Progressed | None]:
    """No bar, even on a terminal."""
    yield None
