"""The page of ``fedsim profile``, and the summary that the page, terminal and JSON output share.

Pages are passed on, so no figure is the value of a record: ranges end at round numbers, charts leave out bins of few
records, and texts are counted but not shown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from fedsim.cells import CellType
from fedsim.data.profile import (
    ColumnProfile,
    IdentifierPair,
    TableProfile,
    guess_identifiers,
    guess_metrics,
    share_in_range,
    share_of_equal,
)
from fedsim.errors import InputError, SettingError
from fedsim.linkage import link
from fedsim.linkage.encoding.quality import QUALITY_HEAD, QualityRow
from fedsim.linkage.metrics import combine_metrics
from fedsim.report import charts, formatting, svg
from fedsim.report.formatting import format_percent, pluralise
from fedsim.report.page import Figure, PageSection, PageTable, render_template
from fedsim.wizard import proposal
from fedsim.wizard.proposal import Guess, LinkageProposal, TableProfiles

IDENTIFIER, LABEL, FEATURE, LEFT_OUT = "identifier", "label", "feature", "left out"
COLUMN_HEAD = ("column", "kind", "will be", "missing", "distinct", "range (rounded outwards)")
MAX_DRAWN = 12  # columns of a table
MAX_QUERIES, MAX_CANDIDATES = 2_000, 30_000  # of the chart of distances
DAYS_PER_YEAR = 365.2425
NOTE = "This page contains counts and ranges that end at round numbers, but no cells of the tables"


@dataclass(frozen=True)
class ColumnSummary:
    """One column: what it holds, what ``fedsim init`` would make of it, and why it may be personal."""

    name: str
    kind: str
    role: str
    reason: str
    missing: int
    distinct: int
    range: str
    personal: str

    def cells(self, rows: int) -> tuple[str, ...]:
        """Return the cells under :data:`COLUMN_HEAD`."""
        missing = f"{self.missing:,} ({format_percent(self.missing / rows)})" if self.missing else "none"
        role = f"{self.role}: {self.reason}" if self.reason else self.role
        return self.name, self.kind, role, missing, f"{self.distinct:,}", self.range


@dataclass(frozen=True)
class ProfileSummary:
    """The columns of every table by its name, how the tables link, what could be predicted, and warnings."""

    columns: Mapping[str, tuple[ColumnSummary, ...]]
    rows: Mapping[str, int]
    linked: LinkageProposal | None
    overlap: tuple[tuple[str, ...], ...]  # under overlap_head
    overlap_head: tuple[str, ...]
    label: Guess | None
    task: Guess | None
    split: Guess | None
    warnings: tuple[str, ...]

    @property
    def personal(self) -> list[tuple[str, str, str]]:
        """Table, column and reason of everything that looks personal."""
        return [(table, one.name, one.personal) for table, own in self.columns.items() for one in own if one.personal]

    @property
    def answer(self) -> str:
        """One sentence on whether the tables can be linked and what could be learnt."""
        names = " and ".join(self.columns)
        if self.linked is None:
            text = f"No identifier of {names} was recognised"
        else:
            agreed = ", ".join(pair.agreed for pair in self.linked.pairs)
            verb = "can be linked" if len(self.columns) == 1 else "can be linked with each other"
            text = f"{names} {verb} by {agreed}"
        coverage = [row.value for row in self.quality if row.name == "coverage"]
        label = f"; the likely label is {self.label.word} ({self.task.word})" if self.label and self.task else ""
        return f"{'; '.join([text, *coverage])}{label}."

    @property
    def quality(self) -> list[QualityRow]:
        """How well a job would find the plain links, where both tables are available."""
        return self.linked.quality.rows() if self.linked and self.linked.quality else []

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain values, for JSON."""
        guesses = {"label": self.label, "task": self.task, "split": self.split}
        return {
            "tables": {
                name: {"records": self.rows[name], "columns": list(map(asdict, own))}
                for name, own in self.columns.items()
            },
            "link_by": [asdict(pair) for pair in self.linked.pairs] if self.linked else [],
            "overlap": [dict(zip(self.overlap_head, row, strict=True)) for row in self.overlap],
            "quality": {row.name: row.value for row in self.quality},
            **{name: guess.word if guess else None for name, guess in guesses.items()},
            "warnings": list(self.warnings),
        }


