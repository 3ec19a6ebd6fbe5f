"""Profile the tables, propose links and a learning task, and write job and party files (``fedsim init``)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedsim.cli.options import parse_names
from fedsim.cli.output import wrap_text
from fedsim.config import read_job
from fedsim.config.settings_schema import SCHEMA_FILES, read_schema_text
from fedsim.config.toml_file import shorten, unfilled_lines
from fedsim.data.column_names import have_same_name, is_latitude_column, is_longitude_column
from fedsim.data.profile import (
    FormatGuess,
    IdentifierPair,
    TableProfile,
    grouped_columns,
    guess_formats,
    guess_identifiers,
    profile_table,
)
from fedsim.data.splits import single_record_error
from fedsim.data.sql import TableSource, parse_source
from fedsim.data.table_reader import apply_formats, detect_separator, read_table
from fedsim.errors import FedSimError, FileError, InputError, SettingError, nearest_word
from fedsim.linkage.direct.encrypted_table import round_up as round_tokens
from fedsim.linkage.direct.groups import AVERAGES, group_sizes
from fedsim.linkage.encoding import Key
from fedsim.preflight.estimate import TRAIN_SHARE
from fedsim.protocol.messages import Party, Role
from fedsim.registry import SERVICES, SHARES
from fedsim.report.formatting import format_percent, pluralise
from fedsim.storage.files import atomic_write
from fedsim.types import DATE_FORMATS, CellFormat, TrainingLength, training_length
from fedsim.wizard import proposal
from fedsim.wizard.file_templates import (
    CERTIFICATE_FOLDER,
    KEY_FILE,
    SetupPlan,
    TablePlan,
    linking_columns,
    propose_party_names,
    render_coordinator,
    render_job,
    render_party,
)
from fedsim.wizard.proposal import FeatureProposal, Guess, LinkageProposal, TableProfiles

if TYPE_CHECKING:
    import polars as pl

JOB_FILE, SCHEMA_FOLDER = "job.toml", "schemas"
MAX_LISTED, MAX_LINE_LENGTH = 8, 10_000
COORDINATE_TESTS = (is_latitude_column, is_longitude_column)
TASK_NAMES = ("regression", "classification")
USER_CHOICE, NO_TABLE = "as requested", "none"
SHARE_QUESTION = (
    "What may leave the partner's table? rows: a vector for each record, the mean of 5 that are alike; averages: only "
    "the mean of at least 10 records of a cell; split: activations of every record, by a third party, as in the paper"
)
MAX_PREVIEWED, MAX_NAME_WIDTH, MAX_PREVIEW_WIDTH = 30, 24, 78
Answer = TypeVar("Answer")
FORMAT_OPTIONS = {
    "--decimal": {"point": CellFormat.DECIMAL_POINT, "comma": CellFormat.DECIMAL_COMMA},
    "--date-format": {str(order): order for order in DATE_FORMATS},
}


@dataclass(frozen=True)
class InitRequest:
    """The user's options; ``None`` and empty lists are proposed and confirmed by ``prompt(question, proposal)``.

    ``tables`` and ``separators`` are by the key of the party: ``primary``, ``secondary``, ``secondary-2`` and so on.
    ``explain`` prints to a person at a terminal, who sees the columns and is asked again after a mistake. Without it a
    mistake is an error. ``dry_run`` writes nothing. With ``clear_label`` a label is not guessed among several.
    """

    tables: Mapping[str, str | None]
    prompt: Callable[[str, str], str]
    explain: Callable[[str], None] | None = None
    on: Sequence[str] = ()
    on_secondary: Sequence[str] = ()
    label: str | None = None
    task: str | None = None
    k: int | None = None
    sigma: float | None = None
    epochs: int | None = None
    decimal: CellFormat | None = None
    date_format: CellFormat | None = None
    separators: Mapping[str, str | None] = field(default_factory=lambda: dict.fromkeys(("primary", "secondary")))
    dry_run: bool = False
    share: str | None = None
    clear_label: bool = False

    @property
    def coordinator(self) -> bool:
        """Whether a coordinator links, which this level of sharing needs."""
        return self.share is not None and not SHARES.detail(self.share, "direct")

    def ask(self, question: str, guess: Guess, use: Callable[[Guess], Answer], hint: str = "") -> Answer:
        """Return what ``use`` makes of the guess or of the user's answer instead; ask again if that is an error."""
        while True:
            answer = self.prompt(question, guess.word)
            try:
                return use(guess if answer == guess.word else Guess(answer, USER_CHOICE))
            except FedSimError as error:
                if self.explain is None:
                    raise
                self.explain("\n".join(filter(None, (f"{error}", hint))))

    def swapped(self) -> InitRequest:
        """Return the same with the two tables exchanged."""
        sides = {"primary": "secondary", "secondary": "primary"}
        return replace(
            self,
            tables={key: self.tables[other] for key, other in sides.items()},
            separators={key: self.separators[other] for key, other in sides.items()},
            on=self.on_secondary or self.on,
            on_secondary=self.on if self.on_secondary else (),
        )

    def ask_for_format(self, table: str, guess: FormatGuess, option: str, default: CellFormat) -> CellFormat:
        """Return how a column is written whose cells leave it open."""
        words = {written: word for word, written in FORMAT_OPTIONS[option].items()}
        question = f"How to read cells like {guess.shape} in column '{guess.column}' of {table}"
        question = f"{question}: {' or '.join(words[written] for written in guess.formats)}"
        return self.ask(question, Guess(words[default], ""), lambda answer: parse_format(option, answer.word))


