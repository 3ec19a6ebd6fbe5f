"""Commands that prepare a job: demo, init, explain, key and certs."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.cli.options import Json, Quiet, Separator, check_seed, parse_names, print_nothing, prompt_user
from fedsim.errors import FileError, SettingError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from fedsim.config.schema import SettingDoc
    from fedsim.protocol.messages import Party

# ``fedsim demo``: three organisations on this machine, from two tables to what the partner is worth


DemoOut = Annotated[Path, typer.Option(help="Folder for all of it; made anew where it holds an earlier demo.")]
DemoSeed = Annotated[int, typer.Option(help="Another seed makes another city.")]


def demo(out: DemoOut = Path("fedsim-demo"), seed: DemoSeed = 7, quiet: Quiet = False, as_json: Json = False) -> None:
    """Generate a city, run coordinator, primary and secondary as processes with certificates, and tell the worth.

    Needs no data and no network beyond this machine; takes under 90 seconds on two cores. Every file it writes is one
    that you would write for a job of your own.
    """
    from fedsim.cli.demo import run_demo

    run_demo(out, check_seed(seed), quiet=quiet, as_json=as_json)


# ``fedsim init``: from two tables to files that train


InitPrimary = Annotated[
    str | None,
    typer.Option(
        metavar="TABLE", help="The primary's table: .csv, .csv.gz, .tsv, .parquet, or sqlite:///flats.db#table."
    ),
]
InitSecondary = Annotated[str | None, typer.Option(metavar="TABLE", help="The secondary's table, where it is at hand.")]
InitOn = Annotated[str, typer.Option(metavar="COLUMNS", help="Columns that link, between commas; guessed without it.")]
InitOnSecondary = Annotated[
    str,
    typer.Option(metavar="COLUMNS", help="The same columns in the secondary's table, where it names them otherwise."),
]
InitLabel = Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of the primary to predict.")]
InitTask = Annotated[str | None, typer.Option(help="regression or classification.")]
InitK = Annotated[int | None, typer.Option("--k", min=1, max=10_000, help="Partners per record; 20 without it.")]
InitTau = Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Noise on the similarities; 0 for none.")]
InitEpochs = Annotated[int | None, typer.Option(min=1, max=100_000, help="Epochs; as the preset has them without it.")]
InitSeparatorSecondary = Annotated[str | None, typer.Option(metavar="CHAR", help="The same for the secondary's table.")]
InitOut = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write; made if it is not there.")]
Yes = Annotated[bool, typer.Option("--yes", help="Ask nothing: take the best guess, and say so.")]
Force = Annotated[bool, typer.Option("--force", help="Replace job and party files; never a key.")]


def init(
    primary: InitPrimary = None,
    secondary: InitSecondary = None,
    on: InitOn = "",
    on_secondary: InitOnSecondary = "",
    label: InitLabel = None,
    task: InitTask = None,
    k: InitK = None,
    tau: InitTau = None,
    epochs: InitEpochs = None,
    separator: Separator = None,
    separator_secondary: InitSeparatorSecondary = None,
    out: InitOut = Path(),
    yes: Yes = False,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Look at the tables, propose how to link and what to learn, and write job.toml and a file for every party.

    With one table alone, that party's file is written, and the job with marks where the other side has to fill in.

    fedsim init --primary flats.csv --secondary rentals.csv --label price
    """
    from fedsim.cli.init import InitRequest, Prompter, run_init

    wishes = InitRequest(
        primary=primary,
        secondary=secondary,
        on=parse_names(on),
        on_secondary=parse_names(on_secondary),
        label=label,
        task=task,
        k=k,
        tau=tau,
        epochs=epochs,
        separators={"primary": separator, "secondary": separator_secondary or separator},
    )
    say = print_nothing if quiet or as_json else typer.echo
    found = run_init(wishes, out, Prompter(_best_guess if yes else _prompt_for_text), force=force, say=say)
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))


def _best_guess(question: str, guess: str) -> str:
    return guess


def _prompt_for_text(question: str, guess: str) -> str:
    answer: str | None = prompt_user(lambda: typer.prompt(question, default=guess or None, err=True))
    if answer is None:
        raise SettingError("nobody answered; say --yes to take the best guess, or answer by options")
    return answer.strip()


# ``fedsim explain``: what a setting of a job or party file means


