"""The example as a job of processes on this machine."""

from __future__ import annotations

import tomllib
from itertools import islice
from pathlib import Path

import pytest

from fedsim.config import read_party_file
from fedsim.runs.approval import find_approval
from fedsim_lab.faults.local_job import CITY, NOTARY, RENTALS, SCHOOLS, create_local_job, free_ports, moved, toml


def test_nested_tables_are_written_as_toml_that_reads_back():
    table = {"x": "y", "inner": {"z": []}}
    words = {"name": "flats", "k": 3, "on": True, "list": [{"a": 1}, {"a": 2.5}], "table": table}
    assert tomllib.loads(toml(words)) == words


@pytest.mark.parametrize("n_secondaries", [1, 2])
def test_a_job_has_an_approved_file_and_a_table_for_every_party(tmp_path: Path, n_secondaries: int):
    place = create_local_job(tmp_path / "job", n_secondaries=n_secondaries)
    assert set(place.names) == {NOTARY, CITY, RENTALS, *([SCHOOLS] if n_secondaries == 2 else [])}
    for name in place.names:
        own = read_party_file(place.path(name))
        assert (own.name, own.data is None) == (name, name == NOTARY)
        assert find_approval(place.job, own) is not None


def test_changes_of_a_job_reach_nested_settings_and_leave_the_others(tmp_path: Path):
    place = create_local_job(tmp_path / "job", training={"epochs": 9})
    assert (place.job.training.epochs, place.job.training.batch_size) == (9, 16)


def test_a_moved_job_has_its_own_folders(tmp_path: Path):
    place = create_local_job(tmp_path / "job")
    other = moved(place, tmp_path / "other")
    assert other.job.hash == place.job.hash
    assert other.run(CITY) != place.run(CITY)


def test_free_ports_are_distinct():
    ports = list(islice(free_ports(), 20))
    assert len(set(ports)) == 20
