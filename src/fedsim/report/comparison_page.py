"""The page of a comparison: what the partner adds, with its interval, as ``fedsim compare`` and ``fedsim try`` end."""

from collections.abc import Sequence
from pathlib import Path

from fedsim.report import model_charts
from fedsim.report.formatting import format_duration, format_number, pluralise
from fedsim.report.page import PageSection, render_template, write_page
from fedsim.report.run_data import REPORT_FILE, GainEstimate, LadderResults, SideScore, read_ladder

CONTENT_NOTE = "This page contains counts, scores and intervals, but no records and no identifiers"


def write_comparison_page(  # noqa: PLR0913 - all but the first are options by name
    folder: Path,
    *,
    title: str,
    lead: str,
    page: Path | None = None,
    warnings: Sequence[str] = (),
    hint: str = "",
    command: str = "",
    sections: Sequence[PageSection] = (),
) -> Path:
    """Write the page of the ``ladder.json`` in a folder, by default beside it, and return its path.

    Parameters
    ----------
    folder
        Where ``ladder.json`` is.
    title, lead
        What was compared, and how.
    page
        The file to write.
    warnings
        What to check before the result is relied on.
    hint, command
        What to do next.
    sections
        What follows the charts of the comparison.
    """
    ladder = read_ladder(folder)
    if ladder is None:
        raise ValueError(f"no comparison in {folder}")  # pragma: no cover - callers have written one
    page = page or folder / REPORT_FILE
    seeds = f"{ladder.seeds} seeds" if ladder.seeds > 1 else "one seed"
    note = f"Every method was trained with {seeds} and evaluated on {pluralise(ladder.records, 'test record')} each."
    section = PageSection("contribution", "What the partner adds", (note,), tuple(model_charts.ladder_figures(ladder)))
    text = render_template(
        "run_page.html",
        subject="comparison",
        title=title,
        answer=ladder.headline or ladder.worth,
        command=command,
        hint=hint,
        lead=lead,
        warnings=[*ladder.caveats, *warnings],
        tiles=_tiles(ladder),
        sections=[section, *sections],
        content_note=CONTENT_NOTE,
    )
    write_page(text, page)
    return page


def _tiles(ladder: LadderResults) -> list[tuple[str, str, str]]:
    split = ladder.split or ladder.splits[0]
    gain = next(gain for gain in ladder.gains if (gain.key, gain.split) == ("contribution", split))
    sides = {side.key: side for side in ladder.sides if side.split == split}
    trained = [rung for rung in ladder.rungs if rung.split == split]
    seconds = sum(rung.seconds for rung in ladder.rungs) * ladder.seeds
    return [
        (format_number(gain.estimate), "contribution of the partner", f"95 %: {_span(gain)}"),
        *(
            (format_number(side.estimate), f"{ladder.metric} {model_charts.SIDE_NAMES[key]}", f"95 %: {_span(side)}")
            for key, side in sides.items()
        ),
        (f"{ladder.records:,}", "test records", f"{split} split"),
        (f"{len(trained)}", "methods", f"{ladder.seeds} x, {format_duration(seconds)} of training"),
    ]


def _span(scored: SideScore | GainEstimate) -> str:
    return f"{format_number(scored.low)} to {format_number(scored.high)}"
