"""One page about one run: the answer first, then everything that led to it."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from fedsim.party.party_file import PartyFile
from fedsim.report.model_card import write_model_card
from fedsim.report.own_frame import example_names
from fedsim.report.own_map import map_figures
from fedsim.report.page import rendered, write_page
from fedsim.report.run import Run, read_run
from fedsim.report.run_links import Wishes
from fedsim.report.run_sections import HOW, command, job_text, sections, unknown
from fedsim.report.words import duration, many, measure, size

PAGE = "report.html"
UNNAMED = "This page holds counts, averages and cells, a few records without name or row"
NAMED = "This page holds IDENTIFIERS of a few records, which its owner asked for: keep it to yourself"


def write_report(folder: Path, mapped: PartyFile | None = None, named: PartyFile | None = None) -> Path:
    """Write the page and the model card of a run folder anew; returns where the page is.

    With the primary's own file as ``mapped`` the page also holds a map of its places, in cells; with the same as
    ``named`` the identifiers of the few records that it shows as examples.
    """
    run = read_run(folder)
    maps = () if mapped is None else map_figures(run, mapped)
    names = {} if named is None else example_names(run, named)
    write_page(run_page(run, Wishes(maps, names)), folder / PAGE)
    write_model_card(run)
    return folder / PAGE


def run_page(run: Run, wishes: Wishes) -> str:
    """One HTML text that needs nothing else. Its only script is known by its hash, and no other may run."""
    script = files("fedsim.report").joinpath("tips.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return rendered(
        "run_page.html",
        title=f"{run.job.name}: {run.record.method} at {run.record.party}",
        answer=unknown(run) if run.ladder is None else run.ladder.worth,
        command=command(run, "compare") if run.ladder is None else "",
        how=HOW,
        lead=_lead(run),
        tiles=_tiles(run),
        sections=sections(run, wishes),
        holds=NAMED if wishes.names else UNNAMED,
        job=job_text(run),
        script=Markup(script),  # noqa: S704 - our own file, without a word of the user's
        script_policy=f"; script-src 'sha256-{digest}'",
    )


def _lead(run: Run) -> str:
    partners = ", ".join(f"{name} ({terms.k} partners each)" for name, terms in run.job.secondaries.items())
    return (
        f"{run.record.party} learns {run.record.table.label} from {many(run.record.table.records, 'record')} with "
        f"{partners}; {run.job.coordinator.name} linked. Trained on {run.record.started[:10]}."
    )


def _tiles(run: Run) -> list[tuple[str, str, str]]:
    """Figure, what it is, and a word more."""
    record, (part, metrics) = run.record, run.record.judged
    n_records = record.table.test if part == "test" else record.table.validation
    records = f"{many(n_records, 'record')}, {run.job.task.split} split"
    return [
        *((measure(value), f"{part} {name} of this model", records) for name, value in list(metrics.items())[:2]),
        (f"{record.best_epoch}", "best epoch", f"of {len(record.history)}, by the validation records"),
        (size(run.total_bytes), "over the border", "both ways, at the primary"),
        (duration(record.seconds), "from start to record", many(int(record.versions.get("threads", "1")), "thread")),
        (_noise(run), "noise on similarities", "see privacy"),
    ]


def _noise(run: Run) -> str:
    terms, *others = run.job.secondaries.values()
    if any((other.tau, other.sigma) != (terms.tau, terms.sigma) for other in others):
        return "varies"
    if terms.tau is not None:
        return f"τ {terms.tau:g}"
    return "none" if terms.sigma is None else f"σ {terms.sigma:g}"
