"""A small study of the lab, and what one run of it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from fedsim.cli import main

FILES = Path(__file__).parents[1] / "experiments" / "paper"


STUDY = """
title = "Firms"
place = "nowhere"
axis = "partners"

[[parts]]
dataset = "firms"
measure = "rmse"
records = 150
vary = "k"
values = [3, 6]
rungs = ["solo", "fedsim"]
paper = { "FedSim, 6" = [40.0, 1.0] }
settings = { all = { epochs = 2 } }
fast = { epochs = 1, values = [3] }

[[parts]]
dataset = "taxi"
measure = "rmse"
rungs = ["fedsim"]
"""


def reproduce(folder: Path, name: str, *more: str) -> int:
    words = [
        "lab",
        "reproduce",
        name,
        "--studies",
        str(folder),
        "--data",
        str(folder),
        "--out",
        str(folder / "out"),
        *more,
    ]
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


@dataclass(frozen=True)
class Reproduced:
    """The study after one run: its folder, and what was printed as its result and as its progress."""

    folder: Path
    out: str
    err: str
