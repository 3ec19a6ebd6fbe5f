"""The same job gives the same weights, whichever way its parties speak, and every time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.party_threads import run_in_threads
from fedsim.runtime.run_local import run_local
from fedsim_lab.faults.local_job import CITY, NOTARY, RENTALS, SCHOOLS, create_local_job
from fedsim_lab.faults.processes import cold, party_processes


def test_four_processes_learn_what_one_process_learns_every_time(tmp_path):
    together, apart, again = (
        create_local_job(tmp_path / name, n_secondaries=2) for name in ("together", "apart", "again")
    )
    log, paths = tmp_path / "train.log", [together.path(name) for name in (NOTARY, CITY, RENTALS, SCHOOLS)]
    command = cold(log, "train", together.job_path, *paths)
    hashes = []
    for place in (apart, again):
        with party_processes(place) as parties:
            parties.start()
            hashes.append(parties.finish())
    assert command.wait() == 0, log.read_text()
    assert hashes == [together.hashes(), together.hashes()]


def test_the_commands_as_a_person_types_them_learn_the_same(tmp_path):
    typed, apart = create_local_job(tmp_path / "typed"), create_local_job(tmp_path / "apart")
    commands = {
        name: cold(typed.log(name), "party", typed.job_path, typed.path(name)) for name in (NOTARY, CITY, RENTALS)
    }
    with party_processes(apart) as parties:
        parties.start()
        expected = parties.finish()
    assert {name: command.wait() for name, command in commands.items()} == {NOTARY: 0, CITY: 0, RENTALS: 0}
    assert typed.hashes() == expected
    assert not any("Traceback" in typed.log(name).read_text() for name in typed.names)


def test_programs_get_one_object_from_every_party(tmp_path):
    place = create_local_job(tmp_path / "job")
    with party_processes(place, words=["--json"]) as parties:
        parties.start()
        parties.finish()
        lines_of = {
            name: [each for each in parties.output_of(name).splitlines() if each[:1] == "{"] for name in place.names
        }
    assert {name: len(lines) for name, lines in lines_of.items()} == {NOTARY: 1, CITY: 1, RENTALS: 1}
    found = {name: json.loads(line) for name, (line,) in lines_of.items()}
    assert found[CITY]["metrics"]["test"]["rmse"] > 0
    assert Path(found[CITY]["report"]).is_file()
    assert found[NOTARY]["report"] is found[RENTALS]["report"] is None
    assert {entry["kind"] for entry in found[RENTALS]["ledger"]} >= {"activations", "gradients"}


@pytest.mark.parametrize(
    ("method", "preset", "members"),
    [("fedsim", "modern", 3), ("avgsim", "paper", 1), ("featuresim", "modern", 1), ("top1sim", "paper", 2)],
)
def test_every_method_learns_over_grpc_what_it_learns_in_process(method, preset, members, tmp_path):
    training = {"method": method, "preset": preset, "members": members, "epochs": 2}
    training |= {"party_dropout": 0.25} if method == "fedsim" else {}
    here, there = (create_local_job(tmp_path / name, n_secondaries=2, training=training) for name in "ab")
    run_local(here.job, [here.own(name) for name in here.names])
    run_in_threads(there)
    assert there.hashes() == here.hashes()
