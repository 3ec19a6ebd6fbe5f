"""The cost of members: seconds per training step with 1, 4 and 8 members of the preset ``modern``, by K.

Run it with ``fedsim lab bench members`` on an idle machine. It uses two threads, B=512, 12 columns at each party and
random data, and reports the best of several rounds that alternate between the numbers of members.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np
import torch

from fedsim.splitnn import Features
from fedsim.training import PrimaryData, SecondaryData, modern_preset
from fedsim.training.loop import TrainingJob, iterate_batches, prepare_job, start_local_secondaries, training_settings
from fedsim.types import Split

BATCH, STEPS, ROUNDS, THREADS = 512, 3, 5, 2
N_PARTNERS, N_COLUMNS = 20_000, 12
MEMBERS, K = (1, 4, 8), (10, 20, 50)


def build_job(k: int, members: int) -> TrainingJob:
    rng, n_records = np.random.default_rng(0), BATCH * STEPS + 1
    centre = rng.integers(0, N_PARTNERS, (n_records, 1))
    partner = (centre + rng.permuted(np.tile(np.arange(4 * k), (n_records, 1)), axis=1)[:, :k]) % N_PARTNERS
    primary = PrimaryData(
        Features(rng.normal(size=(n_records, N_COLUMNS)), periodic=(0, 1)), rng.normal(size=n_records)
    )
    secondary = SecondaryData(rng.normal(size=(N_PARTNERS, N_COLUMNS)), partner, rng.normal(size=partner.shape))
    split = Split(np.arange(n_records - 1), np.array([n_records - 1]), np.zeros(0, dtype=np.int64))
    setting = training_settings(replace(modern_preset(members=members), batch=BATCH, device="cpu"), split, None)
    return prepare_job(primary, start_local_secondaries([secondary], setting), split, setting)


def step_seconds(job: TrainingJob) -> float:
    start = time.perf_counter()
    for step, asked in enumerate(iterate_batches(job, 0)):
        job.primary.descend(job.records, job.scaled, asked, step)
    return (time.perf_counter() - start) / STEPS


def main(cases: list[str] | None = None) -> None:
    """Measure some values of K, by default all, and print a table."""
    torch.set_num_threads(THREADS)
    print(f"one step, B={BATCH}, {THREADS} threads, torch {torch.__version__}")
    print("| K | members | ms per step | times one member |\n|---|---|---|---|")
    for k in [int(word) for word in cases or ()] or K:
        jobs = {members: build_job(k, members) for members in MEMBERS}
        rounds = [{members: step_seconds(job) for members, job in jobs.items()} for _ in range(ROUNDS)]
        best = {members: min(found[members] for found in rounds) for members in MEMBERS}
        for members, seconds in best.items():
            print(f"| {k} | {members} | {1000 * seconds:.0f} | {seconds / best[1]:.1f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
