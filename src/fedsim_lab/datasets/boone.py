"""MiniBooNE: electron or muon neutrino (paper: boone).

The public file is text: a line with the numbers of signal and background events, then one event per line, 50 numbers
each, the signal first.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from fedsim.errors import InputError
from fedsim.storage.files import check_readable, read_bytes
from fedsim.types import Floats
from fedsim_lab.datasets.dataset import DatasetFile, DatasetInfo, DatasetTask
from fedsim_lab.datasets.single_table import SingleTable

LABEL = "signal"
COLUMNS = tuple(f"x{number}" for number in range(50))
IDENTIFIERS = 30

BOONE = DatasetInfo(
    name="boone",
    title="particle events, two halves",
    task=DatasetTask.CLASSIFICATION,
    measure="accuracy",
    unit="% of records",
    records=(130_064, 130_064),
    files=(
        DatasetFile(
            "events",
            ("boone/MiniBooNE_PID.txt",),
            "36,499 signal and 93,565 background events with 50 numbers each",
            "UCI Machine Learning Repository, MiniBooNE particle identification",
            "CC0 1.0",
        ),
    ),
)


def read_boone(paths: Mapping[str, Path]) -> SingleTable:
    """The events, signal first, as in the file; -999 stands where a number could not be computed, as in the paper."""
    path = paths["events"]
    check_readable(path)
    head, _, body = read_bytes(path).partition(b"\n")
    signal, background = _counts(head, path)
    values = _numbers(body, path)
    if values.size != (signal + background) * len(COLUMNS):
        raise InputError(
            f"{path} promises {signal + background:,} events of {len(COLUMNS)} numbers, but holds {values.size:,} "
            "numbers; get the file again"
        )
    frame = pl.DataFrame(values.reshape(-1, len(COLUMNS)), schema=list(COLUMNS))
    label = pl.Series(LABEL, np.repeat([1, 0], [signal, background]), dtype=pl.UInt8)
    order = np.random.RandomState(0).permutation(len(COLUMNS))
    return SingleTable(BOONE, frame.with_columns(label), LABEL, IDENTIFIERS, tuple(COLUMNS[place] for place in order))


def _counts(head: bytes, path: Path) -> tuple[int, int]:
    words = head.split()
    if len(words) != 2 or not all(word.isdigit() for word in words):
        raise InputError(
            f"{path}: the first line is not two whole numbers, signal and background; is this the right file?"
        )
    return int(words[0]), int(words[1])


def _numbers(body: bytes, path: Path) -> Floats:
    try:
        return np.array(body.split(), dtype=np.float64)
    except ValueError:
        raise InputError(f"{path}: an event holds something that is no number; get the file again") from None
