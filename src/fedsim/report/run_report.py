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
from fedsim.report.run_sections import (
    ReportOptions,
    cli_command,
    location_map_figures,
    probability_warnings,
    run_sections,
    visibility_table,
)
from fedsim.storage.files import atomic_write

REPORT_FILE = "report.html"
CARD_MARKDOWN_FILE, CARD_JSON_FILE = "model-card.md", "model-card.json"
CARD_FORMAT = 1
MAX_GROUPS = 5
NOT_MEASURED = "What the partner adds has not been measured yet."
COMPARE_HINT = (
    "A good test score does not show it: the primary's own identifiers may be as informative. This command trains the "
    "primary alone, with the partner, and with partners that cannot help, and reports the difference with its interval:"
)
ANONYMOUS_NOTE = "This page contains counts, averages and cells, and a few records without identifiers or row numbers"
IDENTIFIERS_NOTE = "This page contains the IDENTIFIERS of a few records, as requested by their owner: keep it private"
_SPECIAL = re.compile(r"([\\`*_\[\]{}<>|#&])")


def write_report(folder: Path, mapped: PartyFile | None = None, named: PartyFile | None = None) -> Path:
    """Write the page and the model card of a run folder.

    Parameters
    ----------
    folder
        The run folder of a primary.
    mapped
        The primary's party file, to add a map of its places.
    named
        The primary's party file, to add the identifiers of the example records.

    Returns
    -------
    Path
        The page.
    """
    run = read_run(folder)
    maps = () if mapped is None else location_map_figures(run, mapped)
    names = {} if named is None else example_identifiers(run, named)
    write_page(run_page(run, ReportOptions(maps, names)), folder / REPORT_FILE)
    with atomic_write(folder / CARD_JSON_FILE) as part:
        part.write_text(json.dumps(model_card(run), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    with atomic_write(folder / CARD_MARKDOWN_FILE) as part:
        part.write_text("\n".join(model_card_lines(run)) + "\n", encoding="utf-8")
    return folder / REPORT_FILE


def _contribution(run: FinishedRun) -> str:
    return f"{run.ladder_note} {NOT_MEASURED}".strip() if run.ladder is None else run.ladder.worth


def run_page(run: FinishedRun, options: ReportOptions) -> str:
    """Return a self-contained HTML page; the content security policy allows its one script by its hash."""
    script = files("fedsim.report").joinpath("tips.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    record = run.record
    partners = ", ".join(f"{name} ({terms.k} partner records each)" for name, terms in run.job.secondaries.items())
    lead = (
        f"{record.party} predicts {record.table.label} of {pluralise(record.table.records, 'record')} with {partners}, "
        f"linked by {run.job.coordinator.name}; trained on {record.started[:10]}."
    )
    return render_template(
        "run_page.html",
        title=f"{run.job.name}: {record.method} at {record.party}",
        answer=_contribution(run),
        command=cli_command(run, "compare") if run.ladder is None else "",
        hint=COMPARE_HINT,
        lead=lead,
        tiles=_tiles(run),
        sections=run_sections(run, options),
        content_note=IDENTIFIERS_NOTE if options.names else ANONYMOUS_NOTE,
        job=json.dumps({"job": record.job, "training": record.config}, indent=2, ensure_ascii=False),
        script=Markup(script),  # noqa: S704 - our own file, without user data
        script_policy=f"; script-src 'sha256-{digest}'",
    )


def _tiles(run: FinishedRun) -> list[tuple[str, str, str]]:
    """Return value, name and detail of every tile."""
    record, (part, metrics) = run.record, run.record.judged
    n_records = record.table.test if part == "test" else record.table.validation
    records = f"{pluralise(n_records, 'record')}, {run.job.task.split} split"
    noise = {
        f"τ {terms.tau:g}" if terms.tau is not None else "none" if terms.sigma is None else f"σ {terms.sigma:g}"
        for terms in run.job.secondaries.values()
    }
    threads = pluralise(int(record.versions.get("threads", "1")), "thread")
    return [
        *((format_number(value), f"{part} {name} of this model", records) for name, value in list(metrics.items())[:2]),
        (f"{record.best_epoch}", "best epoch", f"of {len(record.history)}, by the validation records"),
        (format_bytes(run.total_bytes), "transferred", "sent and received by the primary"),
        (format_duration(record.seconds), "total time", threads),
        (noise.pop() if len(noise) == 1 else "varies", "noise on similarities", "see Privacy"),
    ]


# The model card.


def model_card(run: FinishedRun) -> dict[str, Any]:
    """Return the facts of the model card in JSON types."""
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
        "worst_groups": [vars(group) for group in sorted(run.groups, key=lambda group: -group.error)[:MAX_GROUPS]],
        "worth": None if run.ladder is None else run.ladder.worth,
        "privacy": {name: value for name, value in summarise_settings(run.job) if name},
        "audit": None if run.audit is None else run.audit["headline"],
    }


def model_card_lines(run: FinishedRun) -> Iterator[str]:
    """Return the lines of the model card in Markdown."""
    card, record, table = model_card(run), run.record, run.record.table
    label, features = escape_markdown(table.label), escape_markdown(", ".join(table.features))
    yield "---"  # front matter for model hubs: YAML, of which JSON is a subset
    yield f"tags: {json.dumps(['fedsim', 'vertical-federated-learning', record.task])}"
    yield f"library_name: {json.dumps('fedsim')}"
    yield f"metrics: {json.dumps(list(record.metrics.get('test', {})))}"
    yield "---"
    yield f"# {escape_markdown(run.job.name)}\n"
    yield escape_markdown(_contribution(run))
    yield "\n## Model\n"
    yield f"A split network ({escape_markdown(record.method)}, {record.task}) that predicts **{label}** for records of"
    partners = escape_markdown(", ".join(run.job.secondaries))
    yield f"{escape_markdown(record.party)}, also from similar records of {partners}."
    yield "These parties must be online to predict; see `fedsim predict` and `fedsim serve`."
    yield "\n## Training data\n"
    yield f"{format_count(table.train)} training, {format_count(table.validation)} validation and "
    yield f"{format_count(table.test)} test records; features: {features}."
    yield f"Digest of the table: `{table.digest[:16]}`; random seed: {run.job.seed}."
    yield "\n## Metrics\n"
    metrics = [(part, name, format_number(v)) for part, found in record.metrics.items() for name, v in found.items()]
    yield from _markdown_table(("part", "metric", "value"), metrics)
    yield from (f"\n{escape_markdown(warning)}" for warning in (probability_warnings(run) if record.classes else ()))
    yield "\n## Groups with the largest error\n"
    groups = [
        (g["by"], g["group"], format_count(g["records"]), format_number(g["error"])) for g in card["worst_groups"]
    ]
    yield from _markdown_table(("column", "group", "test records", "error"), groups)
    yield "\n## Who received what\n"
    seen = visibility_table(run.job)
    yield from _markdown_table(("information", *seen.head[1:]), list(seen.rows))
    yield "\n## Privacy settings\n"
    yield from _markdown_table(("setting", "value"), list(card["privacy"].items()))
    missing = f"{run.audit_note or 'This job has not been audited.'} See fedsim audit."
    audit = f"Audit: {card['audit']}." if card["audit"] else missing
    yield f"\n{escape_markdown(audit)}"
    yield "\n## Limits\n"
    yield "Use the model for records like those it was trained on, linked in the same way. It was tested on one split;"
    yield "only `fedsim compare` shows what the partner adds. Noise on similarities limits one attack, not all of them."


def escape_markdown(text: str) -> str:
    r"""Escape user text for Markdown and HTML, and replace what could control a terminal.

    >>> escape_markdown("</script>|a_b\x1b[2J")
    '\\</script\\>\\|a\\_b?\\[2J'
    """
    return _SPECIAL.sub(r"\\\1", replace_unprintable(text.replace("\n", " ")))


def _markdown_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(escape_markdown(cell) for cell in row)} |" for row in rows)
