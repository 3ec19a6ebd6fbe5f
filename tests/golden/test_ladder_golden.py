"""The ladder of a small job scores every rung as version 0.2 did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsim.contribution.job_ladder import JobCases
from fedsim.contribution.ladder import train_ladder, with_embedding, with_settings
from fedsim.contribution.rungs import ResultStore
from fedsim.hyperparameters import TrainingSettings
from fedsim.runs.run_folder import SECRET_FILE
from job_fixtures import lay_out, read_all

EXPECTED = Path(__file__).with_name("ladder_0_2.json")
PLAIN = {"tau = 0.05\n": ""}
JOBS = {
    "plain": {"job": PLAIN},
    "embedding": {
        "job": {**PLAIN, "[network]": '[protection]\nembedding = "random"\n\n[network]', '"fedsim"': '"stacked"'}
    },
    "classes": {
        "job": {**PLAIN, "regression": "classification"},
        "city": {"flats.csv": "classes.csv", 'column = "price"': 'column = "dear"'},
    },
}


def train_small_ladder(folder: Path, name: str) -> dict[str, Any]:
    """Return the test scores of all rungs of a job on one split, and the figures of the trees beside a network."""
    lay_out(folder, JOBS[name])
    for place in ("", "city", "rentals"):  # of the noise and of the embedding
        store = folder / "compare" / place
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        (store / SECRET_FILE).write_text(f"{bytes(32).hex()}\n")
        (store / SECRET_FILE).chmod(0o600)
    torch.set_num_threads(1)
    job, files = read_all(folder)
    cases = JobCases.read(job, [files["city"], files["rentals"]], folder / "compare").cases(1, ["random"])
    rungs = with_settings(TrainingSettings(epochs=12, batch_size=16, members=1, learning_rate=0.005))
    rungs = with_embedding(rungs) if job.sends_embedding else rungs
    ladder = train_ladder(cases, rungs, ResultStore(folder / "out"), lambda _: None, lengthen=False)
    found = ladder.to_dict()
    return {
        "scores": {rung["key"]: rung["values"] for rung in found["rungs"]},
        "chosen": found["chosen"],
        "gains": {gain["key"]: [gain["estimate"], gain["low"], gain["high"]] for gain in found["gains"]},
        "weights": {key: line["weight"] for (key, _), (line,) in ladder.lines.items() if "weight" in line},
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", list(JOBS))
def test_a_ladder_scores_every_rung_as_before(name, tmp_path):
    expected, found = json.loads(EXPECTED.read_text(encoding="utf-8"))[name], train_small_ladder(tmp_path, name)
    assert found["chosen"] == expected["chosen"]
    for part in ("scores", "gains"):
        assert found[part] == {key: pytest.approx(value, rel=1e-4, abs=1e-6) for key, value in expected[part].items()}
    assert found["weights"] == expected["weights"]
