"""Q-grams of names as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedsim.types import Floats

Grams = Callable[[str], set[str]]


def gram_table(names: Sequence[str], grams: Grams) -> Floats:
    """One row per name, one column per q-gram that any of them has; one where the name has it.

    >>> gram_table(["ab", "b"], lambda name: set(name)).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    sets = [grams(name) for name in names]
    number = {gram: place for place, gram in enumerate(sorted(set().union(*sets)))}
    table = np.zeros((len(names), len(number)))
    for row, members in enumerate(sets):
        table[row, [number[gram] for gram in members]] = 1.0
    return table