def summarise_profiles(
    tables: TableProfiles, pairs: Sequence[IdentifierPair] | None, label: str | None
) -> ProfileSummary:
    """Summarise one or two tables; ``pairs`` and ``label`` are guessed where they are None.

    What would stop ``fedsim init`` is a warning here: the owner wants to know all of it before linking.
    """
    warnings: list[str] = []
    linked, goal, task, split = None, None, None, None
    try:
        found = guess_identifiers(tables.primary, tables.secondary) if pairs is None else pairs
        linked = proposal.propose_linkage(tables, found, None)
        warnings += linked.notes
    except (InputError, SettingError) as error:
        warnings.append(str(error))
    taken = {role: linked.columns_of(role) if linked else {} for role, _ in tables.sides}
    primary = tables.primary
    if primary is not None:
        own = list(taken["primary"].values())
        split = proposal.guess_split(primary, own) if own else None
        goal = Guess(label, "as requested") if label else proposal.guess_label(primary, own)
        if goal:
            warnings += proposal.check_label_choice(primary, goal.word, own)
            task = proposal.guess_task(proposal.column_profile(primary, goal.word))
    columns = {table.name: tuple(_summarise_columns(table, taken[role], goal, role)) for role, table in tables.sides}
    head, overlap = _compare_identifiers(tables, linked) if linked else ((), ())
    rows = {table.name: table.rows for _, table in tables.sides}
    return ProfileSummary(columns, rows, linked, overlap, head, goal, task, split, tuple(warnings))


def _summarise_columns(
    table: TableProfile, identifiers: Mapping[str, str], label: Guess | None, role: str
) -> Iterator[ColumnSummary]:
    linking, target = list(identifiers.values()), [label.word] if label and role == "primary" else []
    also = linking if role == "primary" else []  # as in `fedsim init`
    try:
        features = proposal.propose_features(table, [*linking, *target], also, label.word if label else None)
    except InputError:  # no column is left
        features = proposal.FeatureProposal((), (), {}, frozenset())
    dropped = dict(features.dropped)
    for look in table.columns.values():
        roles = [IDENTIFIER] * (look.name in linking) + [FEATURE] * (look.name in features.kinds)
        roles = roles or [LABEL if look.name in target else LEFT_OUT]
        personal = proposal.identifying_reason(look) if look.name not in target else ""
        kind = "code" if look.code else str(look.kind)
        found = (look.gaps, look.distinct, _describe_range(look), personal)
        yield ColumnSummary(look.name, kind, ", ".join(roles), dropped.get(look.name, ""), *found)


def _describe_range(look: ColumnProfile) -> str:
    """Return between which round numbers all values are, or how long texts are; never a value."""
    if not look.distinct:
        return ""
    if look.kind == CellType.CATEGORY:
        return f"{look.length:.0f} characters on average"
    if look.kind == CellType.DATE:
        years = look.filled.dt.year()
        return f"{years.min()!s} to {years.max()!s}"
    if look.kind != CellType.NUMBER or look.code:
        return ""
    low, high = svg.nice_range(float(look.numbers.min()), float(look.numbers.max()))  # type: ignore[arg-type]
    return " to ".join(svg.tick_label(end, svg.tick_step(low, high)) for end in (low, high))


