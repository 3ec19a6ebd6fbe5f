"""No two jobs on a table show averages whose difference is of fewer rows than m."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from error_fixtures import raises
from fedsim.errors import PolicyError
from fedsim.linkage.direct.key_store import KeyStore
from fedsim.pipeline.party_table import PartyData
from fedsim.pipeline.release import Release, release_table
from fedsim_lab.faults.local_job import RENTALS, create_local_job, small_tables

LEVELS = {"averages": {"share": "averages", "m": 5}, "rows": {"share": "rows", "m": 5}}


@pytest.fixture(scope="module", params=LEVELS)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PartyData:
    folder = tmp_path_factory.mktemp(request.param) / "job"
    place = create_local_job(
        folder, direct=True, tables=small_tables(rentals=300), secondaries={RENTALS: LEVELS[request.param]}
    )
    return PartyData.read(place.job, place.own(RENTALS))


@pytest.fixture
def keys(tmp_path):
    return KeyStore(tmp_path / "keys")


def with_terms(table: PartyData, **terms: object) -> PartyData:
    changed = table.job.secondaries[RENTALS].model_copy(update=terms)
    return replace(table, job=table.job.model_copy(update={"secondaries": {RENTALS: changed}}))


def release(table: PartyData, keys: KeyStore) -> Release:
    return release_table(table, RENTALS, table.fit_features(least=table.job.secondaries[RENTALS].m), keys)


def groups(released: Release) -> set[frozenset[int]]:
    listed = np.flatnonzero(released.place >= 0)
    _, group = np.unique(released.features.numbers[released.place[listed]], axis=0, return_inverse=True)
    return {frozenset(listed[group.ravel() == number].tolist()) for number in range(group.max() + 1)}


def written_otherwise(table: PartyData) -> PartyData:
    """The same cells, as another program writes them, and a last row less."""
    longer = pl.when(pl.all().str.contains(".", literal=True)).then(pl.all() + "0").otherwise(pl.all() + ".0")
    return replace(table, frame=table.frame.select(longer)[:-1])


def test_single_rows_do_not_follow_averages(table, keys):
    release(table, keys)
    with raises(PolicyError, "terms-bound"):
        release(with_terms(table, share="rows", m=1), keys)


def test_groups_are_not_drawn_anew_because_cells_are_written_otherwise(table, keys):
    before, after = (groups(release(one, keys)) for one in (table, written_otherwise(table)))
    (lost,) = before - after
    assert after < before
    assert len(table) - 1 in lost


def test_groups_are_not_drawn_anew_because_other_columns_link(table, keys):
    release(table, keys)
    moved = table.frame.with_columns(east=pl.col("lon").cast(pl.Float64) + 0.001)
    columns = replace(table.columns, identifiers={RENTALS: {"lat": "lat", "lon": "east"}})
    with raises(PolicyError, "terms-bound", changed=["identifiers"]):
        release(replace(table, frame=moved, columns=columns), keys)


def test_no_two_grids_of_cells_locate_a_row_better_than_one(table, keys):
    release(table, keys)
    schema = table.job.secondaries[RENTALS].token_schema
    finer = replace(schema, fields=(replace(schema.fields[0], kind=replace(schema.fields[0].kind, metres=199.0)),))
    with pytest.raises(PolicyError) as caught:
        release(with_terms(table, tokens=finer), keys)
    assert caught.value.code == "terms-bound"


def test_other_costs_of_tokens_are_no_other_terms_for_rows(table, keys):
    if table.job.secondaries[RENTALS].share != "rows":
        pytest.skip("leaves of cells depend on all settings")
    first = release(table, keys)
    schema = table.job.secondaries[RENTALS].token_schema
    cheaper = replace(schema, fields=(replace(schema.fields[0], kind=replace(schema.fields[0].kind, reach=1)),))
    assert groups(release(with_terms(table, tokens=cheaper), keys)) == groups(first)


def test_a_new_value_beside_unmarked_gaps_is_not_its_own_average(table, keys):
    """No column marked gaps when the first groups were formed, so a gap would count as the mean of the column."""
    complete = replace(table, frame=table.frame[:200])
    sparse = table.frame[200:].with_columns(rent=pl.when(pl.int_range(pl.len()) % 10 == 0).then("rent"))
    later = replace(table, frame=pl.concat([complete.frame, sparse]))
    before = release(complete, keys)
    after = release(later, keys)
    assert (before.place >= 0).any()
    gaps = later.frame["rent"].is_null().to_numpy()
    assert (after.place[gaps] < 0).all()
