"""Under sealed labels a secondary sends its rows once and receives nothing that depends on a label."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from e2e.party_threads import mutual_tls, run_in_threads
from e2e.process_hooks import fatal
from fedsim.config.toml_file import ConfigFileError
from fedsim.pipeline import fitted_model
from fedsim.protocol.messages import Role
from fedsim.protocol.transport import decode
from fedsim.runtime.run_local import run_local
from fedsim.training import boosted_trees
from fedsim_lab.faults.local_job import CITY, RENTALS, create_local_job, small_tables
from fedsim_lab.faults.processes import party_processes
from privacy.test_canaries import Recorded

SEALED = {"protection": {"gradients": "none"}}
STACKED = {"training": {"method": "stacked"}, "protection": {"embedding": "random"}}


def received_by_the_secondary(place):
    """All that the primary and the coordinator sent to the secondary, but for session numbers and clocks."""
    frames: list = []
    run_in_threads(place, lambda own: Recorded(mutual_tls(own), own.party, frames, [None] * 9))
    received = []
    for _sender, receiver, frame in frames:
        message = decode(frame).message
        if receiver is not None and receiver.role is Role.SECONDARY and message.kind not in ("hello", "welcome"):
            facts = {name: value for name, value in vars(message).items() if not isinstance(value, np.ndarray)}
            arrays = {name: value.tobytes() for name, value in vars(message).items() if isinstance(value, np.ndarray)}
            received.append((message.kind, facts, arrays))
    return [one for one in received if one[0] != "notice"]


PRICE = pl.col("price")
EXPENSIVE = pl.when(PRICE.median() < PRICE).then(pl.lit("high")).otherwise(pl.lit("low"))
LABELS = {  # kind of task, labels of one job and of the other
    "others": ("regression", PRICE, 1e6 - PRICE.shuffle(seed=1)),
    "missing": ("regression", PRICE, pl.when(PRICE.quantile(0.3) < PRICE).then(PRICE)),
    "classes": ("classification", EXPENSIVE, pl.when(pl.int_range(pl.len()) % 3 > 0).then(EXPENSIVE.shuffle(seed=1))),
}


@pytest.mark.parametrize("labels", LABELS)
def test_a_secondary_receives_the_same_bytes_whatever_the_labels_are(tmp_path, labels):
    task, *columns = LABELS[labels]
    terms = {"protection": {"gradients": "none"}, "task": {"kind": task}}
    terms |= {"secondaries": {RENTALS: {"tau": None, "sigma": 0.4}}}
    tables = [{**small_tables(), CITY: small_tables()[CITY].with_columns(price=column)} for column in columns]
    places = [create_local_job(tmp_path / str(at), tables=one, **terms) for at, one in enumerate(tables)]
    first, second = map(received_by_the_secondary, places)
    assert first == second
    assert {kind for kind, _, _ in first} == {"want", "row-order", "meet", "infer", "finish", "farewell"}


def test_a_secondary_is_dismissed_before_training_whose_time_depends_on_labels(tmp_path, monkeypatch):
    place, frames, before = create_local_job(tmp_path / "job", **SEALED), [], []
    train = fitted_model.train_with

    def sent_to_the_secondary():
        _, *ends = place.job.parties
        return [frame for sender, receiver, frame in list(frames) if [sender, receiver] == ends]

    def train_later(*arguments, **settings):
        before.extend(sent_to_the_secondary())
        return train(*arguments, **settings)

    monkeypatch.setattr(fitted_model, "train_with", train_later)
    run_in_threads(place, lambda own: Recorded(mutual_tls(own), own.party, frames, [None] * 9))
    assert "farewell" in {decode(frame).message.kind for frame in before}
    assert len(before) == len(sent_to_the_secondary())


@pytest.mark.parametrize("kind", ["features", "autoencoder"])
def test_processes_learn_what_one_process_learns(tmp_path, kind):
    terms = {"protection": {"gradients": "none", "embedding": kind}}
    here, there = (create_local_job(tmp_path / name, n_secondaries=2, **terms) for name in "ab")
    run_local(here.job, [here.own(name) for name in here.names])
    ledgers = run_in_threads(there)
    assert there.hashes() == here.hashes()
    kinds = {entry.kind for entry in ledgers[CITY]}
    assert "activations" in kinds
    assert not kinds & {"begin", "ask", "gradients", "save"}


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        (CITY, "fedsim.runtime.partner_rows:StoredRows.save"),  # the rows are here, and the secondary does not know
        (CITY, "fedsim.runtime.primary:fit"),  # the secondary may be gone
        (RENTALS, "fedsim.runtime.run_store:RunStore.embed_features"),
        (CITY, "fedsim.runtime.partner_rows:fetch_embedded"),  # all networks are trained
    ],
)
def test_a_kill_changes_nothing(tmp_path, name, moment):
    terms = STACKED if moment.endswith("fetch_embedded") else SEALED
    quiet, shot = (create_local_job(tmp_path / folder, **terms) for folder in ("quiet", "shot"))
    run_local(quiet.job, [quiet.own(party) for party in quiet.names])
    with party_processes(shot, {name: fatal(moment)}) as parties:
        parties.start()
        assert parties.running[name].wait() == -9, parties.logs()
        parties.before = {}
        parties.start(name)
        assert parties.finish() == quiet.hashes()


def test_trees_get_the_embedding_once_and_processes_learn_what_one_process_learns(tmp_path, monkeypatch):
    monkeypatch.setattr(boosted_trees, "ROUNDS", 20)
    here, there = (create_local_job(tmp_path / name, n_secondaries=2, **STACKED) for name in "ab")
    run_local(here.job, [here.own(name) for name in here.names])
    ledgers = run_in_threads(there)
    assert there.hashes() == here.hashes()
    assert [entry.messages for entry in ledgers[CITY] if entry.kind == "embed"] == [1, 1]


@pytest.mark.parametrize("setting", [{"embedding": "random"}, {"retention_days": 5}])
def test_settings_of_sealed_labels_without_them_are_refused(tmp_path, setting):
    with pytest.raises(ConfigFileError):
        create_local_job(tmp_path / "job", protection=setting)
