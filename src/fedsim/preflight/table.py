"""Checks of a party's table: columns, number of records, cells of identifiers and label, and features."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedsim.cells import DECIMAL_COMMA, Cells, CellType, FaultKind, read_cells, strip_blanks
from fedsim.config import Job, PartyFile
from fedsim.config.party_file import PartyColumns, identifier_columns, resolve_columns
from fedsim.config.toml_file import find_setting_lines, read_text_file
from fedsim.data.column_names import missing_column_message, missing_identifier_message
from fedsim.data.profile import MAX_LATITUDE, MAX_LONGITUDE, holds_codes
from fedsim.data.splits import single_record_error
from fedsim.errors import FedSimError, InputError
from fedsim.linkage.direct.encrypted_table import listed_tokens, round_up
from fedsim.linkage.encoding import DateFilter, NumericFilter, PlacePosition, Schema, cell_type
from fedsim.pipeline.party_table import PartyData
from fedsim.preflight.estimate import CostEstimate, padded_tokens
from fedsim.preflight.finding import CheckFinding, error_finding, failure, info, ok, warning
from fedsim.protocol.messages import Role
from fedsim.protocol.transport import MAX_FRAME_BYTES
from fedsim.types import derive_seed

SettingPath = tuple[str, ...]  # such as ("label", "column")
MIN_STEPS = 200


@dataclass(frozen=True, eq=False, repr=False)
class CheckedTable:
    """A party's records; ``header`` is None if only some columns could be read."""

    frame: pl.DataFrame
    header: tuple[str, ...] | None


@dataclass(frozen=True, eq=False)
class PartyInJob:
    """A party in a job; ``table`` is None if it could not be read, ``columns`` if some are missing."""

    job: Job
    own: PartyFile
    table: CheckedTable | None
    columns: PartyColumns | None
    estimate: CostEstimate
    tokens: Mapping[str, int] = field(default_factory=dict)
    """From :func:`count_tokens`."""

    @property
    def source(self) -> str:
        """The party's table in messages."""
        return str(self.own.data.source) if self.own.data else ""

    @cached_property
    def data(self) -> PartyData | None:
        """The table as training reads it; None if it is incomplete."""
        if self.table is None or self.columns is None:
            return None
        return PartyData(self.table.frame, self.columns, self.own, self.job, self.source)

    @cached_property
    def linking(self) -> "list[_LinkingColumn]":
        """Every field and salt of this party whose column is there."""
        return _linking_columns(self.job, self.own, self.table)


def check_table(own: PartyFile, job: Job | None) -> tuple[CheckedTable | None, list[CheckFinding]]:
    """Read the party's table, or at least the columns that the job needs if other columns are invalid."""
    if own.data is None:
        return None, []
    source = own.data.source
    try:
        frame = own.data.read()
    except FedSimError as error:
        finding = error_finding("data", error)
        if isinstance(source, Path) and not source.exists():
            finding = error_finding("data", f"{_setting_location(own, ('data', 'file'))}{error}", code=error.code)
        if job is None or own.party not in job.parties:
            return None, [finding]
        needed = dict.fromkeys([*_own_identifiers(own, job), *([own.label.column] if own.label else [])])
        try:
            return CheckedTable(own.data.read(list(needed)), None), [finding]
        except FedSimError:
            return None, [finding]
    size = f"{source}: {len(frame):,} records, {frame.width:,} columns"
    return CheckedTable(frame, tuple(frame.columns)), [info("data", size)]


