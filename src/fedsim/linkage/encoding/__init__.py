"""Identifiers become keyed bit filters; runs at the data holder, never at the coordinator."""

from __future__ import annotations

from fedsim.linkage.encoding.columns import Column, Values
from fedsim.linkage.encoding.dates import DateFilter
from fedsim.linkage.encoding.field import Encoding, Field
from fedsim.linkage.encoding.hardening import Balance, BitFlip, Hardening, Shuffle, XorFold
from fedsim.linkage.encoding.key import Key
from fedsim.linkage.encoding.numbers import NumericFilter, paper_bits, rank_hamming
from fedsim.linkage.encoding.record import Combination, Concatenate, Sample, Union
from fedsim.linkage.encoding.schema import Schema
from fedsim.linkage.encoding.strings import StringFilter, normalise

__all__ = [
    "Balance",
    "BitFlip",
    "Column",
    "Combination",
    "Concatenate",
    "DateFilter",
    "Encoding",
    "Field",
    "Hardening",
    "Key",
    "NumericFilter",
    "Sample",
    "Schema",
    "Shuffle",
    "StringFilter",
    "Union",
    "Values",
    "XorFold",
    "normalise",
    "paper_bits",
    "rank_hamming",
]
