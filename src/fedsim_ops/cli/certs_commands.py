"""Make keys, and issue, sign, list and revoke certificates (``fedsim certs``)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.cli.options import Json, OutputMode, Quiet, SectionedGroup, argument, flag, option
from fedsim.errors import FileError, SettingError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

NamesOption = list[str] | None
RoleOption = Annotated[str, option("ROLE", "Role of the party: coordinator, primary, secondary or relay.")]
AuthorityFolder = Annotated[Path, option("FOLDER", "Folder of the authority.")]

app = typer.Typer(no_args_is_help=False, invoke_without_command=True, rich_markup_mode=None, cls=SectionedGroup)


@app.command()
def key(
    out: Annotated[Path, option("FILE", "File to write; it must not exist yet.")],
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


@app.callback()
def certs(
    context: typer.Context,
    out: Annotated[
        Path, option("FOLDER", "Folder to write to; if it has an authority, that one signs the certificates.")
    ] = Path("certs"),
    coordinator: Annotated[NamesOption, option("NAME", "Name of the coordinator.")] = None,
    primary: Annotated[NamesOption, option("NAME", "Name of the primary.")] = None,
    secondary: Annotated[NamesOption, option("NAME", "Name of a secondary; may be repeated.")] = None,
    relay: Annotated[NamesOption, option("NAME", "Name of a relay, for `fedsim relay`.")] = None,
    days: Annotated[int, option("N", "Days until the certificates expire.")] = 90,
    renew: Annotated[bool, flag("Replace certificates by new ones for the same keys.", "--renew")] = False,
    show: Annotated[Path | None, option("FOLDER", "List the certificates of a folder.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Create the certificates and keys of all parties in one place, for tests, or request and sign them one by one.

    Without a subcommand, all keys are created in one folder. Between organisations, every party creates its own key:
    see `fedsim certs request` and `sign`.

    fedsim certs --coordinator notary --primary city --secondary rentals
    """
    if context.invoked_subcommand:
        return
    named = {"coordinator": coordinator, "primary": primary, "secondary": secondary, "relay": relay}
    names, mode = [(role, name) for role, listed in named.items() for name in listed or []], OutputMode(quiet, as_json)
    if show is None:
        _issue(names, out, days, mode, renew=renew)
    elif names:
        raise SettingError("--show lists certificates; omit it to create some", code="show-with-parties")
    else:
        _list(show, mode)


def _issue(names: Sequence[tuple[str, str]], out: Path, days: int, mode: OutputMode, *, renew: bool) -> None:
    """Issue or renew the certificates of the named parties."""
    from fedsim.protocol.messages import Party, Role
    from fedsim_ops.authority import issue_certificates, renew_certificates

    parties = [Party(Role(role), name) for role, name in names]
    if not parties:
        message = "no party named; use --coordinator, --primary, --secondary or --relay, or --show with a folder"
        raise SettingError(message, code="no-party-named")
    repeated = [party for party in parties if parties.count(party) > 1]
    if repeated:
        raise SettingError(f"{repeated[0]} is named twice; name each party once", code="party-named-twice")
    written = (renew_certificates if renew else issue_certificates)(out, parties, datetime.now(UTC), days)
    _print_certificates([path for path in written if path.suffix == ".pem"], out, mode)
    if mode.silent:
        return
    keys = [path.name for path in written if path.suffix == ".key"]
    if keys:
        typer.echo(f"Wrote {out}. Send each party ca.pem and its own .pem and .key over a secure channel.")
        typer.echo("Between organisations, let every party make its own key: fedsim certs request.")
    else:
        typer.echo(f"Wrote {out}. Send each party its new .pem; ca.pem and the keys are unchanged.")
    if "ca.key" in keys:
        typer.echo("Keep ca.key offline: it can certify anyone as a party. No party needs it.")


