"""A secondary joins later: the others start with what they have learnt, and the newcomer with new weights."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from e2e.party_threads import run_in_threads
from fedsim.config.job import Job
from fedsim.config.toml_file import ConfigFileError
from fedsim.errors import FedSimError
from fedsim.preflight.check import check_job
from fedsim.preflight.estimate import NetworkLink
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


def codes_of_the_check(place: LocalJob, *names: str) -> set[str]:
    """Return the codes of what `fedsim check` finds about the start of the training."""
    paths = [place.own(name).path for name in names or place.names]
    found = check_job(place.job_path, paths, link=NetworkLink(), now=datetime.now(UTC), call_peers=False)
    return {finding.code for _, finding in found.failures if finding.check == "start"}


def test_the_check_accepts_a_start_that_fits_and_refuses_another_table(trained, tmp_path):
    place, words = trained
    here = moved(place, tmp_path / "here")
    write_job(here, words)
    assert codes_of_the_check(here) == set()
    table = here.own(CITY).data.source
    table.write_text("\n".join(table.read_text().splitlines()[:-1]))
    assert codes_of_the_check(here) == {"other-earlier-job"}


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({"start_from": "0" * 64}, {"no-earlier-run", "job-of-another-primary"}),  # at the primary and at a secondary
        ({"preset": "modern"}, {"other-earlier-job"}),
        ({"joining": None}, {"not-joining", "job-of-another-primary"}),
    ],
)
def test_a_start_that_does_not_fit_is_refused(trained, tmp_path, changes, codes):
    place, words = trained
    here = moved(place, tmp_path / "here")
    write_job(here, words | {"training": words["training"] | changes})
    with pytest.raises(FedSimError) as failure:
        run_local(here.job, [here.own(name) for name in here.names])
    assert failure.value.code in codes
    assert codes_of_the_check(here) <= codes | {"no-earlier-run"}  # the last at a secondary
    assert failure.value.code in codes_of_the_check(here, CITY) | {"job-of-another-primary"}


@pytest.mark.parametrize(
    "training", [{"joining": [SCHOOLS]}, {"start_from": "0" * 64, "joining": [RENTALS, SCHOOLS]}, {"start_from": "x"}]
)
def test_a_job_that_nobody_could_join_is_refused(trained, training):
    plain = {name: value for name, value in trained[1]["training"].items() if name not in ("start_from", "joining")}
    with pytest.raises(ConfigFileError):
        Job.from_dict({**trained[1], "training": plain | training})


def test_a_newcomer_that_is_no_secondary_of_the_job_is_named(trained):
    with pytest.raises(ConfigFileError) as failure:
        Job.from_dict({**trained[1], "training": trained[1]["training"] | {"joining": ["shops"]}})
    (fault,) = failure.value.faults
    assert fault.code == "nobody-to-join"
    assert all(name in fault.message for name in ("'shops'", RENTALS, SCHOOLS))