def _compare_identifiers(
    tables: TableProfiles, linked: LinkageProposal
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return how far the values of both tables overlap, and how many records share theirs with another."""
    names = [table.name for _, table in tables.sides]
    head = ("identifier", *(f"distinct in {name}" for name in names))
    head += tuple(f"values of {name}" for name in reversed(names)) if len(names) == 2 else ()
    rows = []
    for pair in linked.pairs:
        looks = [table.columns[getattr(pair, role)] for role, table in tables.sides]
        cells = [f"{look.distinct:,} of {len(look):,}" for look in looks]
        if len(looks) == 2:
            # A number within the range of the other table need not be near any of its records.
            equal = looks[0].kind == CellType.CATEGORY
            share, relation = (share_of_equal, "also in") if equal else (share_in_range, "within the range of")
            shares = share(*looks), share(*reversed(looks))
            cells += [f"{format_percent(part)} {relation} {name}" for part, name in zip(shares, names, strict=True)]
        rows.append((pair.agreed, *cells))
    if len(linked.pairs) > 1:
        frames = [
            pl.DataFrame([table.columns[c].cells for c in linked.columns_of(role).values()])
            for role, table in tables.sides
        ]
        together = (f"{frame.n_unique():,} of {len(frame):,}" for frame in frames)
        rows.append(("all together", *together, *[""] * (len(head) - 1 - len(frames))))
    return head, tuple(rows)


def profile_page(tables: TableProfiles, summary: ProfileSummary) -> str:
    """Return a self-contained HTML page."""
    warnings = tuple((f"{place}", warning) for place, warning in enumerate(summary.warnings, start=1))
    personal = PageTable(
        "What looks personal",
        ("column", "table", "why"),
        tuple((column, table, why) for table, column, why in summary.personal),
        "Recognised by column names and by the form of the cells; other personal data may be missed. These columns "
        "are not proposed as features. As identifiers they leave their party only in encoded form.",
    )
    sections = [
        PageSection(
            "check", "What to check", tables=(PageTable("Warnings", ("", "warning"), warnings),) if warnings else ()
        ),
        PageSection("columns", "Columns", tables=tuple(_column_tables(summary))),
        PageSection("personal", "Personal data", tables=(personal,) if personal.rows else ()),
        _identifier_section(tables, summary),
        PageSection("ranges", "Distributions", (), tuple(_distributions(tables, summary))),
    ]
    return render_template(
        "run_page.html",
        subject="profile before linking",
        title=" and ".join(summary.columns),
        answer=summary.answer,
        command="",
        hint="",
        lead="What `fedsim init` would propose for these tables, and what it would find. Nothing was sent.",
        tiles=list(_tiles(summary)),
        sections=sections,
        content_note=NOTE,
        shown="these tables",
    )


def _tiles(summary: ProfileSummary) -> Iterator[tuple[str, str, str]]:
    for name, rows in summary.rows.items():
        yield f"{rows:,}", f"records of {name}", pluralise(len(summary.columns[name]), "column")
    agreed = [pair.agreed for pair in summary.linked.pairs] if summary.linked else []
    yield ", ".join(agreed) or "none", "identifiers", summary.linked.metric if summary.linked else "name them with --on"
    if summary.label and summary.task:
        yield summary.label.word, "label", f"{summary.task.word}; {summary.label.reason}"
    for name, own in summary.columns.items():
        yield f"{sum(FEATURE in one.role for one in own)}", f"features of {name}", ""
    yield f"{len(summary.personal)}", "columns look personal", "see below" if summary.personal else ""


def _column_tables(summary: ProfileSummary) -> Iterator[PageTable]:
    for name, own in summary.columns.items():
        rows = tuple(one.cells(summary.rows[name]) for one in own)
        yield PageTable(f"Columns of {name}", COLUMN_HEAD, rows, "Ranges end at round numbers.")


def _identifier_section(tables: TableProfiles, summary: ProfileSummary) -> PageSection:
    linked = summary.linked
    if linked is None:
        return PageSection("identifiers", "Identifiers")
    parts = [PageTable("Overlap and density", summary.overlap_head, summary.overlap)]
    if summary.quality:
        note = "How much of the plain linkage a job would find with these columns encoded as `fedsim init` proposes."
        parts.append(PageTable("Quality of the encoded linkage", QUALITY_HEAD, tuple(summary.quality), note))
    return PageSection("identifiers", "Identifiers", (), tuple(_nearest_figure(tables, linked)), tuple(parts))


def _nearest_figure(tables: TableProfiles, linked: LinkageProposal) -> Iterator[Figure]:
    """Yield the distances to the nearest record of the other table, or of the same one, where they have one unit."""
    frames = []
    for (role, table), most in zip([*tables.sides, *tables.sides][:2], (MAX_QUERIES, MAX_CANDIDATES), strict=True):
        own = pl.DataFrame([table.columns[c].cells.alias(a) for a, c in linked.columns_of(role).items()]).drop_nulls()
        frames.append(own.sample(min(most, len(own)), seed=0) if len(tables.sides) == 2 else own.head(MAX_CANDIDATES))
    parts, alone = guess_metrics(frames[0]), len(tables.sides) == 1
    if len(parts) != 1 or min(map(len, frames)) < 2 or frames[0].schema != frames[1].schema:
        return
    (columns,), metric = parts, combine_metrics(parts)
    ours, theirs = (frame.select(columns) for frame in frames)
    links = link(ours.head(MAX_QUERIES), theirs, metric=metric, k=1 + alone)
    other = "the nearest other record" if alone else f"the nearest record of {tables.sides[1][1].name}"
    sampled = (
        f" Measured for {MAX_QUERIES:,} sampled records among {MAX_CANDIDATES:,}."
        if len(theirs) == MAX_CANDIDATES
        else ""
    )
    unit = formatting.metric_unit(links.metric)
    yield charts.histogram_figure(
        links.distance[:, -1],
        title=f"Distance to the nearest of {tables.sides[-1][1].name}",
        caption=f"Density of the records: the distance of each to {other}.{sampled}",
        axis=f"{links.metric} distance, {unit}" if unit else f"{links.metric} distance",
    )


def _distributions(tables: TableProfiles, summary: ProfileSummary) -> Iterator[Figure]:
    """Yield a histogram of every number and date that is a label or a feature."""
    for _, table in tables.sides:
        own = {one.name: one for one in summary.columns[table.name]}
        names = [name for name, one in own.items() if one.role in (LABEL, FEATURE) and one.kind in ("number", "date")]
        for name in sorted(names, key=lambda name: own[name].role != LABEL)[:MAX_DRAWN]:
            values, axis = _drawn_values(table.columns[name])
            caption = f"The {own[name].role} of {table.name}."
            yield charts.histogram_figure(values, title=name, caption=caption, axis=axis)


def _drawn_values(look: ColumnProfile) -> tuple[np.ndarray, str]:
    """Return the numbers of a column, dates as years, and the title of their axis."""
    values = look.numbers.to_numpy()
    return (1970 + values / DAYS_PER_YEAR, f"{look.name}, year") if look.kind == CellType.DATE else (values, look.name)
