"""The model card of a run: what it is for, what it learnt from, how good it is, what it leaks; Markdown and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from fedsim.linkage.whole_file import whole_file
from fedsim.party.leaving import settings_of
from fedsim.party.run_record import GroupError
from fedsim.protocol.words import printable
from fedsim.report.run import Run
from fedsim.report.run_sections import NO_AUDIT, unknown, warned
from fedsim.report.who_saw_what import who_saw_what
from fedsim.report.words import count, measure

FORMAT = 1
MARKDOWN, JSON = "model-card.md", "model-card.json"
_SPECIAL = re.compile(r"([\\`*_\[\]{}<>|#&])")
MOST_GROUPS = 5


def write_model_card(run: Run) -> None:
    """Both files beside the run's record, each replaced whole."""
    with whole_file(run.folder / JSON) as part:
        part.write_text(json.dumps(card(run), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    with whole_file(run.folder / MARKDOWN) as part:
        part.write_text("\n".join(card_lines(run)) + "\n", encoding="utf-8")


def card(run: Run) -> dict[str, Any]:
    """The facts of the card in types that JSON has."""
    record = run.record
    return {
        "format": FORMAT,
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
        "worst_groups": [vars(group) for group in _worst(run)],
        "worth": None if run.ladder is None else run.ladder.worth,
        "privacy": dict(_agreed(run)),
        "audit": None if run.audit is None else run.audit["headline"],
    }


def card_lines(run: Run) -> Iterator[str]:
    """The card for people."""
    facts, record = card(run), run.record
    yield from _front(run)
    yield f"# {plain(run.job.name)}"
    yield ""
    yield f"{plain(unknown(run) if run.ladder is None else run.ladder.worth)}"
    yield from _part("What it is")
    yield f"A split network ({plain(record.method)}, {record.task}) that predicts **{plain(record.table.label)}**"
    yield f"of {plain(record.party)}'s records from similar records of {plain(', '.join(run.job.secondaries))} as well."
    yield "It needs these parties online to predict; see `fedsim predict` and `fedsim serve`."
    yield from _part("What it learnt from")
    yield f"{count(record.table.train)} training, {count(record.table.validation)} validation and "
    yield f"{count(record.table.test)} test records; features {plain(', '.join(record.table.features))}."
    yield f"The digest of the table is `{record.table.digest[:16]}`, the seed {run.job.seed}."
    yield from _part("How good it is")
    yield from _table(("part", "metric", "value"), _metrics(run))
    yield from (f"\n{plain(words)}" for words in (warned(run) if record.classes else ()))
    yield from _part("Where it errs most")
    groups = [(g.by, g.group, count(g.records), measure(g.error)) for g in _worst(run)]
    yield from _table(("column", "group", "test records", "error"), groups)
    yield from _part("Who saw what")
    seen = who_saw_what(run.job)
    yield from _table(("information", *seen.head[1:]), list(seen.rows))
    yield from _part("Privacy settings")
    yield from _table(("setting", "value"), list(_agreed(run)))
    yield ""
    yield plain(f"Audit: {facts['audit']}." if facts["audit"] else f"{run.audit_note or NO_AUDIT} See fedsim audit.")
    yield from _part("Limits")
    yield "Made for records like those it learnt from, linked in the same way. It was tested on one split; what the"
    yield "partner is worth needs `fedsim compare`. Noise on similarities bounds one attack, not all of them."


def plain(text: str) -> str:
    r"""Words of the user that neither Markdown nor HTML takes for marks, nor a terminal for orders.

    >>> plain("</script>|a_b\x1b[2J")
    '\\</script\\>\\|a\\_b?\\[2J'
    """
    return _SPECIAL.sub(r"\\\1", printable(text.replace("\n", " ")))


def _front(run: Run) -> Iterator[str]:
    """What model hubs read: YAML, of which JSON is a part."""
    yield "---"
    yield f"tags: {json.dumps(['fedsim', 'vertical-federated-learning', run.record.task])}"
    yield f"library_name: {json.dumps('fedsim')}"
    yield f"metrics: {json.dumps(list(run.record.metrics.get('test', {})))}"
    yield "---"


def _part(title: str) -> Iterator[str]:
    yield ""
    yield f"## {title}"
    yield ""


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(plain(cell) for cell in row)} |"


def _metrics(run: Run) -> list[tuple[str, ...]]:
    return [(part, name, measure(value)) for part, found in run.record.metrics.items() for name, value in found.items()]


def _worst(run: Run) -> list[GroupError]:
    return sorted(run.groups, key=lambda group: -group.error)[:MOST_GROUPS]


def _agreed(run: Run) -> Iterator[tuple[str, str]]:
    return ((name, value) for name, value in settings_of(run.job) if name)