def check_columns(own: PartyFile, job: Job, table: CheckedTable) -> tuple[PartyColumns | None, list[CheckFinding]]:
    """Return the party's columns in this job; a missing column is reported with the nearest existing one."""
    if table.header is None or own.data is None:
        return None, []
    missing = []
    for column, setting in _columns_by_setting(own, job).items():
        if column not in table.header:
            message = missing_column_message(column, table.header)
            if setting == ("identifiers",):  # an agreed name that the party file does not map
                message = missing_identifier_message(column, table.header, own.path)
            missing.append(f"{_setting_location(own, setting)}{own.data.source}: {message}")
    if missing:
        return None, [error_finding("columns", message, code="missing-column") for message in missing]
    try:
        columns = resolve_columns(job, own, table.header)
    except FedSimError as error:
        return None, [error_finding("columns", error)]
    linking, features = len(columns.linking), len(columns.features or ())
    return columns, [ok("columns", f"{linking} for linking, {features:,} features{', label' * bool(columns.label)}")]


def check_records(case: PartyInJob) -> Iterator[CheckFinding]:
    """Check that there are enough records for k and for the split, and not too many for one message."""
    if case.table is None:
        return
    frame, largest = case.table.frame, case.estimate.largest_message
    here = len(frame)
    if case.own.role is not Role.PRIMARY:
        if here < (k := case.job.secondaries[case.own.name].k):
            result = f"k is {k:,}, but the table has {here:,} records"
            yield failure("records", result, f"lower k to {here:,} or less in the job")
    else:
        yield from _check_split(case.data) if case.data else ()
    if largest > MAX_FRAME_BYTES:
        result = f"the largest message would have {largest:,} bytes, but only {MAX_FRAME_BYTES:,} are allowed"
        yield failure("records", result, "use fewer records, shorter filters or a smaller k")
    yield ok("records", f"{here:,}")


def _check_split(data: PartyData) -> Iterator[CheckFinding]:
    """Split the records as training does; an error says why this is impossible."""
    agreed = [name for names in data.columns.identifiers.values() for name in names]
    try:
        data.draw_split(data.job.task.split, np.random.default_rng(derive_seed(data.job.seed, data.own.name, "split")))
    except InputError as error:
        # The cells of the label and of identifiers have their own checks.
        faulty = error.details.get("column")
        if error.code == "cannot-split" or faulty not in (data.columns.label, *agreed):
            yield error_finding("records", error)


def check_steps(case: PartyInJob) -> Iterator[CheckFinding]:
    """Check that there are enough training steps for networks to learn anything."""
    if case.table is None or case.own.role is not Role.PRIMARY:
        return
    steps = case.estimate.steps * case.estimate.epochs
    if steps < MIN_STEPS:
        result = f"{steps:,} step{'s' * (steps != 1)} in all; networks learn little from so few"
        yield warning("steps", result, "use more epochs or a smaller batch_size")
    else:
        yield ok("steps", f"{steps:,} in all")


def _columns_by_setting(own: PartyFile, job: Job) -> dict[str, SettingPath]:
    """Return every column that the party uses, with the setting that names it."""
    by_name = {column: (name,) for name, column in own.identifiers.items() if isinstance(column, str)}
    for name, columns in own.identifiers.items():
        by_name |= {column: (name, agreed) for agreed, column in columns.items()} if isinstance(columns, dict) else {}
    wanted = {column: ("identifiers", *by_name.get(column, ())) for column in _own_identifiers(own, job)}
    named: dict[SettingPath, tuple[str, ...]] = {
        ("label", "column"): (own.label.column,) if own.label else (),
        ("label", "split_by"): (own.label.split_by,) if own.label and own.label.split_by else (),
        ("features", "columns"): own.features.columns or (),
        ("features", "drop"): own.features.drop,
    }
    if own.data:
        named |= {("data", "formats", column): (column,) for column in own.data.formats}
    others = {column: setting for setting, columns in named.items() for column in columns if column not in wanted}
    return wanted | others


def _own_identifiers(own: PartyFile, job: Job) -> list[str]:
    linked = [name for name in job.secondaries if name == own.name or own.role is Role.PRIMARY]
    return [column for name in linked for column in identifier_columns(job, own, name).values()]


