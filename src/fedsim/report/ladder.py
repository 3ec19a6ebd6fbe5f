"""Read the ladder that `fedsim compare` wrote, and draw it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fedsim.errors import FileError
from fedsim.report.charts import ChartLabels, ChartRow, dot_rows_figure
from fedsim.report.formatting import format_number
from fedsim.report.page import Figure

LADDER_FORMAT = 1
LADDER_FILE = "ladder.json"
LADDER_PATHS = (LADDER_FILE, f"compare/{LADDER_FILE}")  # where a run folder may have it
GAIN_LABELS = {
    "identifiers": "own identifiers",
    "links": "the links",
    "features": "the partner's features",
    "total": "all together",
}


@dataclass(frozen=True)
class RungResult:
    """One method under one split, over all seeds."""

    key: str
    name: str
    split: str
    values: tuple[float, ...]
    mean: float
    deviation: float
    seconds: float


@dataclass(frozen=True)
class GainEstimate:
    """What one step brings, with its 95 % interval."""

    key: str
    split: str
    estimate: float
    low: float
    high: float
    says: str


@dataclass(frozen=True)
class LadderResults:
    """All rungs and gains; the split that is named last is the most honest one."""

    format: int
    job: str
    unit: str
    metric: str
    task: str
    lower_is_better: bool
    seeds: int
    records: int
    worth: str
    rungs: tuple[RungResult, ...]
    gains: tuple[GainEstimate, ...]
    hash: str = ""  # of the job; older ladders have none, nor these:
    chosen: dict[str, list[str]] = field(default_factory=dict)  # rungs that stand for a side of the worth, by seed

    def belongs_to(self, job: str, job_hash: str) -> bool:
        """Whether it was climbed for this very job, as far as it says."""
        return self.job == job and self.hash in ("", job_hash)

    @property
    def splits(self) -> list[str]:
        """Every split once, in their order."""
        return list(dict.fromkeys(rung.split for rung in self.rungs))


_LADDER_ADAPTER = TypeAdapter(LadderResults)


def read_ladder(folder: Path) -> LadderResults | None:
    """The ladder of a run folder; none where nobody compared."""
    path = next((folder / place for place in LADDER_PATHS if (folder / place).is_file()), None)
    if path is None:
        return None
    try:
        found = _LADDER_ADAPTER.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise FileError(f"{path} is no ladder ({type(error).__name__}); write it again with `fedsim compare`") from None
    if found.format != LADDER_FORMAT or not found.rungs:
        raise FileError(f"{path} has format {found.format}, not {LADDER_FORMAT}; write it again with `fedsim compare`")
    return found


def ladder_figures(ladder: LadderResults) -> list[Figure]:
    """The gain in parts and all rungs, the most honest split first."""
    splits = list(reversed(ladder.splits))
    return [_gains_figure(ladder, split) for split in splits] + [_rungs_figure(ladder, split) for split in splits]


def _gains_figure(ladder: LadderResults, split: str) -> Figure:
    gains = [gain for gain in ladder.gains if gain.split == split]
    rows = [
        ChartRow(
            GAIN_LABELS.get(gain.key, gain.key),
            gain.estimate,
            f"{format_number(gain.estimate)} ({format_number(gain.low)} to {format_number(gain.high)})",
            (gain.low, gain.high),
            strong=gain.key == "features",
        )
        for gain in gains
    ]
    axis = f"gain in {ladder.metric}{_unit_suffix(ladder)}; right of zero is better"
    caption = "Each step over the one before it, with its 95 % interval. Where that covers zero, no gain was shown."
    labels = ChartLabels(f"Where the gain comes from, {split} split", caption, axis, ("step", "gain (95 % interval)"))
    return replace(
        dot_rows_figure(rows, labels, reaching=(0.0,)),
        notes=(*(gain.says for gain in gains), *_chosen_rungs_note(ladder, split)),
    )


def _chosen_rungs_note(ladder: LadderResults, split: str) -> Iterator[str]:
    """Between which rungs the headline counts; the validation records choose them for every seed."""
    scores = {rung.key: f"{rung.name} ({format_number(rung.mean)})" for rung in ladder.rungs if rung.split == split}
    alone, together = (
        " or ".join(dict.fromkeys(scores[key] for key in ladder.chosen.get(side, ()))) for side in ("alone", "together")
    )
    if split == ladder.splits[-1] and alone and together:
        yield (
            f"The headline counts from the best alone, {alone}, to the best with the partner, {together}: both are "
            "chosen by the validation records, so another rung may do better on the test records."
        )


def _rungs_figure(ladder: LadderResults, split: str) -> Figure:
    rows = [
        ChartRow(
            rung.name,
            rung.mean,
            f"{format_number(rung.mean)} ± {format_number(rung.deviation)}"
            if ladder.seeds > 1
            else format_number(rung.mean),
            points=rung.values if ladder.seeds > 1 else (),
            strong=rung.key.startswith("fedsim"),
        )
        for rung in ladder.rungs
        if rung.split == split
    ]
    better = "left" if ladder.lower_is_better else "right"
    seeds = f"mean and deviation of {ladder.seeds} seeds" if ladder.seeds > 1 else "one seed"
    caption = (
        f"Test {ladder.metric}{_unit_suffix(ladder)}, {seeds}; {better} is better. A placebo partner has its features "
        "shuffled, shuffled links point to the partners of other records."
    )
    labels = ChartLabels(
        f"The ladder, {split} split", caption, f"{ladder.metric}{_unit_suffix(ladder)}", ("rung", ladder.metric)
    )
    return dot_rows_figure(rows, labels)


def _unit_suffix(ladder: LadderResults) -> str:
    return f" ({ladder.unit})" if ladder.unit and ladder.metric == "rmse" else ""
