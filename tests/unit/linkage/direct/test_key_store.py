"""The terms and groups of a table are kept with its key, for all jobs and primaries."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import FileError, PolicyError
from fedsim.linkage.direct.groups import RecordedGroups, group_by_features
from fedsim.linkage.direct.key_store import KeyStore, Shown

NOW, TERMS = datetime(2030, 1, 1, tzinfo=UTC), {"share": "rows", "m": 3}
SHOWN = Shown("city", "ab12", "2030-01-01T00:00:00+00:00", "rows", 3, 4)


def update(rows):
    def assign(known: RecordedGroups):
        return known.assign(rows, rows, lambda at: group_by_features(rows[at, np.newaxis].astype(float), 3))

    return assign


@pytest.fixture
def keys(tmp_path):
    return KeyStore(tmp_path / "keys")


def test_groups_outlive_keys_and_other_terms_are_refused_by_name_only(keys):
    rows = np.arange(12)
    first = keys.update_groups("firms", TERMS, update(rows))
    keys.create("firms", NOW)
    keys.rotate("firms", NOW)
    keys.destroy("firms", NOW)
    np.testing.assert_array_equal(keys.update_groups("firms", TERMS, update(rows)).group, first.group)
    with raises(PolicyError, "terms-bound", changed=["m"]) as caught:
        keys.update_groups("firms", {**TERMS, "m": 33}, update(rows))
    assert "33" not in str(caught.value)


def test_one_file_has_the_groups_of_a_table(keys):
    for rows in (np.arange(6), np.arange(9)):
        keys.update_groups("firms", TERMS, update(rows))
    assert len(list(keys.folder.glob("*.groups"))) == 1


def test_a_group_file_that_is_missing_is_not_drawn_anew(keys):
    keys.update_groups("firms", TERMS, update(np.arange(6)))
    next(keys.folder.glob("*.groups")).unlink()
    with pytest.raises(FileError):
        keys.update_groups("firms", TERMS, update(np.arange(6)))


def test_groups_are_not_drawn_anew_because_the_key_file_is_gone(keys):
    keys.update_groups("firms", TERMS, update(np.arange(6)))
    (keys.folder / "firms.key.json").unlink()
    with raises(FileError, "bad-key-file", table="firms"):
        keys.update_groups("firms", TERMS, update(np.arange(6)))


def test_what_was_shown_is_recorded_once_for_a_job(keys):
    for _ in range(2):
        keys.add_shown("firms", SHOWN)
    assert keys.record("firms").shown == (SHOWN,)
