"""Tables for ``fedsim init``, and its output."""

from __future__ import annotations

from datetime import date

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from fedsim.cli.app import app
from fedsim.config import Job
from fedsim.data.synthetic import city
from fedsim.errors import FedSimError

BOTH = ["--primary", "flats.csv", "--secondary", "rentals.csv"]

TOWN = city(np.random.default_rng(7), flats=300, rentals=200)

FIRST = [f"{a}{b}{c}" for a in ("An", "Be", "Cy") for b in ("n", "r", "t", "l") for c in ("a", "o")]

PEOPLE = pl.DataFrame(
    {
        "first_name": [FIRST[row % 24] for row in range(200)],
        "last_name": [f"{FIRST[row * 7 % 23]}son" for row in range(200)],
        "date_of_birth": [date(1950 + row % 40, 1 + row % 12, 1 + row % 28) for row in range(200)],
        "visits": [row % 7 for row in range(200)],
    }
)

REGISTERS = ["--primary", "patienten.csv", "--secondary", "kasse.csv"]


def fedsim(*words: str, answer: str = "") -> str:
    """What a command prints, if it ends well."""
    done = CliRunner().invoke(app, words, input=answer)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def error_of(*words: str, answer: str = "") -> FedSimError:
    with pytest.raises(FedSimError) as caught:
        fedsim(*words, answer=answer)
    assert "\n" not in str(caught.value)
    return caught.value


def encodings(job: Job) -> dict[str, object]:
    (terms,) = job.secondaries.values()
    return {field.column: field.encoding for field in terms.encoding.fields}


def registers(ours: list[str], theirs: list[str]) -> None:
    """Two tables of the same people, whose columns are called so."""
    for file, columns, amount in (("patienten.csv", ours, "income"), ("kasse.csv", theirs, "premium")):
        named = PEOPLE.rename(dict(zip(PEOPLE.columns, columns, strict=False)))
        named.with_columns((pl.int_range(200) % 90).alias(amount)).write_csv(file)
