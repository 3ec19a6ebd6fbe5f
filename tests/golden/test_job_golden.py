"""The hash of a job never changes: owners have approved it, and parties of two releases compare it.

If this test fails, every approval in the world is void: undo the change, or say so in the changelog and write the new
description here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsim.config.job import Job, read_job
from fedsim.config.toml_file import ConfigFileError, without_unused

GOLDEN = json.loads(Path(__file__).with_name("job.json").read_text(encoding="utf-8"))


def test_the_hash_of_a_job_never_changes():
    job = read_job(Path(__file__).with_name("job.toml"))
    assert job.to_dict() == without_unused(GOLDEN["described"])
    assert job.hash == GOLDEN["hash"]


def test_a_job_that_went_through_json_is_the_same_job():
    assert Job.from_dict(GOLDEN["described"]).hash == GOLDEN["hash"]


def test_a_job_that_flips_bits_is_refused():
    with pytest.raises(ConfigFileError) as caught:
        Job.from_dict(GOLDEN["removed"])
    assert "hardening" in str(caught.value)
