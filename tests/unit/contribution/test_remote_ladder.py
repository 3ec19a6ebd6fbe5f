"""A ladder with the partner elsewhere: the same trainings as with its table here, as many as its owner allows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy

from error_fixtures import raises
from fedsim.contribution.job_ladder import remote_cases, train_remote_ladder
from fedsim.contribution.ladder import (
    CENTRAL,
    FEDSIM_WITH_IDENTIFIERS,
    RUNGS,
    SOLO_WITH_IDENTIFIERS,
    with_embedding,
    with_settings,
)
from fedsim.contribution.rungs import STACKED, ResultStore, run_training
from fedsim.data.features import fit_preprocessor
from fedsim.data.table_reader import infer_numbers, read_table
from fedsim.errors import FileError, PeerError
from fedsim.hyperparameters import TrainingSettings
from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.transport import InProcessTransport
from fedsim.runs.budget import PrimaryBudget
from fedsim.runs.run_folder import run_path
from fedsim.runtime.party_context import open_party_context, software_versions
from fedsim.runtime.predictor import Predictor
from fedsim.runtime.run_local import run_local
from fedsim.runtime.run_store import RunStore
from fedsim_lab.faults.local_job import create_local_job
from job_fixtures import lay_out, read_all, staying
from session_fixtures import PATIENCE

LEARNING = TrainingSettings(epochs=1, batch_size=256)  # as the job
NONE = {"rentals": {"max_studies = 100": ""}}
PLACES = {"city": {"[label]": '[features]\ncolumns = ["area", "storey", "age", "lat", "lon"]\n\n[label]'}}
NEEDED = [
    rung
    for rung in with_settings(LEARNING, RUNGS)
    if rung.key.startswith(("solo", "trees", "fedsim")) and rung.key != CENTRAL
]


def world(folder, changes):
    lay_out(folder, changes)
    job, files = read_all(folder)
    run_local(job, list(files.values()))
    return job, files


def test_studies_afar_end_as_with_the_table_here_and_leave_the_model_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(RunStore, "own_seed", lambda store, seed: seed)  # or nobody could repeat it
    job, files = world(tmp_path, PLACES)
    transport, results = InProcessTransport(), ResultStore(tmp_path / "results")
    records = infer_numbers(read_table(tmp_path / "flats.csv")).drop("price")[:5]
    with staying(job, files["notary"], transport), staying(job, files["rentals"], transport):
        before = predicted(job, files, transport, records)
        with open_party_context(job, files["city"], transport, software_versions()) as post:
            ladder = train_remote_ladder(post, results, NEEDED, 1, "S$", lambda _: None)
            (arrays,) = remote_cases(post, PartyData.read(job, post.party_file, approved=True), 1)
        assert predicted(job, files, transport, records) == before
    found = {rung["key"]: rung["mean"] for rung in ladder.to_dict()["rungs"]}
    assert set(found) == {rung.key for rung in NEEDED}
    assert ladder.to_dict()["limited"]  # by its one epoch: the secondary trains no longer than the job
    assert arrays.primary.numbers.shape[1] == 3  # places come in by rungs of their own
    here = with_features(arrays, job, files["rentals"])
    for rung in NEEDED:
        if rung.partner != "placebo":  # whose rows the partner shuffles by itself
            kept = results.predictions(rung.result_key(arrays))
            np.testing.assert_array_equal(kept, run_training(rung, here).predictions.astype(kept.dtype))
    assert found["fedsim-placebo"] != found["fedsim"]
    spent = PrimaryBudget.of(files["rentals"], "city").read()
    assert (len(spent.jobs), spent.studies, spent.epochs) == (1, 6, 2 * 7)  # two epochs of the job and of each study


def test_trees_see_the_embedding_that_the_secondary_sent_to_the_job(tmp_path):
    embedding = {"[network]": '[protection]\nembedding = "random"\n\n[network]', '"fedsim"': '"stacked"'}
    job, files = world(tmp_path, {"job": embedding})
    transport, results = InProcessTransport(), ResultStore(tmp_path / "results")
    rungs = [
        rung for rung in with_embedding(with_settings(LEARNING, RUNGS)) if rung.key in (SOLO_WITH_IDENTIFIERS, STACKED)
    ]
    with (
        staying(job, files["rentals"], transport),
        open_party_context(job, files["city"], transport, software_versions()) as post,
    ):
        ladder = train_remote_ladder(post, results, rungs, 1, "S$", lambda _: None)
    assert "trees_see_partners" in ladder.lines[STACKED, "random"][0]
    assert PrimaryBudget.of(files["rentals"], "city").read().studies == 2  # the network and its placebo


def predicted(job, files, transport, records):
    with open_party_context(job, files["city"], transport, software_versions()) as post:
        return Predictor(post, wait_seconds=PATIENCE).predict(records).values


def with_features(arrays, job, own):
    """The same case with the partner's table in this process, its rows in the order of the pseudonyms."""
    order = safetensors.numpy.load((run_path(job, own) / "order.safetensors").read_bytes())["rows"].copy()
    frame = PartyData.read(job, own, approved=True).features
    features = fit_preprocessor(frame, party=str(own.party)).apply(frame)
    (linked,) = arrays.secondaries
    order[order < 0] = np.setdiff1d(np.arange(len(order)), order)  # rows that nobody is linked to, in any order
    return replace(arrays, secondaries=(replace(linked, features=features.take(order)),))


