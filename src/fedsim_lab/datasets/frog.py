"""Anuran calls: the species of a frog from spectral coefficients (paper: frog)."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedsim_lab.datasets.cleaning import cast_to_numbers, drop_incomplete_rows, read_with_columns
from fedsim_lab.datasets.dataset import DatasetFile, DatasetInfo, DatasetTask
from fedsim_lab.datasets.single_table import SingleTable

LABEL = "Species"
COEFFICIENTS = tuple(f"MFCCs_{number:2}" for number in range(1, 23))
IDENTIFIERS = 16

FROG = DatasetInfo(
    name="frog",
    title="frog calls, two halves",
    task=DatasetTask.CLASSIFICATION,
    measure="accuracy",
    unit="% of records",
    records=(7_195, 7_195),
    files=(
        DatasetFile(
            "calls",
            ("frog/frogs_mfcc.csv.gz", "frog/Frogs_MFCCs.csv"),
            "22 MFCC columns and the species of each call",
            "UCI Machine Learning Repository, Anuran Calls (MFCCs)",
            "CC0 1.0",
        ),
    ),
)


def read_frog(paths: Mapping[str, Path]) -> SingleTable:
    """The calls; family, genus and recording, where the file has them, stay out: they tell the species."""
    path = paths["calls"]
    frame = read_with_columns(path, [*COEFFICIENTS, LABEL]).select(*COEFFICIENTS, LABEL)
    frame = drop_incomplete_rows(cast_to_numbers(frame, COEFFICIENTS, path), path)
    # The authors' own shuffle, so that the parties are theirs.
    order = np.random.RandomState(0).permutation(len(COEFFICIENTS))
    return SingleTable(FROG, frame, LABEL, IDENTIFIERS, tuple(COEFFICIENTS[place] for place in order))
