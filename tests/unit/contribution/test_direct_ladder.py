"""The ladder of a job without a coordinator: what it trains is what the job trains, and nobody is asked for it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from fedsim.config.job import read_job
from fedsim.contribution.job_ladder import JobCases, remote_cases, train_remote_ladder
from fedsim.contribution.ladder import (
    FEDSIM_WITH_IDENTIFIERS,
    SOLO_WITH_IDENTIFIERS,
    train_ladder,
    with_embedding,
    with_settings,
)
from fedsim.contribution.rungs import STACKED, ResultStore, train_missing
from fedsim.hyperparameters import TrainingSettings
from fedsim.linkage.direct.key_store import KeyStore
from fedsim.linkage.direct.oprf import SecretKey
from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.transport import InProcessTransport
from fedsim.runs.budget import PrimaryBudget
from fedsim.runs.run_folder import SECRET_FILE, make_private_folder
from fedsim.runtime.party_context import open_party_context, software_versions
from fedsim.runtime.run_local import run_local
from fedsim_lab.faults.local_job import CITY, RENTALS, create_local_job, small_tables
from init_fixtures import fedsim

COMPARED = (SOLO_WITH_IDENTIFIERS, FEDSIM_WITH_IDENTIFIERS, f"{FEDSIM_WITH_IDENTIFIERS}-placebo")
LEARNING = TrainingSettings(epochs=25, batch_size=16, members=1, learning_rate=0.005)


def direct_job(folder, *, flats=120, rentals=90, **changes):
    return create_local_job(folder, tables=small_tables(flats, rentals), direct=True, **changes)


def cases(place, folder):
    return JobCases.read(place.job, [place.own(name) for name in place.names], folder).cases(1, ["random"])


@pytest.mark.slow
def test_the_partner_contributes_and_its_rows_more_than_those_of_a_placebo(tmp_path):
    near = [{"columns": ["lat", "lon"], "kind": "place", "metres": 200}]
    terms, folder = {RENTALS: {"k": 20, "tokens": near}}, tmp_path / "compare"
    place = direct_job(tmp_path / "place", flats=1500, rentals=1500, secondaries=terms)
    make_private_folder(folder / RENTALS)
    (folder / RENTALS / SECRET_FILE).write_text(f"{bytes(32).hex()}\n")  # of the embedding and of the key
    (folder / RENTALS / SECRET_FILE).chmod(0o600)
    learning = TrainingSettings(epochs=4, batch_size=64, members=1, learning_rate=0.005)
    rungs = [rung for rung in with_embedding(with_settings(learning)) if rung.key in ("trees-identifiers", STACKED)]
    results = ResultStore(tmp_path / "results")
    ladder = train_ladder(cases(place, folder), rungs, results, lambda _: None, lengthen=False)
    gains = {gain["key"]: gain for gain in ladder.to_dict()["gains"]}
    assert gains["contribution"]["low"] > 0
    assert gains["features"]["low"] > 0  # beyond a placebo partner with the same links


def test_the_same_tables_link_alike_again_and_count_against_nobody(tmp_path):
    place = create_local_job(tmp_path / "place", n_secondaries=2, direct=True)
    (first,), (second,) = (list(cases(place, tmp_path / "compare")) for _ in range(2))
    assert first.digest == second.digest
    for linked in first.secondaries:
        np.testing.assert_array_equal(linked.embedding, linked.features.numbers)
        assert linked.partner.max() < len(linked.features)
    assert not KeyStore(place.own(RENTALS).folder / "keys").record(RENTALS).evaluated


def test_a_comparison_links_by_a_keyed_hash_as_by_the_oblivious_function(tmp_path, monkeypatch):
    place = direct_job(tmp_path / "place")
    (hashed,) = cases(place, tmp_path / "hashed")
    for file in sorted((tmp_path / "hashed").rglob(SECRET_FILE)):
        make_private_folder(tmp_path / "oblivious")
        make_private_folder(tmp_path / "oblivious" / file.parent.name)
        shutil.copy2(file, tmp_path / "oblivious" / file.parent.name)
    monkeypatch.setattr("fedsim.contribution.linked_tables.ComparisonKey", SecretKey)
    (oblivious,) = cases(place, tmp_path / "oblivious")
    assert hashed.digest == oblivious.digest


def test_every_rung_trains(tmp_path):
    place = direct_job(tmp_path / "place")
    (arrays,) = cases(place, tmp_path / "compare")
    rungs = [rung for rung in with_settings(replace(LEARNING, epochs=1)) if rung.key != STACKED]
    results = ResultStore(tmp_path / "results")
    train_missing([arrays], rungs, results, lambda _: None)
    assert all(results.has(rung.result_key(arrays)) for rung in rungs)


def test_the_network_ladder_trains_the_stored_rows_and_asks_nobody(tmp_path):
    place = direct_job(tmp_path / "place")
    files = [place.own(name) for name in place.names]
    run_local(place.job, files)
    keys, city = KeyStore(place.own(RENTALS).folder / "keys"), place.own(CITY)
    before, results = keys.record(RENTALS), ResultStore(tmp_path / "results")
    rungs = [rung for rung in with_settings(replace(LEARNING, epochs=2)) if rung.key in COMPARED]
    with open_party_context(place.job, city, InProcessTransport(), software_versions()) as post:  # nobody else runs
        ladder = train_remote_ladder(post, results, rungs, 1, "S$", lambda _: None)
        (arrays,) = remote_cases(post, PartyData.read(place.job, city, approved=True), 1)
        assert not post.connection.ledger.entries()
    assert {rung["key"] for rung in ladder.to_dict()["rungs"]} == set(COMPARED)
    assert keys.record(RENTALS) == before
    assert not PrimaryBudget.of(place.own(RENTALS), CITY).read().studies
    (here,) = cases(place, tmp_path / "compare")
    np.testing.assert_array_equal(arrays.split.test, here.split.test)
    for ours, theirs in zip(here.secondaries, arrays.secondaries, strict=True):
        # Both keys give pseudonyms of their own, by which ties are broken.
        np.testing.assert_allclose(ours.similarity, theirs.similarity)
        assert len(ours.features) == pytest.approx(len(theirs.features), abs=5)


def test_a_direct_job_is_tuned(tmp_path):
    place = direct_job(tmp_path / "place")
    files = [str(place.job_path), *(str(place.path(name)) for name in place.names)]
    tried = ("--try", "k=3,5", "--try", "learning_rate=0.01", "--try", "width=8", "--try", "members=1")
    folder, tuned = tmp_path / "out", tmp_path / "tuned.toml"
    fedsim("tune", *files, "--out", str(folder), "--epochs", "1", *tried, "--write", str(tuned), "--quiet")
    found = json.loads((folder / "tuning.json").read_text())
    best = found["ranking"][0]["setting"]
    assert {trial["setting"].get("k", 5) for trial in found["ranking"]} == {3, 5}
    assert read_job(tuned).secondaries[RENTALS].k == best.get("k", 5)
    tables = list((folder / RENTALS / "encoded").glob("*.safetensors"))
    assert len(tables) == 1  # every K is linked by the same table
