"""The report of a campaign of faults."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from fedsim.cli.app import app


def test_a_campaign_that_was_violated_says_so_in_its_report_and_its_exit_code(tmp_path: Path):
    schedule = {"seed": 7, "network": "proxy", "epochs": 2}
    same = {"name": "schedule-7", "kind": "schedule", "result": "same", "fault": "", "schedule": schedule}
    same |= {"applied": ["kill", "pause"], "refusals": [], "restarts": 1}
    lost = {**same, "name": "schedule-8", "result": "violated", "fault": "wrong-weights: other weights"}
    command = ["lab", "faults", "--schedules", "0", "--out", str(tmp_path), "--report", str(tmp_path / "report.md")]
    for results, code in (([same], 0), ([same, lost], 2), ([same, lost, {**lost, "result": "same"}], 0)):
        (tmp_path / "results.jsonl").write_text("".join(json.dumps(result) + "\n" for result in results))
        assert CliRunner().invoke(app, command).exit_code == code
        report = (tmp_path / "report.md").read_text()
        assert ("| clock jump |" in report, "wrong-weights" in report) == (True, code == 2)