MAX_WIDTH = 100
MARGIN = 11


class SchemaKind(StrEnum):
    """Files that have a schema."""

    JOB = "job"
    PARTY = "party"


ExplainKey = Annotated[
    str | None, typer.Argument(metavar="[KEY]", help="training.wire, secondaries.NAME.k, tau...; none: all of them.")
]
ExplainSchema = Annotated[
    SchemaKind | None, typer.Option(help="Print the JSON Schema of this kind of file, for editors, and leave.")
]


def explain(
    key: ExplainKey = None,
    schema: ExplainSchema = None,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of JSON objects.")] = False,
) -> None:
    """Say what a setting of a job or party file means, what it may be, its default and an example.

    fedsim explain training.wire
    """
    from fedsim.config.schema import find_settings, list_settings, read_schema_text

    if schema is not None:
        typer.echo(read_schema_text(schema), nl=False)
        return
    found = find_settings(key) if key else list_settings()
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], ensure_ascii=False))
        return
    if quiet:
        return
    for line in _detail_lines(found) if key else _summary_lines(found):
        typer.echo(line)


def _summary_lines(keys: Sequence[SettingDoc]) -> Iterator[str]:
    """A line for every setting, under the file it stands in."""
    for file in SchemaKind:
        yield f"{file} file"
        for key in keys:
            if key.file == file and not key.of_kind:
                yield _truncate(f"  {key.name:<36} {key.meaning}")


def _detail_lines(keys: Sequence[SettingDoc]) -> Iterator[str]:
    for place, key in enumerate(keys):
        if place:
            yield ""
        of_kind = f", kind {key.of_kind}" if key.of_kind else ""
        yield f"{key.name} (in the {key.file} file{of_kind})"
        yield from _wrap("", key.meaning)
        yield from _wrap("type", key.allowed)
        if key.inside:
            yield from _wrap("settings", ", ".join(key.inside))
            continue
        yield from _wrap("default", key.default or ("none: it must be given" if key.required else "left out"))
        yield from _wrap("example", key.example)


def _wrap(name: str, value: str) -> list[str]:
    start, further = f"  {name:<{MARGIN}}" if name else "  ", " " * (MARGIN + 2) if name else "  "
    return textwrap.wrap(
        value, _terminal_width(), initial_indent=start, subsequent_indent=further, break_long_words=False
    )


def _truncate(line: str) -> str:
    return line if len(line) <= _terminal_width() else line[: _terminal_width() - 1].rstrip() + "…"


def _terminal_width() -> int:
    return min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 24)).columns)


# ``fedsim key``: a new secret for the parties to share


def key(
    out: Annotated[Path, typer.Option(help="File to write; it must not exist yet.")],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make a key for `fedsim encode`, readable by you alone.

    Give it to the other parties over a safe way, never to the coordinator.
    """
    from fedsim.linkage.encoding import Key
    from fedsim.storage.files import check_writable

    check_writable(out)
    Key.generate().write(out)
    if as_json:
        typer.echo(json.dumps({"file": str(out)}, ensure_ascii=False))
    elif not quiet:
        typer.echo(f"key in {out}; share it with the other parties over a safe way, never with the coordinator")


# ``fedsim certs``: certificates by which the parties of a job know each other


PartyNames = list[str] | None
CertsOut = Annotated[
    Path, typer.Option(help="Folder to write; an authority that is in it already signs for the new ones.")
]
CertsCoordinator = Annotated[PartyNames, typer.Option(metavar="NAME", help="Name of the coordinator.")]
CertsPrimary = Annotated[PartyNames, typer.Option(metavar="NAME", help="Name of the primary.")]
CertsSecondary = Annotated[PartyNames, typer.Option(metavar="NAME", help="Name of a secondary; repeat it for each.")]
ValidDays = Annotated[int, typer.Option(help="How long the certificates are valid.")]
Renew = Annotated[bool, typer.Option("--renew", help="Replace certificates by later ones; the keys stay the same.")]
ShowFolder = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Only list the certificates of a folder.")]


def certs(
    out: CertsOut = Path("certs"),
    coordinator: CertsCoordinator = None,
    primary: CertsPrimary = None,
    secondary: CertsSecondary = None,
    days: ValidDays = 365,
    renew: Renew = False,
    show: ShowFolder = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make an authority, and a certificate and key for each party, good for its role and name alone.

    fedsim certs --coordinator notary --primary city --secondary rentals --secondary schools
    """
    from fedsim.protocol import certificates

    now, parties = datetime.now(UTC), _parse_parties(coordinator or [], primary or [], secondary or [])
    if show is not None:
        _print_certificates(
            _certificate_rows(_certificate_files(show, parties), show, now), quiet=quiet, as_json=as_json
        )
        return
    if not parties:
        raise SettingError("no party named; give --coordinator, --primary or --secondary a name, or --show a folder")
    written = (
        certificates.renew_certificates(out, parties, now, days)
        if renew
        else certificates.issue_certificates(out, parties, now, days)
    )
    _print_certificates(
        _certificate_rows([path for path in written if path.suffix == ".pem"], out, now), quiet=quiet, as_json=as_json
    )
    if not quiet and not as_json:
        for line in _handover_lines(written, out):
            typer.echo(line)


@dataclass(frozen=True)
class CertificateRow:
    """A certificate: its file, whose it is and how long it is good."""

    file: str
    of: str
    until: datetime
    left: timedelta

    def line(self) -> str:
        """For people."""
        return f"{Path(self.file).name:<28} {self.of:<28} until {self.until:%Y-%m-%d}, {_format_time_left(self.left)}"

    def as_dict(self) -> dict[str, object]:
        """For programs."""
        days = self.left // timedelta(days=1)
        return {"file": self.file, "of": self.of, "until": self.until.isoformat(), "days_left": days}


def _print_certificates(found: Iterator[CertificateRow], *, quiet: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"certificates": [one.as_dict() for one in found]}, ensure_ascii=False))
    elif not quiet:
        for one in found:
            typer.echo(one.line())