def parse_format(option: str, word: str) -> CellFormat:
    """Return the format that a word of ``--decimal`` or ``--date-format`` stands for."""
    choices = FORMAT_OPTIONS[option]
    if word not in choices:
        message = f"{option} is '{word[:60]}', which is unknown; choose {' or '.join(choices)}"
        raise SettingError(message, code="unknown-format", option=option, value=word)
    return choices[word]


def run_init(request: InitRequest, folder: Path, *, force: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Write the files and return their content in short; nothing is written before everything is known."""
    sources = {key: parse_source(table) for key, table in request.tables.items() if table}
    sources = sources or _ask_for_tables(request)
    _check_several(sources, request)
    if "primary" not in sources and (folder / JOB_FILE).exists():
        return _init_for_received_job(request, sources["secondary"], folder, force=force, say=say)
    _propose_sigma(request)
    names, files = _name_files(request, sources, folder, force=force)
    separators = detect_separators(sources, request.separators)
    tables, formats, warnings = {}, {}, []
    for key, source in sources.items():
        tables[key], formats[key], notes = _read_profile(request, source, separators[key], say)
        warnings += notes
    if _label_is_in_secondary(request, tables):
        say(format_line("swapped", f"{tables['secondary'].name} has the label, so it is the primary's table"))
        return run_init(request.swapped(), folder, force=force, say=say)
    primary = tables.get("primary")
    keys = [key for key in names if key not in ("coordinator", "primary")]
    profiles = {key: TableProfiles(primary, tables.get(key)) for key in keys}
    for pair in profiles.values():
        proposal.propose_k(pair, request.k)  # a wrong K is no reason to ask for other columns
    links = {key: _propose_linkage(pair, request, several=len(keys) > 1) for key, pair in profiles.items()}
    curves = {names[key]: _show_curve(profiles[key], linked, request, say) for key, linked in links.items()}
    request, links = _choose_share(request, profiles, links)
    names, files = _name_files(request, sources, folder, force=force)
    identifiers = {names[key]: linked.columns_of("primary") for key, linked in links.items()}
    label, task, split, label_notes = _propose_goal(primary, linking_columns(identifiers), request)
    warnings += label_notes
    scale = None
    if primary and label and task and task.word == "regression":
        scale = proposal.guess_label_scale(proposal.column_profile(primary, label.word))
    own = {}
    for key, table in tables.items():
        linked_by = identifiers if key == "primary" else {names[key]: links[key].columns_of("secondary")}
        features = _propose_features(table, linked_by, label, of_primary=key == "primary")
        warnings += [
            f"{table.name}: column '{name}' {reason}, so it is not a feature; to use it nevertheless, change "
            f"features and policy.columns in {files[key]}"
            for name, reason in features.dropped
            if reason == proposal.LABEL_TWIN_REASON
        ]
        own[key] = TablePlan(sources[key], separators[key], table.gap_words, linked_by, features, formats[key])
    plan = SetupPlan(
        names=names,
        links=links,
        sigma=_propose_sigma(request),
        task=task,
        split=split,
        label=label,
        label_scale=scale,
        epochs=request.epochs,
        length=_propose_length(primary, request.epochs) if primary else None,
        own=own,
        max_tokens={key: _count_tokens(primary, linked) for key, linked in links.items()} if primary else {},
        share=request.share or proposal.DEFAULT_SHARE,
        m=None if request.coordinator else SHARES[request.share or proposal.DEFAULT_SHARE].M,
    )
    # What is wrong with a column of the primary is found with every secondary, but reported once.
    warnings = list(dict.fromkeys([*(note for linked in links.values() for note in linked.notes), *warnings]))
    for line in _plan_lines(plan, warnings):
        say(line)
    written = []
    if not request.dry_run:
        texts = {JOB_FILE: render_job(plan)} | {file: render_party(plan, key, folder) for key, file in files.items()}
        written = _write_files(folder, texts, key="primary" in sources and request.coordinator)
        written += _certify(plan, folder, Role.PRIMARY)
        say(format_line("wrote", ", ".join(written)))
        say(format_line("kinds", f"change them in {' and '.join(files[key] for key in own)}, features.kinds"))
        for line in _next_step_lines(plan, folder, list(files.values())):
            say(line)
    return _summarise_plan(plan, warnings, folder, written) | {"groups": curves}


def _name_files(
    request: InitRequest, sources: Mapping[str, TableSource], folder: Path, *, force: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the names of the parties and of their files, none of which may exist."""
    names = propose_party_names(sources, coordinator=request.coordinator)
    files = {key: f"{name}.toml" for key, name in names.items() if key in sources or len(sources) > 1}
    _check_targets(folder, [JOB_FILE, *files.values()], force=force or request.dry_run)
    return names, files


def _propose_sigma(request: InitRequest) -> float | None:
    """Return the standard deviation of the noise on similarities, which a coordinator adds."""
    if not request.coordinator:
        if request.sigma is not None:
            message = "--sigma is noise on similarities, which only a coordinator adds; add --share split, or omit it"
            raise SettingError(message, code="sigma-without-coordinator")
        return None
    return proposal.DEFAULT_SIGMA if request.sigma is None else request.sigma or None


def _count_tokens(primary: TableProfile, linked: LinkageProposal) -> int:
    """Return a round number above that of the tokens of all records, a quarter more for new ones."""
    if linked.tokens is None:
        return 0
    cells = {agreed: primary.columns[own].cells for agreed, own in linked.columns_of("primary").items()}
    count = sum(len(np.unique(field.tokens.token)) for field in linked.tokens.query_tokens(cells, primary.name))
    return round_tokens(count + count // 4)


def _label_is_in_secondary(request: InitRequest, tables: Mapping[str, TableProfile]) -> bool:
    """Return whether the user agrees to exchange two tables of which the second has the label and the first has not."""
    if request.label is None or tables.keys() != {"primary", "secondary"}:
        return False
    primary, secondary = tables["primary"], tables["secondary"]
    if request.label in primary.columns or request.label not in secondary.columns:
        return False
    question = f"'{request.label}' is in {secondary.name}, not in {primary.name}: swap the tables? yes or no"
    return request.ask(question, Guess("yes", ""), lambda answer: answer.word.lower() in ("y", "yes"))


def _init_for_received_job(
    request: InitRequest, source: TableSource, folder: Path, *, force: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Write the own file of a secondary for the job in the folder, which stays as it is."""
    given: dict[str, object] = {
        "--coordinator": request.coordinator or None,
        "--share": request.share,
        "--label": request.label,
        "--task": request.task,
        "--k": request.k,
        "--sigma": request.sigma,
    }
    for option, value in {**given, "--epochs": request.epochs}.items():
        if value is not None:
            message = (
                f"{option} is a setting of {folder / JOB_FILE}, which all parties share; change it there with them"
            )
            raise SettingError(
                f"{message}, or remove the file to propose another job", code="job-is-agreed", option=option
            )
    job = read_job(folder / JOB_FILE)
    name, names = propose_party_names({"secondary": source})["secondary"], list(job.secondaries)
    name = names[0] if len(names) == 1 else name
    if name not in names:
        message = f"{folder / JOB_FILE} has the secondaries {', '.join(names)}, but the table suggests '{name}'"
        raise SettingError(f"{message}; name your table after one of them", code="which-secondary", names=names)
    file = f"{name}.toml"
    _check_targets(folder, [file], force=force or request.dry_run)
    separator = detect_separators({"secondary": source}, request.separators)["secondary"]
    table, chosen, notes = _read_profile(request, source, separator, say)
    terms = job.secondaries[name]
    own = _find_agreed_columns(request, table, terms.columns)
    pairs = tuple(IdentifierPair(agreed, None, column) for agreed, column in own.items())
    features = _propose_features(table, {name: own}, None, of_primary=False)
    encoding = None if terms.filters is None else proposal.EncodingProposal(terms.filters, terms.metric)
    plan = SetupPlan(
        names={"secondary": name},
        links={"secondary": LinkageProposal(pairs, terms.k, (), terms.tokens, encoding)},
        sigma=terms.sigma,
        task=None,
        split=Guess(job.task.split, f"as in {JOB_FILE}"),
        label=None,
        own={"secondary": TablePlan(source, separator, table.gap_words, {name: own}, features, chosen)},
        share=terms.share or "split",
        m=terms.m,
    )
    curve = _show_curve(TableProfiles(None, table), plan.links["secondary"], request, say)
    for line in _plan_lines(plan, notes):
        say(line)
    written = []
    if not request.dry_run:
        written = _write_files(folder, {file: render_party(plan, "secondary", folder)}, key=False)
        written += _certify(plan, folder, Role.SECONDARY)
        say(format_line("wrote", ", ".join(written)))
        say(format_line("kept", JOB_FILE))
        say(format_line("kinds", f"change them in {file}, features.kinds"))
        marked = f", fill in the marked settings of {JOB_FILE} with the other parties, then"
        say(f"\nNext{marked if unfilled_lines(folder / JOB_FILE) else ''}:")
        for line in _command_lines(folder, _received_job_commands(plan, name)):
            say(line)
    return _summarise_plan(plan, notes, folder, written) | {"groups": {name: curve}}


def _find_agreed_columns(request: InitRequest, table: TableProfile, agreed: Sequence[str]) -> dict[str, str]:
    """Return the own column of every identifier of a job: as given by ``--on``, else by its name."""
    same = (have_same_name, lambda one, other: any(test(one) and test(other) for test in COORDINATE_TESTS))
    found = {
        name: name if name in table.columns else next((c for test in same for c in table.columns if test(name, c)), "")
        for name in agreed
    }

    def use(answer: Guess) -> dict[str, str]:
        columns = parse_names(answer.word)
        if len(columns) != len(agreed):
            lacking = next((name for name, own in found.items() if not own), agreed[0])
            message = f"{table.name}: {JOB_FILE} links by {', '.join(agreed)}; name your columns for them with --on"
            raise InputError(f"{message}, in this order", code="missing-column", column=lacking)
        return {name: proposal.column_profile(table, own).name for name, own in zip(agreed, columns, strict=True)}

    if request.on:
        return use(Guess(",".join(request.on), USER_CHOICE))
    if not agreed:
        return {}
    guess = Guess(",".join(filter(None, found.values())), "")
    return request.ask(f"Your columns for {', '.join(agreed)}, in this order", guess, use, _column_hint(table))


def _propose_features(
    table: TableProfile, identifiers: Mapping[str, Mapping[str, str]], label: Guess | None, *, of_primary: bool
) -> FeatureProposal:
    """Return what is learnt from a table; only the primary's identifiers are features, too.

    The output of a secondary's network for a place would reveal the place.
    """
    linking, name = linking_columns(identifiers), label.word if label else None
    if of_primary:
        return proposal.propose_features(table, [*linking, *filter(None, [name])], linking)
    return proposal.propose_features(table, linking, label=name)


def _check_several(sources: Mapping[str, TableSource], request: InitRequest) -> None:
    """Refuse several secondaries without a primary, and options that do not say which of them they mean."""
    n_secondaries = len(sources) - ("primary" in sources)
    if n_secondaries < 2:
        return
    if "primary" not in sources:
        message = (
            f"{n_secondaries} secondaries without a primary; add --primary, or run init for each secondary by itself"
        )
        raise SettingError(message, code="no-primary", found=n_secondaries)
    if request.on_secondary:
        raise ambiguous_option_error("--on-secondary", n_secondaries)


def ambiguous_option_error(option: str, n_secondaries: int) -> SettingError:
    """Return the error for an option that is about one secondary, given with several."""
    message = (
        f"{option} does not say which of the {n_secondaries} secondaries it means; run init with one --secondary, then "
        "with the next one and another --out, and copy its [secondaries.NAME] section and party file into the first job"
    )
    return SettingError(message, code="ambiguous-option", option=option, found=n_secondaries)


def _propose_length(primary: TableProfile, epochs: int | None) -> TrainingLength:
    """Return how long to train; fewer epochs than proposed get a patience of at most half of them."""
    length = training_length(round(TRAIN_SHARE * primary.rows))
    if epochs is None:
        return length
    return replace(length, epochs=epochs, patience=min(length.patience, max(1, epochs // 2)))


def _summarise_plan(plan: SetupPlan, warnings: list[str], folder: Path, files: Sequence[str]) -> dict[str, Any]:
    """Return the proposal for ``--json``."""
    linkages = {}
    for key, linked in plan.links.items():
        kinds = {column: kind for columns, kind, _ in _linked_fields(linked) for column in columns}
        pairs = [{"primary": p.primary, "secondary": p.secondary, "kind": kinds[p.agreed]} for p in linked.pairs]
        linkages[plan.names[key]] = {"link_by": pairs, "k": linked.k}
        if linked.encoding is not None:
            quality = asdict(linked.encoding.quality) if linked.encoding.quality else None
            linkages[plan.names[key]] |= {"metric": linked.encoding.metric, "quality": quality}
    guesses = {"label": plan.label, "task": plan.task, "split": plan.split}
    return {
        "direct": plan.direct,
        "share": plan.share,
        "m": plan.m,
        "parties": plan.names,
        "secondaries": linkages,
        # With one secondary also without its name, as before there could be several.
        **(next(iter(linkages.values())) if len(linkages) == 1 else {}),
        **{name: guess.word if guess else None for name, guess in guesses.items()},
        "label_scale": plan.label_scale.word if plan.label_scale else "linear",
        **({} if plan.direct else {"sigma": plan.sigma}),
        **(asdict(plan.length) if plan.length else {}),
        "features": {key: [*own.learning.columns, *own.learning.linking] for key, own in plan.own.items()},
        "kinds": {key: own.learning.kinds for key, own in plan.own.items()},
        "formats": {key: own.formats for key, own in plan.own.items()},
        "left_out": {key: dict(own.learning.dropped) for key, own in plan.own.items()},
        "warnings": warnings,
        "folder": str(folder),
        "files": files,
    }


def detect_separators(sources: Mapping[str, TableSource], given: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the given separator of every table, or else the one that its first lines show."""
    return {
        role: detect_separator(source) if isinstance(source, Path) and given[role] is None else given[role]
        for role, source in sources.items()
    }


def _choose_formats(
    request: InitRequest, frame: pl.DataFrame, table: str, separator: str | None
) -> tuple[dict[str, CellFormat], list[str]]:
    """Return the formats of the columns that need one, and notes on what was guessed.

    Columns whose cells leave it open are written as all others, else as the options or the owner's answer say.
    """
    guesses, chosen, notes = guess_formats(frame), dict[str, CellFormat](), []
    # A comma that separates cells is hardly a decimal comma, too.
    likely = CellFormat.DECIMAL_COMMA if separator == ";" else CellFormat.DECIMAL_POINT
    for option, given, default in (
        ("--decimal", request.decimal, likely),
        ("--date-format", request.date_format, CellFormat.DAY_MONTH_YEAR),
    ):
        own = [guess for guess in guesses if guess.formats[0] in FORMAT_OPTIONS[option].values()]
        certain = {guess.formats[0] for guess in own if len(guess.formats) == 1}
        unclear = next((guess for guess in own if len(guess.formats) > 1), None)
        written = given or (certain.pop() if len(certain) == 1 else None)
        if unclear and written is None:
            written = request.ask_for_format(table, unclear, option, default)
            other = next(
                word for word, each in FORMAT_OPTIONS[option].items() if each in {*unclear.formats} - {written}
            )
            note = f"column '{unclear.column}' has cells like {unclear.shape}, read as {written}"
            notes.append(f"{table}: {note}; if that is wrong, use {option} {other}")
        chosen |= {g.column: written if written in g.formats else g.formats[0] for g in own}
    if CellFormat.DECIMAL_COMMA in (request.decimal, *chosen.values()):
        chosen |= dict.fromkeys(grouped_columns(frame), CellFormat.DECIMAL_COMMA)
    return chosen, notes


def _read_profile(
    request: InitRequest, source: TableSource, separator: str | None, say: Callable[[str], None]
) -> tuple[TableProfile, dict[str, CellFormat], list[str]]:
    """Read and profile a table, and print how large it is and how it is written; return formats and notes as well."""
    name = source.name if isinstance(source, Path) else str(source)
    frame = read_table(source, separator=separator)
    chosen, notes = _choose_formats(request, frame, name, separator)
    table = profile_table(apply_formats(frame, chosen), name)
    if table.rows < 2:
        message = f"{name} has only one record, too few to link or to learn from; use a table with many records"
        raise InputError(message, code="too-few-records", table=name, found=table.rows)
    cut = f", split at {separator!r}" if separator else ""
    say(format_line(name, f"{pluralise(table.rows, 'record')}, {pluralise(len(table.columns), 'column')}{cut}"))
    for written in dict.fromkeys(chosen.values()):
        columns = [column for column in chosen if chosen[column] == written]
        say(format_line("", f"{written}: {_shorten_list(columns)}"))
    if request.explain:
        request.explain("\n".join(_preview_lines(table)))
    return table, chosen, notes


def _ask_for_tables(request: InitRequest) -> dict[str, TableSource]:
    """Ask a person for the tables of both parties; a party without a table here is "none"."""
    missing = SettingError("no table; use --primary, --secondary or both", code="no-table")
    if request.explain is None:
        raise missing

    def readable(answer: Guess) -> TableSource | None:
        if answer.word == NO_TABLE:
            return None
        source = parse_source(answer.word)
        read_table(source, separator=detect_separator(source) if isinstance(source, Path) else None)
        return source

    questions = {
        "primary": f"Table with the label (a file, or {NO_TABLE} if it is the partner's)",
        "secondary": f"Table of the partner (a file, or {NO_TABLE} if you do not have it)",
    }
    found = {role: request.ask(text, Guess(NO_TABLE, ""), readable) for role, text in questions.items()}
    if not any(found.values()):
        raise missing
    return {role: source for role, source in found.items() if source}


def _preview_lines(table: TableProfile) -> Iterator[str]:
    """Yield name, kind and first value of every column, for the owner of the table."""
    width = min(MAX_NAME_WIDTH, max(map(len, table.columns)))
    for column in list(table.columns.values())[:MAX_PREVIEWED]:
        first = next(iter(column.filled.head(1).to_list()), "")
        kind = f"{'code' if column.code else column.kind:<10}{column.distinct:>9,} different"
        yield shorten(f"  {column.name:<{width}}  {kind}, such as {first}", MAX_PREVIEW_WIDTH)
    if len(table.columns) > MAX_PREVIEWED:
        yield f"  and {len(table.columns) - MAX_PREVIEWED} more columns"


def _column_hint(table: TableProfile | None) -> str:
    return f"columns of {table.name}: {', '.join(table.columns)}" if table else ""


def _propose_linkage(tables: TableProfiles, request: InitRequest, *, several: bool) -> LinkageProposal:
    share = request.share or proposal.DEFAULT_SHARE
    if request.on:
        pairs = proposal.pairs_from_names(tables, request.on, request.on_secondary or request.on)
        return proposal.propose_linkage(tables, pairs, request.k, share)
    guessed = guess_identifiers(tables.primary, tables.secondary)
    guess = Guess(",".join(pair.primary or pair.secondary or "" for pair in guessed), "")

    def link(answer: Guess) -> LinkageProposal:
        if answer is guess:
            return proposal.propose_linkage(tables, guessed, request.k, share)
        ours, known = parse_names(answer.word), {pair.primary: pair.secondary for pair in guessed}
        theirs, secondary = [known.get(name) or name for name in ours], tables.secondary
        if tables.primary and secondary and not set(theirs) <= set(secondary.columns):
            for name in ours:
                proposal.column_profile(tables.primary, name)
            theirs = parse_names(request.prompt(f"The same columns in {secondary.name}, separated by commas", ""))
        pairs = proposal.pairs_from_names(tables, ours, theirs)
        return proposal.propose_linkage(tables, pairs, request.k, share)

    hints = "\n".join(_column_hint(table) for _, table in tables.sides)
    what = f"Columns to link with {tables.secondary.name}" if several and tables.secondary else "Columns to link by"
    return request.ask(f"{what}, separated by commas", guess, link, hints)


def _show_curve(
    tables: TableProfiles, linked: LinkageProposal, request: InitRequest, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Print and return how large groups of a secondary's records by cells are; nothing if there are no cells."""
    if tables.secondary is None or linked.tokens is None:
        return []
    try:
        tokens = proposal.propose_linkage(tables, linked.pairs, request.k, "averages").tokens or linked.tokens
    except SettingError:
        return []
    cells = {agreed: tables.secondary.columns[own].cells for agreed, own in linked.columns_of("secondary").items()}
    curve = group_sizes(tokens, cells, tables.secondary.name)
    say(format_line("averages", f"of cells with at least m records of {tables.secondary.name}; others stay out"))
    widths = "{:>15}{:>9}{:>13}{:>15}{:>14}"
    say(widths.format("m", "groups", "median rows", "median cell", "rows covered"))
    for of in curve:
        say(widths.format(of.m, f"{of.groups:,}", f"{of.rows:,.0f}", of.cell, format_percent(of.covered)))
    return [asdict(of) for of in curve]


def _choose_share(
    request: InitRequest, profiles: Mapping[str, TableProfiles], links: dict[str, LinkageProposal]
) -> tuple[InitRequest, dict[str, LinkageProposal]]:
    """Return the request with the level at which secondaries share, and the linkages that it needs.

    It is asked only where records can be averaged by cells: at other tables, one level links without a coordinator.
    """
    if request.share is not None:
        return request, links

    def use(answer: Guess) -> tuple[InitRequest, dict[str, LinkageProposal]]:
        share = check_share(answer.word)
        if share == proposal.DEFAULT_SHARE:
            return replace(request, share=share), links
        again = {}
        for key, linked in links.items():
            found = proposal.propose_linkage(profiles[key], linked.pairs, request.k, share)
            again[key] = replace(found, notes=tuple(dict.fromkeys([*linked.notes, *found.notes])))
        return replace(request, share=share), again

    guess = Guess(proposal.DEFAULT_SHARE, "")
    try:
        for tokens in filter(None, (linked.tokens for linked in links.values())):
            AVERAGES.check(tokens)
    except SettingError:
        return use(guess)
    return request.ask(SHARE_QUESTION, guess, use)


def check_share(word: str) -> str:
    """Return the name of a level of sharing, or raise an error that suggests the nearest one."""
    if word not in SHARES:
        near = nearest_word(word, SHARES.names())
        hint = f"did you mean '{near}'?" if near else f"choose one of {', '.join(SHARES.names())}"
        raise SettingError(f"unknown share '{word[:60]}'; {hint}", code="unknown-share", nearest=near)
    return word


def choose_level(share: str | None, *, coordinator: bool) -> str | None:
    """Return the level that ``--share`` and ``--coordinator`` ask for, if any."""
    if share is not None and SHARES.detail(check_share(share), "direct") and coordinator:
        message = f"--share {share} needs no third party, but --coordinator asks for one; omit one of them"
        raise SettingError(message, code="share-without-coordinator")
    return "split" if coordinator else share


def _propose_goal(
    primary: TableProfile | None, identifiers: Sequence[str], request: InitRequest
) -> tuple[Guess | None, Guess | None, Guess, Sequence[str]]:
    """Return label, task, split and warnings; label and task are unknown without the primary's table."""
    task = None if request.task is None else _check_task(Guess(request.task, USER_CHOICE))
    if primary is None:
        return None, task, Guess("random", "or group, which keeps records with equal identifiers together"), ()

    def use(label: Guess) -> tuple[Guess, Guess, Sequence[str]]:
        if not label.word:
            raise SettingError(
                f"no column of {primary.name} looks like a label; name one with --label", code="no-label"
            )
        notes = proposal.check_label_choice(primary, label.word, identifiers)
        return label, task or proposal.guess_task(proposal.column_profile(primary, label.word)), notes

    if request.label:
        label, likely, notes = use(Guess(request.label, USER_CHOICE))
    else:
        candidates = proposal.possible_labels(primary, identifiers)
        if request.clear_label and len(candidates) > 1:
            message = f"{primary.name}: the column to predict is not clear; name it with --label: "
            message += _shorten_list([*dict.fromkeys(candidates)])
            raise SettingError(message, code="ambiguous-label", candidates=candidates)
        guess = proposal.guess_label(primary, identifiers) or Guess("", "")
        label, likely, notes = request.ask("Column to predict", guess, use, _column_hint(primary))

    def learn(task: Guess) -> Guess:
        error = single_record_error(primary.columns[label.word].cells, primary.name)
        if _check_task(task).word == "classification" and error:
            raise error
        return task

    task = learn(task) if task else request.ask("Task", likely, learn)
    return label, task, proposal.guess_split(primary, identifiers), notes


def _check_task(task: Guess) -> Guess:
    if task.word not in TASK_NAMES:
        near = nearest_word(task.word, TASK_NAMES)
        hint = f"did you mean '{near}'?" if near else f"choose one of {', '.join(TASK_NAMES)}"
        raise SettingError(f"unknown task '{task.word[:60]}'; {hint}", code="unknown-task", nearest=near)
    return task


def _plan_lines(plan: SetupPlan, notes: Sequence[str]) -> Iterator[str]:
    """Yield how the parties link, what is predicted from what and why, and the warnings."""
    several = len(plan.links) > 1
    for key, linked in plan.links.items():
        if several:
            yield format_line("secondary", plan.names[key])
        yield from _linkage_lines(linked)
    for name, guess in (
        ("label", plan.label),
        ("task", plan.task),
        ("label scale", plan.label_scale),
        ("split", plan.split),
    ):
        if guess:
            yield format_line(name, f"{guess.word}, {guess.reason}")
    noise = f"noise of sigma {plan.sigma:g} on similarities" if plan.sigma else "no noise on similarities"
    noise = "linked directly, without a coordinator" if plan.direct else noise
    m = "" if plan.m is None else f", m = {plan.m}"
    yield format_line("share", f"{plan.share}{m}; {SHARES.summary(plan.share)}")
    for key, linked in plan.links.items():
        source = f" from {plan.names[key]}" if several else ""
        yield format_line("partners", f"{linked.k} per record{source}; {noise}")
    yield from _kind_lines(plan)
    for note in notes:
        yield format_line("warning", note)


def _linked_fields(linked: LinkageProposal) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield the columns of every field with the kind of its tokens or encoding, and its resolution or size."""
    for field_ in linked.tokens.fields if linked.tokens else ():
        yield field_.columns, field_.kind.KIND, f"tokens{field_.kind.shown and f' {field_.kind.shown}'}"
    schema = linked.encoding.schema if linked.encoding else None
    for linking in schema.fields if schema else ():
        kind, detail = linking.encoding.KIND, f"{linking.encoding.bits:,} bits"
        if schema and schema.positions:  # such encodings have one setting, their resolution
            (resolution,) = asdict(linking.encoding).values()  # type: ignore[call-overload]
            detail = f"resolution {resolution:g}{' m' if kind == 'place' else ''}"
        yield tuple(linking.columns), kind, detail


def _linkage_lines(linked: LinkageProposal) -> Iterator[str]:
    """Yield by which columns a secondary links, and how well."""
    pairs = {
        pair.agreed: dict.fromkeys(name for name in (pair.primary, pair.secondary) if name) for pair in linked.pairs
    }
    for named, kind, detail in _linked_fields(linked):
        columns = ", ".join(" = ".join(pairs[column]) for column in named)
        yield format_line("link by", f"{columns} ({kind}, {detail})")
    if linked.encoding and linked.encoding.quality:
        title = "linkage"
        for row in linked.encoding.quality.rows():
            yield format_line(title, f"{row.name:<10}{row.value}")
            title = ""


def _kind_lines(plan: SetupPlan) -> Iterator[str]:
    """Yield the columns of every table by kind, and those that are left out with the reason."""
    for key, own in plan.own.items():
        yield format_line("features", plan.names[key])
        for kind, names in own.learning.by_kind():
            shown = [f"{name} (code)" if name in own.learning.codes else name for name in names]
            yield format_line("", f"{kind:<10}{_shorten_list(shown)}")
        reasons: dict[str, list[str]] = {}
        for name, reason in own.learning.dropped:
            reasons.setdefault(reason, []).append(name)
        yield from (format_line("", f"left out  {_shorten_list(names)}: {reason}") for reason, names in reasons.items())


def _shorten_list(columns: Sequence[str]) -> str:
    more = f" and {len(columns) - MAX_LISTED} more" if len(columns) > MAX_LISTED else ""
    return ", ".join(columns[:MAX_LISTED]) + more


def format_line(name: str, value: str) -> str:
    """Return a name and a value in two columns; names of columns and files cannot control the terminal."""
    return wrap_text(f"{name:<12} ", shorten(value, MAX_LINE_LENGTH))


def _next_step_lines(plan: SetupPlan, folder: Path, files: Sequence[str]) -> Iterator[str]:
    """Yield the commands to run next, as the user would type them."""
    if not plan.whole:
        yield f"\nNext, fill in the marked settings of {JOB_FILE}, agree on it with the other party, then:"
        (role,) = plan.own
        name = plan.names[role]
        if plan.direct:
            sign = f"fedsim certs sign REQUEST.csr --out {CERTIFICATE_FOLDER} # the partner's; send it what this names"
            commands = _party_commands(name, "check", "approve", "party")
            first = sign if role == "primary" else _request_command(role, name)
            yield from _command_lines(folder, [first, *commands])
            return
        copy = f"# send {KEY_FILE} to the secondary over a secure channel, never to the coordinator"
        if role == "secondary":
            copy = f"# get {KEY_FILE} from the primary over a secure channel"
        yield from _command_lines(
            folder, [copy, _request_command(role, name), *_party_commands(name, "check", "approve")]
        )
        yield f"\nThe coordinator gets {JOB_FILE} and runs: fedsim init --coordinator"
        return
    yield "\nNext, try it with all parties in one process:"
    approvals = [f"fedsim approve {JOB_FILE} {file} --yes" for file in files]
    yield from _command_lines(folder, [*approvals, f"fedsim train {JOB_FILE} {' '.join(files)}"])
    yield "\nThen run each party on its own machine (fedsim check shows what is missing):"
    yield f"  fedsim certs {' '.join(f'--{plan.role_of(key)} {name}' for key, name in plan.names.items())}"
    yield f"  fedsim check {JOB_FILE} {files[-1]}"
    yield f"  fedsim party {JOB_FILE} {files[-1]}"


def _received_job_commands(plan: SetupPlan, name: str) -> list[str]:
    """Return what a secondary does with the job of another party."""
    commands = _party_commands(name, "check", "approve", "party")
    if plan.direct:
        request = f"{CERTIFICATE_FOLDER}/secondary-{name}.csr"
        return [f"# send {request} to the primary, and put what it returns beside it", *commands]
    copy = f"# get {KEY_FILE} from the primary over a secure channel"
    return [copy, _request_command("secondary", name), *commands]


def _party_commands(name: str, *words: str) -> list[str]:
    """Return commands that one party runs on its party file."""
    return [f"fedsim {word} {JOB_FILE} {name}.toml" for word in words]


def _request_command(role: str, name: str) -> str:
    return f"fedsim certs request --role {role} --name {name} # its certificate, to be signed"


def _certify(plan: SetupPlan, folder: Path, role: Role) -> list[str]:
    """Create the key of a party that has its own machine: the primary certifies itself, and others send it a request.

    Without a coordinator all others connect with the primary alone, so nobody is misled by what it certifies.
    Certificates that exist are kept.
    """
    certificates = folder / CERTIFICATE_FOLDER
    if not plan.direct or plan.whole or role not in plan.own or certificates.exists():
        return []
    party = Party(role, plan.names[role])
    if role is Role.PRIMARY:
        SERVICES["issue-certificates"](certificates, [party], datetime.now(UTC))
    else:
        SERVICES["request-certificate"](certificates, party)
    return [f"{CERTIFICATE_FOLDER}/"]


def _command_lines(folder: Path, commands: Sequence[str]) -> Iterator[str]:
    """Yield commands that are run in a folder."""
    cd = [] if folder == Path() else [f"cd {shlex.quote(str(folder))}"]
    yield from (f"  {command}" for command in [*cd, *commands])


def _check_targets(folder: Path, names: Sequence[str], *, force: bool) -> None:
    folder = folder.absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        message = f"{nearest} is not a folder you may write to; choose another --out"
        raise FileError(message, code="folder-not-writable")
    existing = [name for name in names if (folder / name).exists()]
    if existing and not force:
        message = f"{', '.join(existing)} in {folder} would be replaced; use --force or another --out"
        raise FileError(message, code="files-exist", files=existing)


def _write_files(folder: Path, texts: Mapping[str, str], *, key: bool) -> list[str]:
    """Write these files, the schemas and perhaps a key, all or none, and return their names.

    An existing key is kept, since it may be the only copy.
    """
    written = [*texts, f"{SCHEMA_FOLDER}/"]
    schemas = {f"{SCHEMA_FOLDER}/{SCHEMA_FILES[name]}": read_schema_text(name) for name in SCHEMA_FILES}
    with create_folder(folder / SCHEMA_FOLDER), ExitStack() as all_files:
        for name, text in {**texts, **schemas}.items():
            part = all_files.enter_context(atomic_write(folder / name))
            part.write_text(text, encoding="utf-8")
        if key and not (folder / KEY_FILE).exists():
            Key.generate().write(folder / KEY_FILE)
            written.append(KEY_FILE)
    return written


def init_coordinator(folder: Path, *, force: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Write the coordinator's party file for the job file in a folder; it needs no table and no key."""
    if not (folder / JOB_FILE).exists():
        message = f"no {JOB_FILE} in {folder.absolute()}; get it from the primary and copy it there"
        raise FileError(message, code="no-job-file")
    coordinator = read_job(folder / JOB_FILE).coordinator
    if coordinator is None:
        raise SettingError("this job has no coordinator: only its other parties need a file", code="no-coordinator")
    name = coordinator.name
    file = f"{name}.toml"
    _check_targets(folder, [file], force=force)
    written = _write_files(folder, {file: render_coordinator(name)}, key=False)
    say(format_line("wrote", ", ".join(written)))
    say("\nNext:")
    for line in _command_lines(
        folder, [_request_command("coordinator", name), *_party_commands(name, "check", "approve", "party")]
    ):
        say(line)
    return {"parties": {"coordinator": name}, "folder": str(folder), "files": written}


@contextmanager
def create_folder(folder: Path) -> Iterator[None]:
    """Create a folder and its parents; remove the new ones if the block fails."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or "the disk refused"
        message = f"cannot write the folder {folder} ({reason}); choose another --out"
        raise FileError(message, code="folder-not-writable", reason=reason) from error
    try:
        yield
    except BaseException:
        for path in new:
            with suppress(OSError):
                path.rmdir()
        raise
