"""Commands that prepare a job: demo, init, explain, key and certs."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.cli.options import (
    K_HELP,
    TABLE_HELP,
    Json,
    OutputMode,
    Quiet,
    Separator,
    check_seed,
    parse_names,
    print_json,
    print_nothing,
    prompt_user,
)
from fedsim.errors import SettingError

if TYPE_CHECKING:
    from fedsim.config.schema import SettingDoc


def demo(
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for all files; an earlier demo in it is replaced.")
    ] = Path("fedsim-demo"),
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed; another seed generates another city.")] = 7,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run three parties on generated tables and show what the partner contributes.

    Coordinator, primary and secondary run as three processes with mutual TLS. The demo needs no data and no network,
    and takes about 90 seconds on two cores. The files it writes are the ones you would write for your own job.
    """
    from fedsim.cli.demo import run_demo

    run_demo(out, check_seed(seed), OutputMode(quiet, as_json))


def init(
    primary: Annotated[str | None, typer.Option(metavar="TABLE", help=f"The primary's table: {TABLE_HELP}.")] = None,
    secondary: Annotated[
        str | None, typer.Option(metavar="TABLE", help="The secondary's table, if you have it.")
    ] = None,
    on: Annotated[
        str,
        typer.Option(metavar="COLUMNS", help="Columns to link by, such as lat,lon. Default: proposed from the tables."),
    ] = "",
    on_secondary: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Names of these columns in the secondary's table, if they differ.")
    ] = "",
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of the primary to predict.")] = None,
    task: Annotated[str | None, typer.Option(metavar="TASK", help="regression or classification.")] = None,
    k: Annotated[
        int | None,
        typer.Option("--k", metavar="K", min=1, max=10_000, help=K_HELP),
    ] = None,
    tau: Annotated[
        float | None,
        typer.Option(metavar="TAU", min=0.0, max=1.0, help="Bound for the noise on similarities; 0 adds no noise."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=100_000, help="Epochs. Default: those of the preset.")
    ] = None,
    separator: Separator = None,
    separator_secondary: Annotated[
        str | None, typer.Option(metavar="CHAR", help="Separator of the secondary's table, if it differs.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write to; created if missing.")] = Path(),
    yes: Annotated[bool, typer.Option("--yes", help="Accept every proposal without asking.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace job and party files; never a key.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Propose how to link two tables and what to predict, and write the job file and the party files.

    With one table only, the job file contains marks where the other party has to fill in its settings.

    fedsim init --primary flats.csv --secondary rentals.csv --label price
    """
    from fedsim.cli.init import InitRequest, run_init

    request = InitRequest(
        tables={"primary": primary, "secondary": secondary},
        on=parse_names(on),
        on_secondary=parse_names(on_secondary),
        label=label,
        task=task,
        k=k,
        tau=tau,
        epochs=epochs,
        separators={"primary": separator, "secondary": separator_secondary or separator},
        prompt=(lambda question, proposal: proposal) if yes else _prompt_for_text,
    )
    summary = run_init(request, out, force=force, say=print_nothing if quiet or as_json else typer.echo)
    if as_json:
        print_json(summary)


def _prompt_for_text(question: str, proposal: str) -> str:
    answer: str | None = prompt_user(lambda: typer.prompt(question, default=proposal or None, err=True))
    if answer is None:
        raise SettingError("no answer; use --yes to accept the proposals, or answer with options", code="no-answer")
    return answer.strip()


MAX_WIDTH = 100
MARGIN = 11


class SchemaKind(StrEnum):
    """Files that have a schema."""

    JOB = "job"
    PARTY = "party"


def explain(
    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="Setting, such as training.wire or tau. Default: list all.")
    ] = None,
    schema: Annotated[
        SchemaKind | None, typer.Option(metavar="KIND", help="Print the JSON Schema of job or party files and exit.")
    ] = None,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of JSON objects.")] = False,
) -> None:
    """Explain a setting of the job or party file: meaning, type, default and example.

    fedsim explain training.wire
    """
    from fedsim.config.schema import find_settings, list_settings, read_schema_text

    if schema is not None:
        typer.echo(read_schema_text(schema), nl=False)
        return
    settings = find_settings(key) if key else list_settings()
    if as_json:
        print_json([asdict(setting) for setting in settings])
    elif not quiet:
        for line in _detail_lines(settings) if key else _summary_lines(settings):
            typer.echo(line)


def _summary_lines(settings: Sequence[SettingDoc]) -> Iterator[str]:
    width = _terminal_width()
    for file in SchemaKind:
        yield f"{file} file"
        for setting in settings:
            if setting.file == file and not setting.of_kind:
                line = f"  {setting.name:<36} {setting.meaning}"
                yield line if len(line) <= width else line[: width - 1].rstrip() + "…"


def _detail_lines(settings: Sequence[SettingDoc]) -> Iterator[str]:
    for place, setting in enumerate(settings):
        if place:
            yield ""
        of_kind = f", kind {setting.of_kind}" if setting.of_kind else ""
        yield f"{setting.name} (in the {setting.file} file{of_kind})"
        yield from _wrap("", setting.meaning)
        yield from _wrap("type", setting.allowed)
        if setting.inside:
            yield from _wrap("settings", ", ".join(setting.inside))
            continue
        yield from _wrap("default", setting.default or ("none; required" if setting.required else "not set"))
        yield from _wrap("example", setting.example)


def _wrap(name: str, value: str) -> list[str]:
    first, rest = (f"  {name:<{MARGIN}}", " " * (MARGIN + 2)) if name else ("  ", "  ")
    width = _terminal_width()
    return textwrap.wrap(value, width, initial_indent=first, subsequent_indent=rest, break_long_words=False)


def _terminal_width() -> int:
    return min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 24)).columns)


def key(
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write; it must not exist yet.")],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Generate a linkage key, the secret behind `fedsim encode`.

    Give the key to the other parties over a secure channel, never to the coordinator.
    """
    from fedsim.linkage.encoding import Key
    from fedsim.storage.files import check_writable

    check_writable(out)
    Key.generate().write(out)
    advice = "Give it to the other parties over a secure channel, never to the coordinator."
    OutputMode(quiet, as_json).show({"file": str(out)}, lambda: typer.echo(f"Wrote {out}. {advice}"))


NamesOption = list[str] | None


def certs(
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder to write to; an authority in it signs the new certificates.")
    ] = Path("certs"),
    coordinator: Annotated[NamesOption, typer.Option(metavar="NAME", help="Name of the coordinator.")] = None,
    primary: Annotated[NamesOption, typer.Option(metavar="NAME", help="Name of the primary.")] = None,
    secondary: Annotated[
        NamesOption, typer.Option(metavar="NAME", help="Name of a secondary; may be repeated.")
    ] = None,
    days: Annotated[int, typer.Option(metavar="N", help="Days until the certificates expire.")] = 365,
    renew: Annotated[bool, typer.Option("--renew", help="Replace certificates by new ones for the same keys.")] = False,
    show: Annotated[Path | None, typer.Option(metavar="FOLDER", help="List the certificates of a folder.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Create a certificate authority, and a certificate and key for each party, bound to its role and name.

    fedsim certs --coordinator notary --primary city --secondary rentals
    """
    from fedsim.cli.certs import run_certs, run_list_certs

    mode, names = OutputMode(quiet, as_json), {"coordinator": coordinator, "primary": primary, "secondary": secondary}
    if show is None:
        run_certs({role: listed or [] for role, listed in names.items()}, out, days, mode, renew=renew)
    elif any(names.values()):
        raise SettingError("--show lists certificates; omit it to create some", code="show-with-parties")
    else:
        run_list_certs(show, mode)
