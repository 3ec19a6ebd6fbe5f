"""What differs between jobs that link directly and those with a coordinator, in words and rules."""

from __future__ import annotations

import pytest

from fedsim.protocol.messages import Role
from fedsim_lab.faults.local_job import create_local_job


@pytest.mark.parametrize("direct", [True, False])
def test_a_key_is_shared_and_rows_are_counted_where_a_coordinator_links(tmp_path, direct):
    job = create_local_job(tmp_path / "job", direct=direct).job
    assert job.kind.SHARES_KEY == job.kind.COUNTS_ROWS == (not direct)
    assert (job.kind.keeps(Role.PRIMARY) == job.kind.keeps(Role.SECONDARY)) == job.kind.SHARES_KEY


def test_labels_of_a_direct_job_are_sealed_and_all_that_leaves_is_named(tmp_path):
    direct, other = (create_local_job(tmp_path / str(kind), direct=kind).job for kind in (True, False))
    assert {"coordinator", "labels", "embedding", "retention"} == dict(direct.kind.settings(direct)).keys()
    assert {"coordinator", "cut"} <= dict(other.kind.settings(other)).keys()
    assert direct.kind.scaled_over(direct) == other.kind.scaled_over(other)
