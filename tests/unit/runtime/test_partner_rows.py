"""Rows of partners that a primary stores or requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.data.table_reader import infer_numbers, read_table
from fedsim.errors import AwayError
from fedsim.pipeline import fitted_model
from fedsim.protocol.transport import InProcessTransport
from fedsim.runs.run_folder import open_audit_log, read_audit_log, rows_path
from fedsim.runtime import partner_rows
from fedsim.runtime.partner_rows import StoredRows
from fedsim.runtime.party_context import open_party_context, software_versions
from fedsim.runtime.predictor import Predictor
from fedsim.runtime.primary import TREES_MODEL, run_primary
from fedsim.runtime.run_store import RunStore
from fedsim.training import boosted_trees
from job_fixtures import lay_out, read_all, staying
from prediction_fixtures import EMBEDDED, SOLO, World, train_job
from session_fixtures import PATIENCE, until


def test_nothing_is_requested_for_trees_without_weight(tmp_path, monkeypatch):
    monkeypatch.setattr(boosted_trees, "choose_weight", lambda *_: 1.0)
    world = World(tmp_path, EMBEDDED, train_job)
    world.bring("notary"), world.bring("rentals")
    predictor = world.predictor()
    assert not RunStore(predictor.context.folder, world.job).has_weights(TREES_MODEL)
    asked = []
    monkeypatch.setattr(partner_rows, "fetch_embedded", lambda *_: asked.append(1))
    assert (predictor.predict(world.records[:3]).by, asked) == ("fedsim", [])
    world.close()


SEALED = {"job": {"[network]": '[protection]\ngradients = "none"\n\n[network]'}, "city": SOLO}


@pytest.mark.parametrize("world", [SEALED], indirect=True)
def test_under_sealed_labels_only_rows_that_are_not_stored_need_the_secondary(world):
    world.bring("notary")
    predictor = world.predictor()
    alone = predictor.predict(world.records[:3])
    assert (alone.by, alone.away) == ("fedsim", ())
    path = rows_path(predictor.context.folder, "rentals")
    stored = StoredRows.load(path)
    replace(stored, pseudonym=stored.pseudonym[1:], values=stored.values[1:]).save(path)
    predictor.context.connection.wait_seconds = 2.0  # for rentals; the coordinator answers within it
    with raises(AwayError, "peer-away"):
        predictor.predict(world.records)
    world.bring("rentals")
    predictor.context.connection.wait_seconds = PATIENCE
    assert predictor.predict(world.records).values[:3] == pytest.approx(alone.values)
    np.testing.assert_array_equal(StoredRows.load(path).values, stored.values)
    # Once their retention has ended, the rows are deleted and requested anew.
    replace(stored, received="2020-01-01T00:00:00+00:00").save(path)
    assert predictor.predict(world.records[:3]).values == pytest.approx(alone.values)
    fetched = StoredRows.load(path)
    assert len(fetched.pseudonym) < len(stored.pseudonym)
    assert fetched.received > "2021"
    assert "rows deleted" in [entry.what for entry in read_audit_log(open_audit_log(world.files["city"]).path)]


def test_parties_that_stay_are_left_alone_while_sealed_labels_are_trained_on_and_predict_later(tmp_path, monkeypatch):
    lay_out(tmp_path, SEALED)
    (job, files), transport, looked = read_all(tmp_path), InProcessTransport(), []
    train = fitted_model.train_with
    with staying(job, files["notary"], transport), staying(job, files["rentals"], transport) as rentals:

        def peers():
            return [session.peer for session in rentals.sessions() if session.connected]

        def train_and_look(*arguments, **settings):
            until(lambda: not peers())
            looked.append(len(peers()))
            return train(*arguments, **settings)

        monkeypatch.setattr(fitted_model, "train_with", train_and_look)
        with open_party_context(job, files["city"], transport, software_versions()) as post:
            run_primary(post)
        path = rows_path(post.folder, "rentals")
        replace(StoredRows.load(path), received="2020-01-01T00:00:00+00:00").save(path)  # so that they are sent again
        with open_party_context(job, files["city"], transport, software_versions()) as post:
            records = infer_numbers(read_table(tmp_path / "flats.csv")).drop("price")
            assert len(Predictor(post, wait_seconds=PATIENCE).predict(records[:3]).values) == 3
    assert looked == [0]
