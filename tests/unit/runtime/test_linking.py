"""Predictions of a job without a coordinator: which need the secondary, and what they cost."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime

import polars as pl
import pytest

from error_fixtures import raises
from fedsim.data.table_reader import infer_numbers, read_table
from fedsim.errors import AwayError, FileError, PeerError
from fedsim.linkage.direct.key_store import KeyStore
from fedsim.protocol.transport import InProcessTransport
from fedsim.runs.run_folder import open_audit_log, read_audit_log, rows_path, table_path
from fedsim.runtime.partner_rows import StoredRows
from fedsim.runtime.party_context import open_party_context, software_versions
from fedsim.runtime.predictor import Predictor
from fedsim.runtime.run_local import run_local
from fedsim.runtime.secondary import run_secondary
from fedsim_lab.faults.local_job import CITY, RENTALS, LocalJob, create_local_job
from job_fixtures import staying
from session_fixtures import PATIENCE


class World:
    """A trained direct job whose parties come online one by one."""

    def __init__(self, folder, **changes) -> None:
        self.place: LocalJob = create_local_job(folder, direct=True, **changes)
        run_local(self.place.job, [self.place.own(name) for name in self.place.names])
        self.records = infer_numbers(read_table(folder / "city.csv")).drop("price")
        self.transport, self._stack = InProcessTransport(), ExitStack()

    def bring(self):
        return self._stack.enter_context(staying(self.place.job, self.place.own(RENTALS), self.transport))

    def predictor(self, wait_seconds: float = PATIENCE) -> Predictor:
        own = self.place.own(CITY)
        context = open_party_context(self.place.job, own, self.transport, software_versions(), predicting=True)
        return Predictor(self._stack.enter_context(context), wait_seconds=wait_seconds)

    def evaluated(self) -> int:
        return KeyStore(self.place.own(RENTALS).folder / "keys").record(RENTALS).evaluated[CITY]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def world(tmp_path):
    opened = World(tmp_path / "job")
    yield opened
    opened.close()


def moved(records: pl.DataFrame) -> pl.DataFrame:
    """Places where no record was before."""
    return records.with_columns(pl.col("lat") + 0.05)


def test_records_whose_tokens_are_known_are_predicted_while_the_secondary_is_away(world):
    predictor, before = world.predictor(wait_seconds=0.5), world.evaluated()
    alone = predictor.predict(world.records[:4])
    assert predictor.coordinator_online is None
    assert (alone.by, alone.away, alone.needed_online) == ("fedsim", (), {RENTALS: 0})
    with raises(AwayError, "peer-away"):
        predictor.predict(moved(world.records[:4]))
    world.bring()
    predictor.context.connection.wait_seconds = PATIENCE
    new = predictor.predict(moved(world.records[:4]))
    cost = world.evaluated() - before
    assert cost > 0
    again = predictor.predict(moved(world.records[:4]))
    assert (new.needed_online, again.needed_online) == ({RENTALS: 4}, {RENTALS: 0})
    assert again.values == new.values
    assert predictor.predict(world.records[:4]).values == alone.values
    assert world.evaluated() - before == cost


def test_once_retention_ends_rows_and_table_are_deleted_and_only_own_tokens_open_rows_again(world):
    predictor = world.predictor()
    path = rows_path(predictor.context.folder, RENTALS)
    before = predictor.predict(world.records[:4]).values
    stored = StoredRows.load(path)
    replace(stored, received="2020-01-01T00:00:00+00:00").save(path)
    with raises(AwayError, "peer-away"):
        predictor.context.connection.wait_seconds = 0.5
        predictor.predict(world.records[:4])
    assert not table_path(predictor.context.folder, RENTALS).is_file()
    assert not len(StoredRows.load(path).pseudonym)
    world.bring()
    predictor.context.connection.wait_seconds = PATIENCE
    again = predictor.predict(world.records[:4])
    assert again.values == pytest.approx(before)
    assert again.needed_online == {RENTALS: 4}  # for the table
    assert len(StoredRows.load(path).pseudonym) < len(stored.pseudonym)
    what = [entry.what for entry in read_audit_log(open_audit_log(world.place.own(CITY)).path)]
    assert "rows deleted" in what


def test_a_staying_secondary_refuses_tokens_beyond_its_budget_and_serves_on(world):
    used = world.evaluated()
    world.place.change_party(RENTALS, policy={"max_tokens": used + 100})
    world.bring()
    predictor = world.predictor()
    with raises(PeerError, "peer-stopped"):
        predictor.predict(moved(world.records))
    few = moved(world.records[:1]).with_columns(lat=world.records["lat"][0])
    assert len(predictor.predict(few).values) == 1
    assert world.evaluated() <= used + 100


def test_a_destroyed_key_ends_all_evaluation(world):
    keys = KeyStore(world.place.own(RENTALS).folder / "keys")
    keys.destroy(RENTALS, datetime.now(UTC))
    with (
        raises(FileError, "key-destroyed"),
        open_party_context(
            world.place.job, world.place.own(RENTALS), world.transport, software_versions(), predicting=True
        ) as context,
    ):
        run_secondary(context, stay=True)
    assert len(world.predictor(wait_seconds=0.5).predict(world.records[:4]).values) == 4
