"""Speed of one training step and memory of the training data, compared with a K-fold repeat in the same process.

Run it with ``fedsim lab bench training``. It uses one thread, B=128 and the shapes of the paper's eight datasets with
random values; CPU time per step is the best of several rounds that alternate between ours and the baseline. Our step
includes finding the distinct rows and gathering the batch; the baseline slices its batch out of a table of pairs.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedsim.splitnn import FedSim
from fedsim.training import PrimaryData, SecondaryData, TaskType
from fedsim.training.data import as_features
from fedsim.training.loop import iterate_batches, prepare_job, start_local_secondaries, training_settings
from fedsim.types import Split
from fedsim_lab.paper_networks import ConvolutionMerge
from fedsim_lab.paper_preset import Lamb
from fedsim_lab.paper_sizes import PAPER_DATA, PaperData
from pair_table import PairNetwork, PairTable, PlainLamb, Sizes

BATCH, STEPS, ROUNDS = 128, 8, 4
TARGETS = {"hdb": 2.0, "house": 1.5, "taxi": 3.0}


@dataclass(frozen=True)
class Measured:
    """One data set: milliseconds per step and bytes per training record."""

    name: str
    ours: float
    plain: float
    bytes_ours: int
    bytes_pairs: int

    @property
    def ratio(self) -> float:
        return self.plain / self.ours

    @property
    def memory(self) -> float:
        return self.bytes_pairs / self.bytes_ours


def made_up(data: PaperData) -> tuple[PrimaryData, SecondaryData, Split]:
    """Return records for a few batches, linked to places drawn near each other, so that neighbours share partners."""
    rng, n_records = np.random.default_rng(0), BATCH * STEPS + 1
    n_secondary, k = data.records[1], data.partners
    centre = rng.integers(0, n_secondary, (n_records, 1))
    reach = rng.permuted(np.tile(np.arange(min(n_secondary, 4 * k)), (n_records, 1)), axis=1)[:, :k]
    partner, similarity = (centre + reach) % n_secondary, rng.normal(size=(n_records, k))
    own = rng.normal(size=(n_records, data.columns[0])).astype(np.float32)
    theirs = rng.normal(size=(n_secondary, data.columns[1])).astype(np.float32)
    classes = np.arange(n_records) % data.classes
    labels = rng.random(n_records) if data.classes == 1 else classes
    goal = TaskType.NUMBERS if data.classes == 1 else TaskType.CLASSES
    split = Split(np.arange(n_records - 1), np.array([n_records - 1]), np.zeros(0, dtype=np.int64))
    return PrimaryData(own, labels, goal), SecondaryData(theirs, partner, similarity), split


def our_epoch(data: PaperData) -> Callable[[], None]:
    primary, secondary, split = made_up(data)
    config = replace(data.config, batch=BATCH, device="cpu")
    setting = training_settings(config, split, None)
    job = prepare_job(primary, start_local_secondaries([secondary], setting), split, setting)

    def epoch() -> None:
        for step, asked in enumerate(iterate_batches(job, 0)):
            job.primary.descend(job.records, job.scaled, asked, step)

    return epoch


def plain_epoch(data: PaperData) -> Callable[[], None]:
    primary, secondary, _ = made_up(data)
    method, optimiser = data.config.method, data.config.optimiser
    assert isinstance(method, FedSim)
    assert isinstance(optimiser, Lamb)
    merge = method.merge
    sizes = Sizes(
        columns=data.columns,
        hidden=data.config.local.hidden[0],
        cut=data.config.local.cut,
        aggregate=method.hidden,
        outputs=method.outputs,
        partners=data.partners,
        classes=data.classes,
        merge=(merge.channels, merge.kernel, merge.hidden, merge.dropout)
        if isinstance(merge, ConvolutionMerge)
        else None,
    )
    network = PairNetwork(sizes)
    lamb = PlainLamb(list(network.parameters()), optimiser.rate, optimiser.decay)
    table = pair_table(primary, secondary)

    def epoch() -> None:
        for rows in torch.randperm(BATCH * STEPS).split(BATCH):
            own, theirs, similarity, labels = table.batch(rows)
            network.loss(network(own, theirs, similarity), labels).backward()
            lamb.step()

    return epoch


def pair_table(primary: PrimaryData, secondary: SecondaryData) -> PairTable:
    """Return every record K times, next to its partners."""
    partner, similarity = np.asarray(secondary.partner), np.asarray(secondary.similarity)
    own, theirs = (as_features(party.features).numbers.astype(np.float64) for party in (primary, secondary))
    repeated = np.repeat(own[:, None], partner.shape[1], axis=1)
    labels = torch.from_numpy(primary.labels)
    return PairTable(*map(torch.from_numpy, (repeated, theirs[partner], similarity)), labels)


def seconds(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(name: str) -> Measured:
    data = PAPER_DATA[name]
    ours, plain = our_epoch(data), plain_epoch(data)
    ours()
    plain()
    times = [(seconds(ours), seconds(plain)) for _ in range(ROUNDS)]
    best_ours, best_plain = (1000 * min(column) / STEPS for column in zip(*times, strict=True))
    return Measured(name, best_ours, best_plain, *memory(data))


def memory(data: PaperData) -> tuple[int, int]:
    """Return the bytes held for training: tables, row numbers and similarities at 4 bytes; the pair table at 8."""
    n_train = 7 * data.records[0] // 10
    ours = 4 * (n_train * data.columns[0] + data.records[1] * data.columns[1] + 2 * n_train * data.partners)
    return ours, 8 * n_train * data.partners * (sum(data.columns) + 1)


def main(cases: list[str] | None = None) -> None:
    """Measure some of the paper's data sets, by default all, and print a table."""
    torch.set_num_threads(1)
    print(f"one step, B={BATCH}, one thread; torch {torch.__version__}, {platform.processor() or platform.machine()}")
    print("| shapes | ours ms | K-fold repeat ms | times faster | target | data MB | pair table MB | times less |")
    print("|---|---|---|---|---|---|---|---|")
    for name in cases or list(PAPER_DATA):
        found = measure(name)
        target = f">= {TARGETS[name]}" if name in TARGETS else ""
        sizes = f"{found.bytes_ours / 1e6:,.0f} | {found.bytes_pairs / 1e6:,.0f} | {found.memory:.0f}"
        print(f"| {name} | {found.ours:.1f} | {found.plain:.1f} | {found.ratio:.2f} | {target} | {sizes} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