def _parse_parties(coordinators: Sequence[str], primaries: Sequence[str], secondaries: Sequence[str]) -> list[Party]:
    from fedsim.protocol.messages import Party, Role

    named = {Role.COORDINATOR: coordinators, Role.PRIMARY: primaries, Role.SECONDARY: secondaries}
    parties = [Party(role, name) for role, names in named.items() for name in names]
    for party in parties:
        if parties.count(party) > 1:
            raise SettingError(f"{party} is named twice; name each party once")
    return parties


def _certificate_files(folder: Path, parties: Sequence[Party]) -> list[Path]:
    if parties:
        raise SettingError("--show only lists certificates; leave it away to make some")
    found = sorted(folder.glob("*.pem"), key=lambda path: (path.stem != "ca", path.name))
    if not found:
        raise FileError(f"no certificates (*.pem) in {folder}; check the path, or make some with --out {folder}")
    return found


def _certificate_rows(paths: Sequence[Path], folder: Path, now: datetime) -> Iterator[CertificateRow]:
    """Whose each certificate is, and for how long."""
    from fedsim.protocol.certificates import authority_files, read_certificates

    authority = read_certificates(authority_files(folder)[0])[0]
    for path in paths:
        certificate = read_certificates(path)[0]
        end = certificate.not_valid_after_utc
        yield CertificateRow(str(path), _certificate_owner(certificate, authority), end, end - now)


def _certificate_owner(certificate: Certificate, authority: Certificate) -> str:
    from fedsim.protocol.certificates import certificate_party, certificate_pem, issued_by

    if certificate == authority:
        return "the authority"
    if not issued_by(certificate, authority):
        return "of another authority"
    try:
        return str(certificate_party(certificate_pem(certificate)))
    except FileError:
        return "of no party"


def _format_time_left(time: timedelta) -> str:
    from fedsim.protocol.tls import RENEWAL_DAYS
    from fedsim.report.formatting import pluralise

    if time < timedelta():
        return "expired"
    days = round(time / timedelta(days=1))
    return f"{pluralise(days, 'day')} left" + (": renew soon" if days < RENEWAL_DAYS else "")


def _handover_lines(written: Sequence[Path], folder: Path) -> Iterator[str]:
    keys = [path.name for path in written if path.suffix == ".key"]
    if keys:
        yield f"all in {folder}: give each party ca.pem and its own .pem and .key over a safe way, no other .key"
    else:
        yield f"all in {folder}: give each party its new .pem; ca.pem and its key stay as they are"
    if "ca.key" in keys:
        yield "ca.key can make anyone a party: it goes to none of them, keep it offline with whoever runs this command"
