"""What a primary keeps of the coordinator's answers; ``tests/contract`` links with a coordinator."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import FileError, PeerError
from fedsim.pipeline.party_table import PartyData
from fedsim.runtime.linking import CoordinatorLinker, stored_links
from fedsim.runtime.run_store import RunStore
from fedsim.types import Links
from job_fixtures import lay_out, read_all


@pytest.fixture
def linked(tmp_path):
    """Return a function that links when the coordinator gives some answer, and the run folder."""
    lay_out(tmp_path, flats=12)
    job, files = read_all(tmp_path)
    store, records = RunStore(tmp_path / "run", job), PartyData.read(job, files["city"])
    store.folder.mkdir()

    def link(answer: Links | None) -> Links:
        linker = CoordinatorLinker(store, "rentals", SimpleNamespace(ask=lambda request: answer))
        return linker.link(records, np.arange(6))

    return link, store


def test_links_that_have_not_changed_are_read_from_the_run_folder(linked):
    link, store = linked
    answer = Links(np.arange(24, dtype=np.int32).reshape(12, 2), np.zeros((12, 2, 1), np.float32))
    first, second = link(answer), link(None)
    np.testing.assert_array_equal(first.partner, answer.partner)
    np.testing.assert_array_equal(second.partner, answer.partner)
    np.testing.assert_array_equal(stored_links(store, "rentals").partner, answer.partner)


def test_a_coordinator_that_reports_no_change_before_it_sent_links_is_refused(linked):
    link, store = linked
    with raises(PeerError, "unexpected-reply"):
        link(None)
    with raises(FileError, "not-trained"):
        stored_links(store, "rentals")
