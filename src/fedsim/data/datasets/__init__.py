"""The paper's eight datasets, and two generated ones of which the truth is known.

``load`` reads one from the user's folder, ``found`` says what is there, ``docs/datasets.md`` where to get the rest.
"""

from fedsim.data.datasets.catalogue import SOURCES, found, load, whole_table
from fedsim.data.datasets.dataset import About, Dataset, File, Link, Score, Secondary, Table, Task
from fedsim.data.datasets.filters import NumberFilters, TextFilters
from fedsim.data.datasets.known_city import Knobs, KnownCity, known_city
from fedsim.data.datasets.known_firms import KnownFirms, known_firms
from fedsim.data.datasets.single_table import Whole
from fedsim.data.datasets.truth import Truth

__all__ = [
    "SOURCES",
    "About",
    "Dataset",
    "File",
    "Knobs",
    "KnownCity",
    "KnownFirms",
    "Link",
    "NumberFilters",
    "Score",
    "Secondary",
    "Table",
    "Task",
    "TextFilters",
    "Truth",
    "Whole",
    "found",
    "known_city",
    "known_firms",
    "load",
    "whole_table",
]
