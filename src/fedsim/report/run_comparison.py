"""Two runs side by side: scores with intervals, settings that differ, and cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.contribution.ladder import (
    ACCURACY,
    CONFIDENCE_PERCENT,
    RMSE,
    BootstrapScores,
    Interval,
    SeedPredictions,
    bootstrap_scores,
)
from fedsim.errors import SettingError
from fedsim.report.formatting import format_bytes, format_duration, format_number, pluralise
from fedsim.report.run_data import FinishedRun, differing_settings, flatten_settings, read_run, summarise_run
from fedsim.runs.record import PREDICTED_COLUMN, ROW_COLUMN, TRUTH_COLUMN, RunRecord

NAMES = ("A", "B")
MAX_VALUE_LENGTH = 80
BOOTSTRAP_SEED = 0


@dataclass(frozen=True, eq=False)
class RunComparison:
    """Two finished runs of the same label; ``gain`` is how much better B is, None where test records differ."""

    runs: tuple[FinishedRun, FinishedRun]
    metric: str
    lower_is_better: bool
    scores: dict[str, Interval]
    gain: Interval | None
    settings: dict[str, tuple[str, str]]

    @property
    def verdict(self) -> str:
        """Whether one of the runs is shown to be better."""
        a, b = (f"{format_number(self.scores[name].estimate)} ({name})" for name in NAMES)
        scores = f"test {self.metric} {a} and {b}"
        if self.gain is None:
            return f"The runs were tested on different records, so the difference between them is not known: {scores}."
        gain, better = self.gain, "B"
        if gain.estimate < 0.0:
            gain, better = Interval(-gain.estimate, -gain.high, -gain.low), "A"
        low, high = (format_number(end) for end in (gain.low, gain.high))
        size = f"better by {format_number(gain.estimate)} ({CONFIDENCE_PERCENT:g} % interval {low} to {high})"
        records = f"on the same {pluralise(len(self.runs[0].test), 'test record')}"
        if gain.covers_zero:
            return f"No clear difference: {scores} {records}; {better} is {size}."
        return f"Run {better} is {size}: {scores} {records}."

    @property
    def cost(self) -> list[tuple[str, str, str]]:
        """Time, bytes and epochs of both runs, and the time of each phase."""
        records = [run.record for run in self.runs]
        named: dict[str, list[str]] = {
            "total time": [format_duration(record.seconds) for record in records],
            "sent and received": [format_bytes(run.total_bytes) for run in self.runs],
            "epochs": [f"{len(record.history)}, best {record.best_epoch}" for record in records],
        }
        phases = [{phase.name: format_duration(phase.seconds) for phase in record.phases} for record in records]
        for phase in dict.fromkeys(name for run in phases for name in run):
            named[f"time of {phase}"] = [run.get(phase, "") for run in phases]
        return [(name, a, b) for name, (a, b) in named.items()]

    def as_dict(self) -> dict[str, Any]:
        """Return the facts for programs."""
        both = zip(NAMES, self.runs, strict=True)
        return {
            "verdict": self.verdict,
            "metric": self.metric,
            "runs": {
                name: {
                    "folder": str(run.folder),
                    "hash": run.record.hash,
                    "score": vars(self.scores[name]),
                    "metrics": run.record.metrics,
                    "seconds": run.record.seconds,
                    "bytes": run.total_bytes,
                    "epochs": len(run.record.history),
                    "best_epoch": run.record.best_epoch,
                }
                for name, run in both
            },
            "gain": None if self.gain is None else vars(self.gain),
            "differing": self.settings,
        }


def compare_runs(first: Path, second: Path) -> RunComparison:
    """Compare the finished runs in two run folders of a primary.

    Intervals resample test records, which shows how much the score depends on them; another random seed would change
    it, too. Where both runs have the same test records these are resampled together.
    """
    runs = read_run(first), read_run(second)
    a, b = (run.record for run in runs)
    if (a.task, a.table.label) != (b.task, b.table.label):
        labels = f"'{a.table.label}' ({a.task}) and '{b.table.label}' ({b.task})"
        message = f"the runs predict different labels, {labels}; compare runs of the same label"
        raise SettingError(message, code="different-labels")
    for run in runs:
        if not len(run.test):
            message = f"{run.folder} has no test records to compare; train with a split that has some"
            raise SettingError(message, code="no-test-records")
    same = a.table.digest == b.table.digest and runs[0].test[ROW_COLUMN].equals(runs[1].test[ROW_COLUMN])
    groups = [dict(zip(NAMES, runs, strict=True))] if same else [{n: run} for n, run in zip(NAMES, runs, strict=True)]
    found = [_bootstrap(group, classes=bool(a.classes)) for group in groups]
    measure = ACCURACY if a.classes else RMSE
    gain = found[0].gain(*NAMES, lower_is_better=measure.lower_is_better) if same else None
    scores = {name: _interval(scores, name) for scores in found for name in scores.scores}
    return RunComparison(runs, measure.name, measure.lower_is_better, scores, gain, _differences(first, second, a, b))


def _bootstrap(runs: Mapping[str, FinishedRun], *, classes: bool) -> BootstrapScores:
    test = next(iter(runs.values())).test
    if not classes:
        found = {name: run.test[PREDICTED_COLUMN].to_numpy() for name, run in runs.items()}
        seed = SeedPredictions(test[TRUTH_COLUMN].to_numpy(), np.arange(len(test)), found)
        return bootstrap_scores([seed], RMSE, np.random.default_rng(BOOTSTRAP_SEED))
    columns = [test[TRUTH_COLUMN], *(run.test[PREDICTED_COLUMN] for run in runs.values())]
    names = sorted({str(name) for column in columns for name in column.unique()})
    labels, *predicted = ([names.index(str(name)) for name in column] for column in columns)
    one_hot = {name: np.eye(len(names))[places] for name, places in zip(runs, predicted, strict=True)}
    seed = SeedPredictions(np.array(labels), np.arange(len(test)), one_hot)
    return bootstrap_scores([seed], ACCURACY, np.random.default_rng(BOOTSTRAP_SEED))


def _interval(scores: BootstrapScores, name: str) -> Interval:
    ends = (50 - CONFIDENCE_PERCENT / 2, 50 + CONFIDENCE_PERCENT / 2)
    low, high = np.percentile(scores.resamples[name], ends)
    return Interval(scores.scores[name], float(low), float(high))


def _differences(first: Path, second: Path, a: RunRecord, b: RunRecord) -> dict[str, tuple[str, str]]:
    """Return the settings, versions and machines that differ, as short texts."""
    places = zip((first, second), (a, b), strict=True)
    found = [
        {
            **summarise_run(place, place.name).settings,
            "table": record.table.digest[:12],
            **dict(flatten_settings({"version": record.versions, "machine": record.machine})),
        }
        for place, record in places
    ]
    texts = {key: tuple(map(_short, values)) for key, values in differing_settings(found).items()}
    return {key: (one, other) for key, (one, other) in texts.items()}


def _short(value: object) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 1]}…"
