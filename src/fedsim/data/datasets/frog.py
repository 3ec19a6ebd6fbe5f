"""Calls of frogs as spectral coefficients: which species is it? (paper: ``frog``)"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedsim.data.datasets.dataset import About, File, Task
from fedsim.data.datasets.reading import as_numbers, complete, table_with
from fedsim.data.datasets.single_table import Whole

LABEL = "Species"
COEFFICIENTS = tuple(f"MFCCs_{number:2}" for number in range(1, 23))
IDENTIFIERS = 16

ABOUT = About(
    name="frog",
    title="frog calls, two halves",
    task=Task.CLASSIFICATION,
    measure="accuracy",
    unit="% of records",
    records=(7_195, 7_195),
    files=(
        File(
            "calls",
            ("frog/frogs_mfcc.csv.gz", "frog/Frogs_MFCCs.csv"),
            "22 MFCC columns and the species of each call",
            "UCI Machine Learning Repository, Anuran Calls (MFCCs)",
            "CC0 1.0",
        ),
    ),
)


def read(paths: Mapping[str, Path]) -> Whole:
    """The calls; family, genus and recording, where the file has them, stay out: they tell the species."""
    path = paths["calls"]
    frame = table_with(path, [*COEFFICIENTS, LABEL]).select(*COEFFICIENTS, LABEL)
    frame = complete(as_numbers(frame, COEFFICIENTS, path), path)
    # The authors' own shuffle, so that the parties are theirs.
    order = np.random.RandomState(0).permutation(len(COEFFICIENTS))
    return Whole(ABOUT, frame, LABEL, IDENTIFIERS, tuple(COEFFICIENTS[place] for place in order))
