"""How long linkage and an epoch take here (appendix, "Time Consumption of FedSim")."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from fedsim.data.datasets import Dataset
from fedsim.experiment.choices import config_of
from fedsim.experiment.compared import HAMMING, compared, sides
from fedsim.experiment.sheet import Sheet, Table, run_facts
from fedsim.experiment.study import METHODS, ONE_AT_MOST
from fedsim.experiment.study_run import Bench, missing, sampled
from fedsim.linkage import link
from fedsim.training import Goal, PrimaryData, SecondaryData, train
from fedsim.training.paper_sizes import PAPER_DATA, PaperData
from fedsim.types import Split

REAL = ("house", "taxi", "hdb", "game", "company")
LINKAGE_MINUTES = {
    "in the clear": {"house": 3.48, "taxi": 12.95, "hdb": 0.98, "game": 3.62, "company": 13.20},
    "filters": {"house": 145.20, "taxi": 594.27, "hdb": 258.23, "game": 41.38, "company": 19.87},
}
EPOCH_SECONDS = {
    "exact": {"game": "< 1", "company": "4"},
    "featuresim": {"house": "15", "taxi": "51", "hdb": "5", "game": "1", "company": "23"},
    "avgsim": {"house": "6", "taxi": "35", "hdb": "4", "game": "1", "company": "15"},
    "top1sim": {"house": "< 1", "taxi": "1", "hdb": "< 1", "game": "< 1", "company": "3"},
    "fedsim": {"house": "9", "taxi": "38", "hdb": "6", "game": "4", "company": "62"},
}
LARGE_BATCH = 4_096  # of the methods that take one partner at most


def linkage_sheet(bench: Bench, records: int) -> Sheet:
    """Minutes of linking every dataset that is here, in the clear and by the paper's filters."""
    began, rows, notes = time.perf_counter(), [], []
    for name in REAL:
        absent = missing(name, bench.data)
        if absent:
            notes.append(absent)
            rows.append((name, "-", "-", *_paper_minutes(name, LINKAGE_MINUTES)))
            continue
        dataset = sampled(name, bench.data, records)
        clear, filters = (_minutes(dataset, metric, bench) for metric in ("", HAMMING))
        sizes = f"{len(dataset.primary):,} x {len(dataset.secondaries[0].table):,}"
        rows.append((f"{name} ({sizes})", clear, filters, *_paper_minutes(name, LINKAGE_MINUTES)))
    head = ("dataset", "in the clear", "filters", "paper, in the clear", "paper, filters")
    return Sheet(
        "table-linkage-time",
        "Time of linkage",
        "Table 7 (appendix)",
        "filters take many times longer than identifiers in the clear",
        (Table("minutes", head, tuple(rows)),),
        notes=(*notes, "numbers are linked in the rank form of their filters, which gives the same distances"),
        facts=run_facts([], time.perf_counter() - began),
    )


def _minutes(dataset: Dataset, metric: str, bench: Bench) -> str:
    secondary = dataset.secondaries[0]
    ours, theirs = sides(dataset, secondary)
    began = time.perf_counter()
    left, right, word = compared(ours, theirs, secondary, metric)
    link(left, right, metric=word, k=min(secondary.link.k, len(theirs)))
    minutes = (time.perf_counter() - began) / 60
    bench.tell(f"{dataset.name} by {word}: {minutes:.3f} min")
    return f"{minutes:.3f}"


def _paper_minutes(name: str, paper: dict[str, dict[str, float]]) -> tuple[str, ...]:
    return tuple(f"{figures[name]:g}" for figures in paper.values())


def training_sheet(bench: Bench, records: int) -> Sheet:
    """Seconds of an epoch with the paper's sizes, on made-up records; time does not depend on what they say."""
    began, rows = time.perf_counter(), []
    for word, papers in EPOCH_SECONDS.items():
        cells = (_timed(word, name, papers[name], records, bench) if name in papers else "-" for name in REAL)
        rows.append((METHODS[word].name, *cells))
    return Sheet(
        "table-training-time",
        "Time of an epoch",
        "Table 8 (appendix)",
        "FedSim takes about as long as AvgSim and FeatureSim",
        (Table("seconds (the paper's, on an A100)", ("method", *REAL), tuple(rows)),),
        notes=(
            f"calculated from an epoch of {records:,} made-up records, of {LARGE_BATCH:,} for Exact and Top1Sim, with "
            "the paper's sizes and batches",
        ),
        facts=run_facts([], time.perf_counter() - began),
    )


def _timed(word: str, name: str, paper: str, records: int, bench: Bench) -> str:
    """Our seconds with the paper's in brackets."""
    seconds = _epoch_seconds(word, PAPER_DATA[name], name, LARGE_BATCH if word in ONE_AT_MOST else records)
    bench.tell(f"{METHODS[word].name} on {name}: {seconds:.1f} s per epoch")
    return f"{seconds:.1f} ({paper})"


def _epoch_seconds(word: str, data: PaperData, name: str, records: int) -> float:
    """An epoch of the paper's training records, from the fastest of two shorter ones."""
    rng = np.random.default_rng(0)
    candidates = min(data.records[1], 20_000)
    partner = rng.integers(0, candidates, (records + 64, 1 if word in ONE_AT_MOST else data.partners))
    labels = rng.integers(0, 2, records + 64) if data.classes == 2 else rng.normal(size=records + 64)
    primary = PrimaryData(
        rng.normal(size=(records + 64, data.columns[0])), labels, Goal.CLASSES if data.classes == 2 else Goal.NUMBERS
    )
    theirs = SecondaryData(rng.normal(size=(candidates, data.columns[1])), partner, rng.normal(size=partner.shape))
    split = Split(np.arange(records), np.arange(records, records + 64), np.arange(0))
    rung = replace(METHODS[word], preset=f"paper:{name}", epochs=2, batch=LARGE_BATCH if word in ONE_AT_MOST else None)
    history = train(primary, [theirs], split, config_of(rung, seed=0, device="cpu")).history
    return min(epoch.seconds for epoch in history) * 0.7 * data.records[0] / records