def _setting_location(own: PartyFile, setting: SettingPath) -> str:
    """Return file, line and setting as the start of a message; empty if the file does not contain the setting."""
    try:
        line = find_setting_lines(read_text_file(own.path)).get(setting)
    except FedSimError:  # the file was removed in the meantime
        return ""
    return f"{own.path}, line {line}: {'.'.join(setting)}: " if line else ""


# The cells of identifiers and label: of the type that encoding and task need, none missing, within the agreed range

MIN_SHARE_IN_RANGE = 0.95  # share of the cells that must be in a range for the column to be meant for it
MAX_CLASSES = 100


@dataclass(frozen=True, eq=False, repr=False)
class _LinkingColumn:
    """A column as the linkage with one secondary reads it."""

    secondary: str
    agreed: str
    cells: Cells
    limits: tuple[Any, Any] | None  # the smallest and the largest valid value; None where there are no limits
    allows_gaps: bool  # because the record is linked without it
    salts: Mapping[str, Cells] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.cells.values.name

    def fits(self, values: pl.Series) -> bool:
        """Return whether nearly all of these numbers are in this field's range."""
        filled, limits = values.drop_nulls(), self.limits
        if not len(filled) or limits is None or not filled.dtype.is_numeric():
            return False
        return _share(filled.is_between(*limits)) >= MIN_SHARE_IN_RANGE

    def outside_range(self) -> Iterator[CheckFinding]:
        """Report values outside the agreed range."""
        values, limits = self.cells.values, self.limits
        if limits is None:
            return
        dated = values.dtype.is_temporal()
        values = values.dt.date() if dated else values
        agreed = f"{limits[0]} to {limits[1]}" if dated else f"{limits[0]:g} to {limits[1]:g}"
        outside = (~values.is_between(*limits)).fill_null(value=False).arg_true()
        if len(outside):
            place = f"the range agreed with {self.secondary}, {agreed}, first in row {int(outside[0]) + 1:,}"
            result = f"column '{self.name}': {len(outside):,} of {len(values):,} are outside {place}"
            fix = "agree on a wider range in the job, or drop those records"
            yield failure("identifiers", result, fix, code="outside-range")


def check_identifiers(case: PartyInJob) -> Iterator[CheckFinding]:
    """Check every column that links, for every secondary it links with."""
    columns = case.linking
    swapped = [pair for pair in combinations(columns, 2) if _are_swapped(*pair)]
    findings = []
    for one, other in swapped:
        result = f"columns '{one.name}' and '{other.name}' appear to be swapped: each fits the range of the other"
        names = f'{one.agreed} = "{other.name}", {other.agreed} = "{one.name}"'
        fix = f"in {case.own.path}: [identifiers] {names}"
        findings.append(failure("identifiers", result, fix, code="columns-exchanged"))
    notes = []
    for column in columns:
        faults = list(_cell_findings("identifiers", column.cells))
        if column.allows_gaps and [fault.kind for fault in column.cells.faults] == [FaultKind.MISSING]:
            fix = "records without it are compared by their other identifiers; fill it in where you can"
            gaps = column.cells.faults[0].describe(column.name, len(column.cells.values))
            notes.append(warning("identifiers", gaps, fix, code="missing-cell"))
            faults = []
        findings += faults
        if not any(column in pair for pair in swapped):
            findings += column.outside_range()
        for salt in column.salts.values():
            findings += _cell_findings("identifiers", salt)
    yield from [*findings, *notes]
    if case.columns and columns and not findings:
        unique = dict.fromkeys(column.name for column in columns)
        missing = "" if notes else "none missing, "
        yield ok("identifiers", f"{', '.join(unique)}: {missing}all valid")


