"""The report of a run: one self-contained HTML page, and a model card in Markdown and JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fedsim.config.disclosure import summarise_settings
from fedsim.config.party_file import PartyFile
from fedsim.protocol.messages import replace_unprintable
from fedsim.report.formatting import format_bytes, format_count, format_duration, format_number, pluralise
from fedsim.report.page import render_template, write_page
from fedsim.report.run_data import FinishedRun, example_identifiers, read_run
from fedsim.report.run_links import ReportOptions, location_map_figures
from fedsim.report.run_sections import (
    COMPARE_HINT,
    NO_AUDIT,
    cli_command,
    contribution_unknown,
    job_text,
    probability_warnings,
    run_sections,
    visibility_table,
)
from fedsim.runs.record import GroupError
from fedsim.storage.files import atomic_write

# The model card of a run: what it is for, what it learnt from, how good it is, what it leaks; Markdown and JSON


CARD_FORMAT = 1
CARD_MARKDOWN_FILE, CARD_JSON_FILE = "model-card.md", "model-card.json"
_SPECIAL = re.compile(r"([\\`*_\[\]{}<>|#&])")
MAX_GROUPS = 5


def write_model_card(run: FinishedRun) -> None:
    """Both files beside the run's record, each replaced whole."""
    with atomic_write(run.folder / CARD_JSON_FILE) as part:
        part.write_text(json.dumps(model_card(run), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    with atomic_write(run.folder / CARD_MARKDOWN_FILE) as part:
        part.write_text("\n".join(model_card_lines(run)) + "\n", encoding="utf-8")


def model_card(run: FinishedRun) -> dict[str, Any]:
    """The facts of the card in types that JSON has."""
    record = run.record
    return {
        "format": CARD_FORMAT,
        "model": {
            "job": run.job.name,
            "hash": record.hash,
            "method": record.method,
            "task": record.task,
            "trained": record.started,
            "software": record.versions,
        },
        "parties": {
            str(party.role): [p.name for p in run.job.parties if p.role is party.role] for party in run.job.parties
        },
        "data": {
            "label": record.table.label,
            "features": record.table.features,
            "records": {part: getattr(record.table, part) for part in ("train", "validation", "test")},
            "digest": record.table.digest,
        },
        "metrics": record.metrics,
        "worst_groups": [vars(group) for group in _worst_groups(run)],
        "worth": None if run.ladder is None else run.ladder.worth,
        "privacy": dict(_privacy_settings(run)),
        "audit": None if run.audit is None else run.audit["headline"],
    }


def model_card_lines(run: FinishedRun) -> Iterator[str]:
    """The card for people."""
    facts, record = model_card(run), run.record
    yield from _front_matter(run)
    yield f"# {escape_markdown(run.job.name)}"
    yield ""
    yield f"{escape_markdown(contribution_unknown(run) if run.ladder is None else run.ladder.worth)}"
    yield from _heading("What it is")
    yield f"A split network ({escape_markdown(record.method)}, {record.task}) that predicts **{escape_markdown(record.table.label)}**"
    yield f"of {escape_markdown(record.party)}'s records from similar records of {escape_markdown(', '.join(run.job.secondaries))} as well."
    yield "It needs these parties online to predict; see `fedsim predict` and `fedsim serve`."
    yield from _heading("What it learnt from")
    yield f"{format_count(record.table.train)} training, {format_count(record.table.validation)} validation and "
    yield f"{format_count(record.table.test)} test records; features {escape_markdown(', '.join(record.table.features))}."
    yield f"The digest of the table is `{record.table.digest[:16]}`, the seed {run.job.seed}."
    yield from _heading("How good it is")
    yield from _markdown_table(("part", "metric", "value"), _metric_rows(run))
    yield from (f"\n{escape_markdown(words)}" for words in (probability_warnings(run) if record.classes else ()))
    yield from _heading("Where it errs most")
    groups = [(g.by, g.group, format_count(g.records), format_number(g.error)) for g in _worst_groups(run)]
    yield from _markdown_table(("column", "group", "test records", "error"), groups)
    yield from _heading("Who saw what")
    seen = visibility_table(run.job)
    yield from _markdown_table(("information", *seen.head[1:]), list(seen.rows))
    yield from _heading("Privacy settings")
    yield from _markdown_table(("setting", "value"), list(_privacy_settings(run)))
    yield ""
    yield escape_markdown(
        f"Audit: {facts['audit']}." if facts["audit"] else f"{run.audit_note or NO_AUDIT} See fedsim audit."
    )
    yield from _heading("Limits")
    yield "Made for records like those it learnt from, linked in the same way. It was tested on one split; what the"
    yield "partner is worth needs `fedsim compare`. Noise on similarities bounds one attack, not all of them."


def escape_markdown(text: str) -> str:
    r"""Words of the user that neither Markdown nor HTML takes for marks, nor a terminal for orders.

    >>> escape_markdown("</script>|a_b\x1b[2J")
    '\\</script\\>\\|a\\_b?\\[2J'
    """
    return _SPECIAL.sub(r"\\\1", replace_unprintable(text.replace("\n", " ")))


def _front_matter(run: FinishedRun) -> Iterator[str]:
    """What model hubs read: YAML, of which JSON is a part."""
    yield "---"
    yield f"tags: {json.dumps(['fedsim', 'vertical-federated-learning', run.record.task])}"
    yield f"library_name: {json.dumps('fedsim')}"
    yield f"metrics: {json.dumps(list(run.record.metrics.get('test', {})))}"
    yield "---"


def _heading(title: str) -> Iterator[str]:
    yield ""
    yield f"## {title}"
    yield ""


def _markdown_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(escape_markdown(cell) for cell in row)} |"


def _metric_rows(run: FinishedRun) -> list[tuple[str, ...]]:
    return [
        (part, name, format_number(value))
        for part, found in run.record.metrics.items()
        for name, value in found.items()
    ]


def _worst_groups(run: FinishedRun) -> list[GroupError]:
    return sorted(run.groups, key=lambda group: -group.error)[:MAX_GROUPS]


def _privacy_settings(run: FinishedRun) -> Iterator[tuple[str, str]]:
    return ((name, value) for name, value in summarise_settings(run.job) if name)


# One page about one run: the answer first, then everything that led to it


REPORT_FILE = "report.html"
ANONYMOUS_NOTE = "This page holds counts, averages and cells, a few records without name or row"
IDENTIFIERS_NOTE = "This page holds IDENTIFIERS of a few records, which its owner asked for: keep it to yourself"


def write_report(folder: Path, mapped: PartyFile | None = None, named: PartyFile | None = None) -> Path:
    """Write the page and the model card of a run folder anew; returns where the page is.

    With the primary's own file as ``mapped`` the page also holds a map of its places, in cells; with the same as
    ``named`` the identifiers of the few records that it shows as examples.
    """
    run = read_run(folder)
    maps = () if mapped is None else location_map_figures(run, mapped)
    names = {} if named is None else example_identifiers(run, named)
    write_page(run_page(run, ReportOptions(maps, names)), folder / REPORT_FILE)
    write_model_card(run)
    return folder / REPORT_FILE


def run_page(run: FinishedRun, wishes: ReportOptions) -> str:
    """One HTML text that needs nothing else. Its only script is known by its hash, and no other may run."""
    script = files("fedsim.report").joinpath("tips.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return render_template(
        "run_page.html",
        title=f"{run.job.name}: {run.record.method} at {run.record.party}",
        answer=contribution_unknown(run) if run.ladder is None else run.ladder.worth,
        command=cli_command(run, "compare") if run.ladder is None else "",
        how=COMPARE_HINT,
        lead=_lead(run),
        tiles=_tiles(run),
        sections=run_sections(run, wishes),
        holds=IDENTIFIERS_NOTE if wishes.names else ANONYMOUS_NOTE,
        job=job_text(run),
        script=Markup(script),  # noqa: S704 - our own file, without a word of the user's
        script_policy=f"; script-src 'sha256-{digest}'",
    )


def _lead(run: FinishedRun) -> str:
    partners = ", ".join(f"{name} ({terms.k} partners each)" for name, terms in run.job.secondaries.items())
    return (
        f"{run.record.party} learns {run.record.table.label} from {pluralise(run.record.table.records, 'record')} with "
        f"{partners}; {run.job.coordinator.name} linked. Trained on {run.record.started[:10]}."
    )


def _tiles(run: FinishedRun) -> list[tuple[str, str, str]]:
    """Figure, what it is, and a word more."""
    record, (part, metrics) = run.record, run.record.judged
    n_records = record.table.test if part == "test" else record.table.validation
    records = f"{pluralise(n_records, 'record')}, {run.job.task.split} split"
    return [
        *((format_number(value), f"{part} {name} of this model", records) for name, value in list(metrics.items())[:2]),
        (f"{record.best_epoch}", "best epoch", f"of {len(record.history)}, by the validation records"),
        (format_bytes(run.total_bytes), "over the border", "both ways, at the primary"),
        (
            format_duration(record.seconds),
            "from start to record",
            pluralise(int(record.versions.get("threads", "1")), "thread"),
        ),
        (_noise_text(run), "noise on similarities", "see privacy"),
    ]


def _noise_text(run: FinishedRun) -> str:
    terms, *others = run.job.secondaries.values()
    if any((other.tau, other.sigma) != (terms.tau, terms.sigma) for other in others):
        return "varies"
    if terms.tau is not None:
        return f"τ {terms.tau:g}"
    return "none" if terms.sigma is None else f"σ {terms.sigma:g}"
