"""Every input that once broke something, and the seeds of the fuzzer, do no harm."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[2] / "fuzz"
sys.path.append(str(FUZZ))

import targets  # noqa: E402 - lies beside the fuzzer

INPUTS = sorted((FUZZ / "corpus").glob("*/*"))


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_it_is_answered_or_refused(path: Path) -> None:
    targets.TARGETS[path.parent.name](path.read_bytes())


def test_every_target_has_a_corpus() -> None:
    assert {path.parent.name for path in INPUTS} == targets.TARGETS.keys()