def count_tokens(job: Job, own: PartyFile, table: CheckedTable | None) -> dict[str, int]:
    """Return, by secondary, the tokens that the primary sends or the entries of the table, padding included.

    Only jobs without a coordinator have some, and invalid identifiers are left out.
    """
    counts: dict[str, int] = {}
    if table is None:
        return counts
    for name, cells in _valid_identifiers(job, _linking_columns(job, own, table)):
        schema = job.secondaries[name].tokens
        if schema is None:
            continue
        if own.role is Role.PRIMARY:
            counts[name] = padded_tokens(sum(len(np.unique(of.tokens.token)) for of in schema.query_tokens(cells)))
        else:
            fields, least = zip(schema.fields, schema.row_tokens(cells), strict=True), own.policy.least_list_rows
            listed = (listed_tokens(field_.kind, of.tokens, least) for field_, of in fields)
            counts[name] = sum(round_up(len(tokens.token)) for tokens in listed)
    return counts


def check_tokens(case: PartyInJob) -> Iterator[CheckFinding]:
    """Compare the tokens that the primary will have evaluated with the limit of the job."""
    for name, needed in case.tokens.items():
        most = case.job.secondaries[name].max_tokens
        if case.own.role is not Role.PRIMARY and not needed:
            fix = "raise cap in the job's tokens, or lower min_list_rows in [policy]"
            yield failure("tokens", "the encrypted table lists no token, so no row is found", fix, code="empty-table")
        elif case.own.role is not Role.PRIMARY:
            yield ok("tokens", f"{needed:,} entries in the encrypted table")
        elif needed > most:
            fix = f"agree on secondaries.{name}.max_tokens = {round_up(needed + needed // 4)} in the job"
            message = f"{name} evaluates up to {most:,}, but these records need {needed:,}"
            yield failure("tokens", message, fix, code="over-budget")
        else:
            yield ok("tokens", f"{needed:,} of {most:,} that {name} evaluates, unless it did so before")


