"""Commands that prepare a job or link tables without one; heavy modules are imported when a command runs."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.cli import options as opt
from fedsim.cli.options import Json, OutputMode, Quiet, argument, flag, option
from fedsim.errors import SettingError, replace_unprintable

if TYPE_CHECKING:
    from fedsim.config.settings_schema import SettingDoc


def demo(
    out: Annotated[Path, option("FOLDER", "Folder for all files; an earlier demo in it is replaced.")] = Path(
        "fedsim-demo"
    ),
    seed: Annotated[int, option("N", "Random seed; another seed generates another city.")] = 7,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run two parties on generated tables and show what the partner contributes.

    Primary and secondary run as two processes with mutual TLS and link directly: there is no third party and no shared
    key. The demo needs no data and no network,
    and takes about a minute on two cores. The files it writes are the ones you would write for your own job.
    """
    from fedsim.cli.demo import run_demo

    run_demo(out, opt.check_seed(seed), OutputMode(quiet, as_json))


def try_tables(
    mine: Annotated[str, argument("MINE", f"Your table, with the column to predict: {opt.TABLE_HELP}.")],
    theirs: Annotated[str, argument("THEIRS", "The table of the partner.")],
    label: Annotated[str | None, option("COLUMN", "Column to predict. Default: proposed.")] = None,
    on: Annotated[str, option("COLUMNS", "Columns to link by, such as lat,lon. Default: proposed.")] = "",
    on_secondary: opt.SecondaryColumns = "",
    task: Annotated[str | None, option("TASK", "regression or classification. Default: proposed.")] = None,
    minutes: Annotated[
        float | None,
        option(
            "N",
            "About how long it may take; decides how much is trained. Default: 4, or 0.8 for small tables.",
            min=0.1,
            max=100_000,
        ),
    ] = None,
    separator: opt.Separator = None,
    separator_secondary: opt.SecondarySeparator = None,
    decimal: opt.Decimal = None,
    date_format: opt.DateFormat = None,
    out: Annotated[Path, option("FOLDER", "Folder for all files; an earlier trial in it is replaced.")] = Path(
        "fedsim-try"
    ),
    yes: Annotated[
        bool, flag("Accept every proposal without asking, if only one column may be the label.", "--yes")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Estimate what a partner's table adds to yours: link, train and compare both in this process, in minutes.

    Without certificates and approvals, because nothing is sent. Prints the contribution with its interval and writes
    a page and the files of the job that `fedsim init` proposes.

    fedsim try flats.csv rentals.csv --label price
    """
    from fedsim.cli.init import InitRequest, parse_format
    from fedsim.cli.try_tables import run_try

    request = InitRequest(
        tables={"primary": mine, "secondary": theirs},
        on=opt.parse_names(on),
        on_secondary=opt.parse_names(on_secondary),
        label=label,
        task=task,
        decimal=parse_format("--decimal", decimal) if decimal else None,
        date_format=parse_format("--date-format", date_format) if date_format else None,
        separators={"primary": separator, "secondary": separator_secondary or separator},
        prompt=(lambda question, proposal: proposal) if yes else _prompt_for_text,
        explain=partial(opt.echo, err=True) if sys.stdin.isatty() and not yes else None,
        clear_label=yes,
        share="rows",
    )
    run_try(request, out, minutes, OutputMode(quiet, as_json))


def init(
    primary: Annotated[str | None, option("TABLE", f"The primary's table: {opt.TABLE_HELP}.")] = None,
    secondary: Annotated[
        list[str] | None, option("TABLE", "The secondary's table, if you have it; may be repeated for several.")
    ] = None,
    on: Annotated[
        str, option("COLUMNS", "Columns to link by, such as lat,lon. Default: proposed from the tables.")
    ] = "",
    on_secondary: opt.SecondaryColumns = "",
    label: Annotated[str | None, option("COLUMN", "Column of the primary to predict.")] = None,
    task: Annotated[str | None, option("TASK", "regression or classification.")] = None,
    k: Annotated[int | None, option("K", opt.K_HELP, "--k", min=1, max=10_000)] = None,
    sigma: Annotated[
        float | None, option("SIGMA", "Noise on similarities, relative to their spread; 0 adds none.", min=0.0, max=1e6)
    ] = None,
    epochs: Annotated[
        int | None, option("N", "Maximum number of epochs. Default: set by the preset.", min=1, max=100_000)
    ] = None,
    separator: opt.Separator = None,
    separator_secondary: opt.SecondarySeparator = None,
    decimal: opt.Decimal = None,
    date_format: opt.DateFormat = None,
    out: Annotated[Path, option("FOLDER", "Folder to write to; created if missing.")] = Path(),
    coordinator: Annotated[
        bool,
        flag(
            "Link by a third party, the coordinator, and a shared key, as in the paper. Without tables: write the "
            "coordinator's file for the job.toml in --out.",
            "--coordinator",
        ),
    ] = False,
    share: Annotated[
        str | None,
        option(
            "LEVEL",
            "What leaves the partner's table: averages (of at least 10 records of a cell), rows (a vector for each, "
            "the mean of 5) or split (activations, with a coordinator). Default: rows.",
        ),
    ] = None,
    yes: Annotated[bool, flag("Accept every proposal without asking.", "--yes")] = False,
    force: Annotated[bool, flag("Replace job and party files; never a key.", "--force")] = False,
    dry_run: Annotated[bool, flag("Show the proposal and write nothing.", "--dry-run")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Propose how to link tables and what to predict, and write the job file and the party files.

    With one table only, the job file has marks where the other party must fill in its settings. On a terminal, the
    command shows the columns, asks for everything that no option sets, and asks again after a mistake.

    fedsim init --primary flats.csv --secondary rentals.csv --label price
    """
    from fedsim.cli.init import (
        InitRequest,
        ambiguous_option_error,
        choose_level,
        init_coordinator,
        parse_format,
        run_init,
    )
    from fedsim.wizard.file_templates import secondary_keys

    say = opt.print_nothing if quiet or as_json else opt.echo
    if coordinator and not (primary or secondary):
        written = init_coordinator(out, force=force, say=say)
        if as_json:
            opt.print_json(written)
        return
    given: Sequence[str | None] = secondary or (None,)
    partners = dict(zip(secondary_keys(len(given)), given, strict=True))
    if separator_secondary and len(partners) > 1:
        raise ambiguous_option_error("--separator-secondary", len(partners))
    request = InitRequest(
        tables={"primary": primary, **partners},
        on=opt.parse_names(on),
        on_secondary=opt.parse_names(on_secondary),
        label=label,
        task=task,
        k=k,
        sigma=sigma,
        epochs=epochs,
        decimal=parse_format("--decimal", decimal) if decimal else None,
        date_format=parse_format("--date-format", date_format) if date_format else None,
        separators={"primary": separator, **dict.fromkeys(partners, separator_secondary or separator)},
        prompt=(lambda question, proposal: proposal) if yes else _prompt_for_text,
        explain=partial(opt.echo, err=True) if sys.stdin.isatty() and not yes else None,
        share=choose_level(share, coordinator=coordinator),
        dry_run=dry_run,
    )
    summary = run_init(request, out, force=force, say=say)
    if as_json:
        opt.print_json(summary)


def _prompt_for_text(question: str, proposal: str) -> str:
    answer: str | None = opt.prompt_user(
        lambda: typer.prompt(replace_unprintable(question), default=proposal or None, err=True)
    )
    if answer is None:
        raise SettingError("no answer; use --yes to accept the proposals, or answer with options", code="no-answer")
    return answer.strip()


MARGIN = 11


class SchemaKind(StrEnum):
    """Files that have a schema."""

    JOB = "job"
    PARTY = "party"


def explain(
    key: Annotated[str | None, argument("KEY", "Setting, such as training.wire or tau. Default: list all.")] = None,
    schema: Annotated[
        SchemaKind | None, option("KIND", "Print the JSON Schema of job or party files and exit.")
    ] = None,
    quiet: Quiet = False,
    as_json: Annotated[bool, flag("Print a list of JSON objects.", "--json")] = False,
) -> None:
    """Explain a setting of the job or party file: meaning, type, default and example.

    fedsim explain training.wire
    """
    from fedsim.config.settings_schema import find_settings, list_settings, read_schema_text

    if schema is not None:
        typer.echo(read_schema_text(schema), nl=False)
        return
    settings = find_settings(key) if key else list_settings()
    if as_json:
        opt.print_json([asdict(setting) for setting in settings])
    elif not quiet:
        width = opt.terminal_width()
        for line in _detail_lines(settings, width) if key else _summary_lines(settings, width):
            typer.echo(line)


def _summary_lines(settings: Sequence[SettingDoc], width: int) -> Iterator[str]:
    for file in SchemaKind:
        yield f"{file} file"
        for setting in settings:
            if setting.file == file and not setting.of_kind:
                line = f"  {setting.name:<36} {setting.meaning}"
                yield line if len(line) <= width else line[: width - 1].rstrip() + "…"


def _detail_lines(settings: Sequence[SettingDoc], width: int) -> Iterator[str]:
    def wrap(name: str, value: str) -> list[str]:
        first, rest = (f"  {name:<{MARGIN}}", " " * (MARGIN + 2)) if name else ("  ", "  ")
        return textwrap.wrap(value, width, initial_indent=first, subsequent_indent=rest, break_long_words=False)

    for place, setting in enumerate(settings):
        if place:
            yield ""
        of_kind = f", kind {setting.of_kind}" if setting.of_kind else ""
        yield f"{setting.name} (in the {setting.file} file{of_kind})"
        yield from wrap("", setting.meaning)
        yield from wrap("type", setting.allowed)
        if setting.inside:
            yield from wrap("settings", ", ".join(setting.inside))
            continue
        yield from wrap("default", setting.default or ("none; required" if setting.required else "not set"))
        yield from wrap("example", setting.example)