@app.command()
def request(
    role: RoleOption,
    name: Annotated[str, option("NAME", "Name of the party.")],
    out: Annotated[Path, option("FOLDER", "Folder to write to.")] = Path("certs"),
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Create a party's key and a signing request for the authority; the key never leaves this machine.

    fedsim certs request --role secondary --name rentals
    """
    from fedsim.protocol.messages import Party, Role
    from fedsim_ops.authority import create_request

    if role not in tuple(Role):
        raise SettingError(f"--role {role[:40]}; choose {', '.join(Role)}", code="unknown-role")
    path, fingerprint = create_request(out, Party(Role(role), name))
    advice = f"Send {path.name} to the authority, and the fingerprint by another channel."
    text = f"Wrote {path} and its key.\nfingerprint {fingerprint}\n{advice} The key stays here."
    facts = {"request": str(path), "fingerprint": fingerprint}
    OutputMode(quiet, as_json).show(facts, lambda: typer.echo(text))


@app.command()
def sign(
    request: Annotated[Path, argument("REQUEST", "Request of a party (.csr).")],
    out: AuthorityFolder = Path("authority"),
    days: Annotated[int, option("N", "Days until the certificate expires.")] = 90,
    fingerprint: Annotated[
        str | None,
        option("HEX", "Expected fingerprint of the key, from its owner; a different key is rejected."),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Sign a party's request as the authority, which is created on first use.

    Choose an authority that all parties trust to identify them, not the coordinator: a coordinator that can certify
    itself as any party could read everything that the parties send each other.

    fedsim certs sign secondary-rentals.csr --out authority
    """
    from fedsim_ops.authority import key_fingerprint, read_request, sign_request

    mode = OutputMode(quiet, as_json)
    written = sign_request(out, request, datetime.now(UTC), days, fingerprint)
    _print_certificates([path for path in written if path.suffix == ".pem"], out, mode)
    if mode.silent:
        return
    if fingerprint is None:
        found = key_fingerprint(read_request(request)[0])
        typer.echo(f"fingerprint {found}: compare it with the owner's before you send the certificate.")
    typer.echo(f"Send ca.pem and {written[-1].name} to the party. Keep ca.key offline: it can certify anyone.")


@app.command()
def revoke(
    certificates: Annotated[list[Path], argument("CERTIFICATE...", "Certificates to revoke (.pem).")],
    out: AuthorityFolder = Path("authority"),
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Add certificates to the authority's revocation list, which party files name as `revoked` in [tls].

    fedsim certs revoke authority/secondary-rentals.pem --out authority
    """
    from fedsim_ops.authority import revoke_certificates

    written = revoke_certificates(out, certificates, datetime.now(UTC))
    advice = "Send it to all parties; each names it as tls.revoked in its party file. Other certificates stay valid."
    OutputMode(quiet, as_json).show({"file": str(written)}, lambda: typer.echo(f"Wrote {written}. {advice}"))


def _list(folder: Path, mode: OutputMode) -> None:
    """List the certificates of a folder, the authority first."""
    paths = sorted(folder.glob("*.pem"), key=lambda path: (path.stem != "ca", path.name))
    if not paths:
        message = f"no certificates (*.pem) in {folder}; check the path, or create some with --out {folder}"
        raise FileError(message, code="no-certificates")
    _print_certificates(paths, folder, mode)


def _print_certificates(paths: Sequence[Path], folder: Path, mode: OutputMode) -> None:
    from fedsim.cli.output import print_table
    from fedsim.protocol.certificates import read_certificates
    from fedsim.protocol.tls import RENEWAL_DAYS
    from fedsim.report.formatting import pluralise
    from fedsim_ops.authority import authority_files

    authority = read_certificates(authority_files(folder)[0])[0]
    values, rows = [], []
    for path in paths:
        certificate = read_certificates(path)[0]
        end = certificate.not_valid_after_utc
        left, owner = end - datetime.now(UTC), _certificate_owner(certificate, authority)
        facts = {"file": str(path), "of": owner, "until": end.isoformat(), "days_left": left // timedelta(days=1)}
        values.append(facts)
        days = round(left / timedelta(days=1))
        lasts = pluralise(days, "day") + (", renew soon" if days < RENEWAL_DAYS else "")
        rows.append((path.name, owner, f"{end:%Y-%m-%d}", "expired" if left < timedelta() else lasts))
    mode.show({"certificates": values}, lambda: print_table(("file", "party", "expires", "time left"), rows))


def _certificate_owner(certificate: Certificate, authority: Certificate) -> str:
    from fedsim.protocol.certificates import issued_by, named_party

    if certificate == authority:
        return "the authority"
    if not issued_by(certificate, authority):
        return "of another authority"
    try:
        return str(named_party(certificate))
    except FileError:
        return "of no party"