def _valid_identifiers(job: Job, linking: Sequence[_LinkingColumn]) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the identifiers for every secondary, under their agreed names; columns with faults were reported."""
    by_secondary: dict[str, list[_LinkingColumn]] = {}
    for column in linking:
        by_secondary.setdefault(column.secondary, []).append(column)
    for name, columns in by_secondary.items():
        cells = {column.agreed: column.cells.values for column in columns}
        cells |= {agreed: salt.values for column in columns for agreed, salt in column.salts.items()}
        faulty = any(
            [fault for fault in column.cells.faults if not (column.allows_gaps and fault.kind is FaultKind.MISSING)]
            or list(column.outside_range())
            for column in columns
        )
        if not faulty and len(cells) >= len(job.secondaries[name].columns):
            yield name, pl.DataFrame([values.alias(agreed) for agreed, values in cells.items()])


def _linking_columns(job: Job, party_file: PartyFile, table: CheckedTable | None) -> list[_LinkingColumn]:
    columns: list[_LinkingColumn] = []
    frame = table.frame if table else pl.DataFrame()
    for name, terms in job.secondaries.items():
        if party_file.role is not Role.PRIMARY and name != party_file.name:
            continue
        own = identifier_columns(job, party_file, name)
        if terms.filters is not None:
            columns += _filter_columns(name, terms.filters, own, frame)
            continue
        for token_field in terms.token_schema.fields:
            degrees = ((-MAX_LATITUDE, MAX_LATITUDE), (-MAX_LONGITUDE, MAX_LONGITUDE))
            limits = degrees if len(token_field.columns) == len(degrees) else (None,)
            for agreed, limit in zip(token_field.columns, limits, strict=True):
                if own[agreed] in frame.columns:
                    cells = read_cells(frame[own[agreed]], CellType(token_field.kind.CELLS))
                    columns.append(_LinkingColumn(name, agreed, cells, limit, allows_gaps=True))
    return columns


def _filter_columns(name: str, schema: Schema, own: Mapping[str, str], frame: pl.DataFrame) -> Iterator[_LinkingColumn]:
    for field_, agreed in [(each, agreed) for each in schema.fields for agreed in each.columns]:
        if own[agreed] not in frame.columns:
            continue
        encoding = field_.encoding
        limits: tuple[Any, Any] | None = None
        if isinstance(encoding, PlacePosition):
            most = MAX_LONGITUDE if agreed == field_.longitude else MAX_LATITUDE
            limits = (-most, most)
        elif isinstance(encoding, NumericFilter | DateFilter):
            limits = (encoding.low, encoding.high)
        salt = own.get(field_.salt or "")
        salted = {}
        if field_.salt is not None and salt in frame.columns:
            salted = {field_.salt: read_cells(strip_blanks(frame[salt]), CellType.KEY)}
        cells = read_cells(frame[own[agreed]], CellType(cell_type(encoding)))
        yield _LinkingColumn(name, agreed, cells, limits, schema.allows_gaps, salted)


def _are_swapped(one: _LinkingColumn, other: _LinkingColumn) -> bool:
    """Return whether two columns fit their ranges only the other way round, such as latitude and longitude."""
    if one.secondary != other.secondary:
        return False
    first, second = one.cells.values, other.cells.values
    as_named = one.fits(first) and other.fits(second)
    return not as_named and one.fits(second) and other.fits(first)


def _cell_findings(check: str, cells: Cells) -> Iterator[CheckFinding]:
    for fault in cells.faults:
        yield failure(check, fault.describe(cells.values.name, len(cells.values)), fault.way_out, code=fault.kind)


def _label_cells(case: PartyInJob) -> Cells | None:
    """Read the label as the task says; None if there is no such column."""
    name = case.own.label.column if case.own.label else None
    if case.table is None or name is None or name not in case.table.frame.columns:
        return None
    classes = case.job.task.kind == "classification"
    return read_cells(case.table.frame[name], CellType.CATEGORY if classes else CellType.NUMBER)


def check_label(case: PartyInJob) -> Iterator[CheckFinding]:
    """Check that labels are numbers or classes as the task says; records may lack one."""
    cells = _label_cells(case)
    if cells is None:
        return
    name, classes = cells.values.name, case.job.task.kind == "classification"
    missing = [fault for fault in cells.faults if fault.kind is FaultKind.MISSING]
    cells = replace(cells, faults=tuple(fault for fault in cells.faults if fault.kind is not FaultKind.MISSING))
    findings = list(_cell_findings("label", cells))
    if case.job.task.label_scale == "log" and not findings and bool((cells.values <= 0).any()):
        way_out = 'set task.label_scale = "linear" in the job'
        findings.append(
            failure("label", f"column '{name}' has values of zero or less", way_out, code="label-not-positive")
        )
    lacking = sum(len(fault.rows) for fault in missing)
    if lacking == len(cells.values):
        way_out = "fill in the label of some records, or predict another column"
        yield failure("label", f"column '{name}' has no values", way_out, code="constant-label")
        return
    if all(fault.kind is not FaultKind.WRONG_TYPE for fault in cells.faults):
        words = case.own.data.missing if case.own.data else ()
        findings += _label_findings(cells.values.drop_nulls(), words, classes=classes)
        if classes and cells.values.n_unique() > 1 and (error := single_record_error(cells.values, case.source)):
            findings.append(error_finding("label", error))
    yield from findings
    if lacking:
        yield info("label", f"{lacking:,} of {len(cells.values):,} records lack one and are predicted after training")
    if not findings:
        yield ok("label", f"{name}: {case.job.task.kind}")


def _label_findings(filled: pl.Series, missing_words: tuple[str, ...], *, classes: bool) -> Iterator[CheckFinding]:
    values, where = filled.n_unique(), f"column '{filled.name}'"
    numeric = not read_cells(filled, CellType.NUMBER).faults
    if values == 1 or (classes and not values):
        what = "only one class" if classes else "only one value"
        yield failure("label", f"{where} has {what}", "predict another column", code="constant-label")
    elif values == 2 and not classes:
        fix = 'set task.kind = "classification" in the job if it is a yes/no label'
        yield warning("label", f"{where} has only two values, like a class label", fix)
    elif values > MAX_CLASSES and classes and numeric:
        fix = 'set task.kind = "regression" in the job if it is a quantity'
        yield warning("label", f"{where} has {values:,} classes, all of them numbers", fix)
    gaps = int(filled.is_in(list(missing_words)).sum()) if classes and not numeric else 0
    if gaps:
        result = f"{where}: {gaps:,} of {len(filled):,} are words listed in data.missing, a class of their own"
        yield warning("label", result, "drop those records if their class is not known")


# Features that can be prepared, and those that probably mean something else than they look like

RULE_SHARE, MIN_RECORDS_FOR_RULE = 0.9, 20  # share of the cells that make a rule; records below which no rule shows
MAX_NAMES_SHOWN = 3
ISO_DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"


def check_features(case: PartyInJob) -> Iterator[CheckFinding]:
    """Check that the features can be prepared, and warn about those that probably mean something else."""
    if case.data is None:
        return
    frame, kinds = case.data.features, case.own.features.kinds
    open_kinds = frame.select(column for column in frame.columns if column not in kinds)
    for suspect, what, fix in _SUSPECTS:
        names = [column.name for column in open_kinds.iter_columns() if suspect(column)]
        if names:
            more = f" and {len(names) - MAX_NAMES_SHOWN:,} more" if len(names) > MAX_NAMES_SHOWN else ""
            shown = f"column{'s' * (len(names) > 1)} {', '.join(names[:MAX_NAMES_SHOWN])}{more}"
            yield warning("features", f"{shown}: {what}", fix)
            open_kinds = open_kinds.drop(names)
    case.data.fit_features()
    yield ok("features", f"{frame.width:,}, all can be prepared")


def _matches(pattern: str) -> Callable[[pl.Series], bool]:
    """Return a test whether nearly all cells of a text column match a pattern."""

    def test(column: pl.Series) -> bool:
        if column.dtype != pl.String:
            return False
        filled = column.drop_nulls().str.strip_chars()
        return len(filled) > 0 and _share(filled.str.contains(pattern)) >= RULE_SHARE

    return test


def _is_almost_numbers(column: pl.Series) -> bool:
    """Return whether a column is text only because of a few cells; such words belong under ``data.missing``."""
    if column.dtype != pl.String or len(column) < MIN_RECORDS_FOR_RULE:
        return False
    numbers = read_cells(column, CellType.NUMBER).values
    return len(column) - numbers.null_count() >= RULE_SHARE * (len(column) - column.null_count())


def _holds_codes(column: pl.Series) -> bool:
    return column.dtype.is_numeric() and len(column) >= MIN_RECORDS_FOR_RULE and holds_codes(column)


def _counts_records(column: pl.Series) -> bool:
    """Return whether a column has a different word in nearly every record, or consecutive numbers."""
    if len(column) < MIN_RECORDS_FOR_RULE:
        return False
    if column.dtype == pl.String:
        return column.n_unique() > RULE_SHARE * len(column)
    if not column.dtype.is_numeric() or column.n_unique() < len(column):
        return False
    return float(column.max()) - float(column.min()) == len(column) - 1  # type: ignore[arg-type]


# In this order: a column is suspected of the first that fits.
_SUSPECTS: tuple[tuple[Callable[[pl.Series], bool], str, str], ...] = (
    (lambda column: column.null_count() == len(column), "no value at all", "drop it: [features] drop"),
    (_matches(DECIMAL_COMMA), "decimal commas, learnt as words", "write decimals with a point"),
    (_is_almost_numbers, "numbers except for some cells, learnt as words", "list such words in data.missing"),
    (_matches(ISO_DAY), "dates, learnt as words", 'declare them: [features] kinds = { ... = "date" }'),
    (_counts_records, "a different value in every record: an ID or a name?", "drop it: [features] drop"),
    (_holds_codes, "codes, learnt as numbers", 'declare them: [features] kinds = { ... = "category" }'),
)


def _share(mask: pl.Series) -> float:
    return float(mask.mean() or 0.0)  # type: ignore[arg-type]
