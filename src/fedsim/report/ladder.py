"""Read the results of `fedsim compare` (the ladder of methods), and draw them."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fedsim.errors import FileError
from fedsim.report.charts import ChartLabels, ChartRow, rows_figure
from fedsim.report.formatting import format_number
from fedsim.report.page import Figure

LADDER_FORMAT = 1
LADDER_FILE = "ladder.json"
LADDER_PATHS = (LADDER_FILE, f"compare/{LADDER_FILE}")  # in a run folder
GAIN_LABELS = {
    "identifiers": "own identifiers",
    "links": "links",
    "features": "partner's features",
    "total": "all together",
}


@dataclass(frozen=True)
class RungResult:
    """The scores of one method under one split, over all seeds."""

    key: str
    name: str
    split: str
    values: tuple[float, ...]
    mean: float
    deviation: float
    seconds: float


@dataclass(frozen=True)
class GainEstimate:
    """The gain of one step with its 95 % interval."""

    key: str
    split: str
    estimate: float
    low: float
    high: float
    says: str


@dataclass(frozen=True)
class LadderResults:
    """All rungs and gains; the last split is the strictest one."""

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
    hash: str = ""  # of the job; older files have neither this nor the next field
    chosen: dict[str, list[str]] = field(default_factory=dict)  # rungs that the contribution compares, one per seed

    def belongs_to(self, job: str, job_hash: str) -> bool:
        """Return whether these are the results of this job, as far as the file says."""
        return self.job == job and self.hash in ("", job_hash)

    @property
    def splits(self) -> list[str]:
        return list(dict.fromkeys(rung.split for rung in self.rungs))

    @property
    def metric_text(self) -> str:
        return f"{self.metric} ({self.unit})" if self.unit and self.metric == "rmse" else self.metric


_LADDER_ADAPTER = TypeAdapter(LadderResults)


def read_ladder(folder: Path) -> LadderResults | None:
    """Read the ladder of a run folder; None where there is none."""
    path = next((folder / name for name in LADDER_PATHS if (folder / name).is_file()), None)
    if path is None:
        return None
    try:
        ladder = _LADDER_ADAPTER.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        message = f"{path} cannot be read ({type(error).__name__}); run `fedsim compare` again"
        raise FileError(message, code="ladder-unreadable") from None
    if ladder.format != LADDER_FORMAT or not ladder.rungs:
        message = f"{path} has format {ladder.format}, not {LADDER_FORMAT}; run `fedsim compare` again"
        raise FileError(message, code="ladder-unreadable")
    return ladder


def ladder_figures(ladder: LadderResults) -> list[Figure]:
    """Draw the gains and the rungs of every split, the strictest first."""
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
    caption = "The gain of each step over the one before it, with its 95 % interval. An interval that includes zero "
    caption += "means that no gain was shown."
    axis = f"gain in {ladder.metric_text}; right of zero is better"
    labels = ChartLabels(f"Gain by step, {split} split", caption, axis, ("step", "gain (95 % interval)"))
    notes = [gain.says for gain in gains]
    scores = {rung.key: f"{rung.name} ({format_number(rung.mean)})" for rung in ladder.rungs if rung.split == split}
    alone, together = (
        " or ".join(dict.fromkeys(scores[key] for key in ladder.chosen.get(side, ()))) for side in ("alone", "together")
    )
    if split == ladder.splits[-1] and alone and together:
        notes.append(
            f"The headline compares the best method without the partner, {alone}, with the best one with the partner, "
            f"{together}. Both are chosen on the validation records, so another method may be better on the test "
            "records."
        )
    return replace(rows_figure(rows, labels, include=(0.0,)), notes=tuple(notes))


def _rungs_figure(ladder: LadderResults, split: str) -> Figure:
    several = ladder.seeds > 1
    rows = [
        ChartRow(
            rung.name,
            rung.mean,
            f"{format_number(rung.mean)} ± {format_number(rung.deviation)}" if several else "",
            points=rung.values if several else (),
            strong=rung.key.startswith("fedsim"),
        )
        for rung in ladder.rungs
        if rung.split == split
    ]
    better = "lower" if ladder.lower_is_better else "higher"
    seeds = f"mean and standard deviation over {ladder.seeds} seeds" if several else "one seed"
    caption = (
        f"Test {ladder.metric_text}, {seeds}; {better} is better. A placebo partner has its feature rows shuffled; "
        "shuffled links point to the partner records of other records."
    )
    head = ("method", ladder.metric)
    return rows_figure(rows, ChartLabels(f"All methods, {split} split", caption, ladder.metric_text, head))
