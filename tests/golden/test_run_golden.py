"""A job of version 0.2 trains to the same weights, and the run folders that it left still predict.

The weights must be equal bit for bit on the processor that wrote the files (AVX2); on others they differ in the last
digits. ``FEDSIM_EXACT_WEIGHTS=1`` makes any difference a failure; without it, digests that differ are printed.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fedsim.config.job import Job, read_job
from fedsim.config.party_file import PartyFile, read_party_file
from fedsim.data.table_reader import infer_numbers, read_table
from fedsim.protocol.transport import InProcessTransport
from fedsim.runs.record import read_run_record
from fedsim.runs.run_folder import run_path
from fedsim.runtime.party_context import open_party_context, software_versions
from fedsim.runtime.predictor import Predictor
from fedsim.runtime.run_local import run_local
from fedsim.storage.tensor_file import named_arrays_digest
from job_fixtures import PARTIES, staying
from session_fixtures import PATIENCE

RUNS = Path(__file__).with_name("run_0_2")
TOLERANCE = 2e-4  # between instruction sets we saw 2.3e-5; another seed changes weights by more than 0.01
PARTS = ("city-run/*/model", "city-run/*/rentals-partner", "rentals-run/*/model", "rentals-run/*/sealed.safetensors")


@pytest.fixture(params=["split", "sealed"])
def earlier(request: pytest.FixtureRequest) -> Path:
    return RUNS / request.param


def read_files(folder: Path) -> tuple[Job, dict[str, PartyFile]]:
    for path in (folder / "linkage.key", *folder.glob("*-run/*/secret")):
        path.chmod(0o600)  # the version control system does not keep permissions
    return read_job(folder / "job.toml"), {name: read_party_file(folder / f"{name}.toml") for name in PARTIES}


def weights(folder: Path) -> dict[str, np.ndarray]:
    """All weights that a job left in a folder, and the embedding that was sent, by file and name."""
    paths = [path for part in PARTS for path in sorted(folder.glob(f"{part}*"))]
    files = [path if path.is_file() else path / "step-000000000" / "tensors.safetensors" for path in paths]
    named = ((str(file.relative_to(folder)), load_file(file)) for file in files)
    return {f"{file} {name}": tensor for file, tensors in named for name, tensor in tensors.items()}


def test_a_job_of_version_0_2_trains_to_the_same_weights(earlier, tmp_path):
    shutil.copytree(earlier, tmp_path, ignore=shutil.ignore_patterns("flats-*", "budgets"), dirs_exist_ok=True)
    for secret in earlier.glob("*-run/*/secret"):
        copy = tmp_path / secret.relative_to(earlier)
        copy.parent.mkdir()
        shutil.copy(secret, copy)
    torch.set_num_threads(1)
    job, files = read_files(tmp_path)
    run_local(job, list(files.values()))
    old, new = weights(earlier), weights(tmp_path)
    assert list(new) == list(old)
    assert sum(tensor.size for tensor in old.values()) > 100_000
    for name, tensor in old.items():
        np.testing.assert_allclose(new[name], tensor, rtol=0, atol=TOLERANCE, err_msg=name)
    digests = [named_arrays_digest("weights", {}, arrays) for arrays in (old, new)]
    if digests[0] != digests[1]:
        print(f"{earlier.name}: weights of 0.2 have the digest {digests[0]}, those of this version {digests[1]}")
    if os.environ.get("FEDSIM_EXACT_WEIGHTS"):
        assert digests[0] == digests[1]


def test_run_folders_of_version_0_2_still_predict(earlier, tmp_path):
    shutil.copytree(earlier, tmp_path, dirs_exist_ok=True)
    job, files = read_files(tmp_path)
    run = read_run_record(run_path(job, files["city"]))
    assert (run.hash, Job.from_dict(run.job).hash) == (job.hash, job.hash)
    records = infer_numbers(read_table(tmp_path / "city.csv")).drop("price")[:3]
    transport = InProcessTransport()
    with ExitStack() as stack:
        for name in ("notary", "rentals"):
            stack.enter_context(staying(job, files[name], transport))
        primary = open_party_context(job, files["city"], transport, software_versions(), predicting=True)
        context = stack.enter_context(primary)
        found = Predictor(context, wait_seconds=PATIENCE).predict(records)
    expected = json.loads((RUNS / "predictions.json").read_text(encoding="utf-8"))[earlier.name]
    assert (found.by, found.away) == ("fedsim", ())
    assert found.values == pytest.approx(expected["values"], rel=1e-4)
    assert found.intervals.tolist() == [pytest.approx(ends, rel=1e-4) for ends in expected["intervals"]]
