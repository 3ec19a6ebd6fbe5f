"""What the partner is worth, and how the ladder's figures and those of the run's own model hang together."""

from __future__ import annotations

from collections.abc import Iterator

from fedsim.report.ladder import Ladder, Rung, ladder_figures
from fedsim.report.run import Run
from fedsim.report.section import Section
from fedsim.report.words import many, measure

OWN = "-identifiers"  # ends the key of a rung that learns from the primary's own identifiers as well


def worth_section(run: Run) -> Section:
    """The ladder with its words; empty where nobody compared."""
    if run.ladder is None:
        return Section("worth", "What the partner is worth")
    words = (_how(run.ladder), *_beside_this_run(run, run.ladder))
    return Section("worth", "What the partner is worth", words, tuple(ladder_figures(run.ladder)))


def _how(ladder: Ladder) -> str:
    seeds = f"{ladder.seeds} seeds" if ladder.seeds > 1 else "one seed"
    return f"Trained anew for every rung with {seeds} and judged on {many(ladder.records, 'test record')} each."


def _beside_this_run(run: Run, ladder: Ladder) -> Iterator[str]:
    """Why the figures in the headline, on the ladder and of this run's model are not the same."""
    part, metrics = run.record.judged
    rung = _own_rung(run, ladder)
    if rung is None or ladder.metric not in metrics:
        return
    yield (
        f"The model of this run is another training than any rung: its {part} {ladder.metric} is "
        f"{measure(metrics[ladder.metric])}. Hold it against the rung {rung.name}, {_scores(run, ladder, rung)}. "
        "Starting weights and the draw of the noise differ, and epochs where the comparison was given its own."
    )


def _own_rung(run: Run, ladder: Ladder) -> Rung | None:
    """The rung that trains as this run did, under the split of its job."""
    linking = {column for terms in run.job.secondaries.values() for column in terms.encoding.columns}
    key = run.record.method + (OWN if linking & set(run.record.table.features) else "")
    return next((rung for rung in ladder.rungs if (rung.key, rung.split) == (key, run.job.task.split)), None)


def _scores(run: Run, ladder: Ladder, rung: Rung) -> str:
    """The rung's figure; a ladder that knows the job's hash was judged by the run's test records first."""
    same = ladder.hash == run.record.hash
    if ladder.seeds == 1:
        return f"{measure(rung.mean)} on {'the same' if same else 'other'} test records ({rung.split} split)"
    first = f"; {measure(rung.values[0])} with the first seed, on the same test records" if same else ""
    return f"{measure(rung.mean)} over {ladder.seeds} seeds ({rung.split} split{first})"
