"""A secondary joins later: the others start with what they have learnt, and the newcomer with new weights."""

from __future__ import annotations

import json

import pytest

from e2e.party_threads import run_in_threads
from fedsim.config.job import Job
from fedsim.config.toml_file import ConfigFileError
from fedsim.errors import FedSimError
from fedsim.runtime.run_local import run_local
from fedsim_lab.faults.local_job import CITY, NOTARY, RENTALS, SCHOOLS, LocalJob, create_local_job, moved, toml


def write_job(place: LocalJob, words: dict) -> None:
    """Replace the job, approve it and agree on the secrets of its run folders."""
    place.job_path.write_text(toml(_given(words)))
    place.approve()
    place.share_secret()


def _given(words):
    if isinstance(words, dict):
        return {key: _given(value) for key, value in words.items() if value is not None}
    return words


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A job of two parties that is trained, and the settings of the same job with a third."""
    place = create_local_job(tmp_path_factory.mktemp("job") / "place", n_secondaries=2)
    both, city = place.job.to_dict(), json.loads((place.folder / f"{CITY}.json").read_text())
    city["features"] = {"drop": ["quarter"]}
    place.write_party(CITY, {name: value for name, value in city.items() if name != "identifiers"})
    write_job(place, {**both, "secondaries": {RENTALS: both["secondaries"][RENTALS]}})
    run_local(place.job, [place.own(name) for name in (NOTARY, CITY, RENTALS)])
    place.write_party(CITY, city)
    return place, {**both, "training": both["training"] | {"start_from": place.job.hash, "joining": [SCHOOLS]}}


def test_a_secondary_joins_over_the_network_as_in_one_process(trained, tmp_path):
    place, words = trained
    here, there = (moved(place, tmp_path / name) for name in ("here", "there"))
    for one in (here, there):
        write_job(one, words)
    run_local(here.job, [here.own(name) for name in here.names])
    run_in_threads(there)
    assert there.hashes() == here.hashes()
    anew = moved(place, tmp_path / "anew")
    write_job(anew, words | {"training": words["training"] | {"start_from": None, "joining": None}})
    run_local(anew.job, [anew.own(name) for name in anew.names])
    assert anew.hashes()[RENTALS] != here.hashes()[RENTALS]


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({"start_from": "0" * 64}, {"no-earlier-run", "job-of-another-primary"}),  # at the primary and at a secondary
        ({"preset": "modern"}, {"other-earlier-job"}),
    ],
)
def test_a_start_that_does_not_fit_is_refused(trained, tmp_path, changes, codes):
    place, words = trained
    here = moved(place, tmp_path / "here")
    write_job(here, words | {"training": words["training"] | changes})
    with pytest.raises(FedSimError) as failure:
        run_local(here.job, [here.own(name) for name in here.names])
    assert failure.value.code in codes


@pytest.mark.parametrize(
    "training", [{"joining": [SCHOOLS]}, {"start_from": "0" * 64, "joining": [RENTALS, SCHOOLS]}, {"start_from": "x"}]
)
def test_a_job_that_nobody_could_join_is_refused(trained, training):
    plain = {name: value for name, value in trained[1]["training"].items() if name not in ("start_from", "joining")}
    with pytest.raises(ConfigFileError):
        Job.from_dict({**trained[1], "training": plain | training})
