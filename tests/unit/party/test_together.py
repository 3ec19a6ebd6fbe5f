"""All parties in one process: a job that was trained before is told, not trained again."""

from __future__ import annotations

import time

from fedsim.party.together import run_together
from party_jobs import lay_out, read_all


def test_a_job_that_was_trained_before_is_told_at_once(tmp_path, caplog):
    lay_out(tmp_path)
    job, files = read_all(tmp_path)
    first = run_together(job, list(files.values()))
    began = time.monotonic()
    with caplog.at_level("INFO"):
        again = run_together(job, list(files.values()))
    assert again.outcome == first.outcome
    assert again.ledger == []
    assert "was trained before" in caplog.text
    assert time.monotonic() - began < 10  # nobody waits for anybody