def test_several_secondaries_are_told_apart_afar(tmp_path):
    place = create_local_job(tmp_path / "place", n_secondaries=2, training={"epochs": 1, "batch_size": 64})
    job, files, transport = place.job, {name: place.own(name) for name in place.names}, InProcessTransport()
    for name in job.secondaries:
        policy = files[name].policy.model_copy(update={"max_studies": 5})
        files[name] = files[name].model_copy(update={"policy": policy})
    run_local(job, list(files.values()))
    rungs = with_settings(TrainingSettings(preset="paper", epochs=1, batch_size=64))
    needed = [rung for rung in rungs if rung.key in (SOLO_WITH_IDENTIFIERS, FEDSIM_WITH_IDENTIFIERS)]
    with (
        staying(job, files["rentals"], transport),
        staying(job, files["schools"], transport),
        open_party_context(job, files["city"], transport, software_versions()) as post,
    ):
        ladder = train_remote_ladder(post, ResultStore(tmp_path / "results"), needed, 1, "S$", lambda _: None)
    found = ladder.to_dict()
    whole = next(gain["estimate"] for gain in found["gains"] if gain["key"] == "contribution")
    assert sum(partner["estimate"] for partner in found["partners"]) == pytest.approx(whole)
    # With both, alone, with a placebo of itself and of the other, and where both are placebos; not without itself.
    assert {name: PrimaryBudget.of(files[name], "city").read().studies for name in job.secondaries} == {
        "rentals": 5,
        "schools": 5,
    }


def test_a_secondary_takes_part_in_no_more_studies_than_its_owner_allows(tmp_path):
    job, files = world(tmp_path, NONE)
    transport = InProcessTransport()
    with (
        staying(job, files["rentals"], transport),
        open_party_context(job, files["city"], transport, software_versions()) as post,
        pytest.raises(PeerError, match="max_studies"),
    ):
        train_remote_ladder(post, ResultStore(tmp_path / "results"), NEEDED, 1, "S$", lambda _: None)


def test_without_a_training_there_is_nothing_to_compare(tmp_path):
    lay_out(tmp_path)
    job, files = read_all(tmp_path)
    with (
        open_party_context(job, files["city"], InProcessTransport(), software_versions()) as post,
        raises(FileError, "not-trained"),
    ):
        train_remote_ladder(post, ResultStore(tmp_path / "results"), NEEDED, 1, "S$", lambda _: None)
