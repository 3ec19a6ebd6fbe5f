"""``fedsim certs`` makes, adds, renews and lists, and says who needs which file."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from error_fixtures import raises
from fedsim.errors import FileError, SettingError
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.tls import read_credentials
from fedsim_ops.authority import Authority, issue_certificates, party_files
from fedsim_ops.cli.certs_commands import certs

NOW = datetime.now(UTC)
RENTALS = Party(Role.SECONDARY, "rentals")
EVERYONE = ["--coordinator", "notary", "--primary", "city", "--secondary", "rentals", "--secondary", "schools"]
app = typer.Typer()
app.command()(certs)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place where the command writes its folder ``certs``."""
    monkeypatch.chdir(tmp_path)
    return Path("certs")


def run(*words: str) -> str:
    result: Result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "PRIVATE" not in result.output
    return str(result.output)


def test_everyone_gets_files_that_work(folder: Path) -> None:
    output = run(*EVERYONE)
    assert len(list(folder.iterdir())) == 10
    certificate, key = party_files(folder, RENTALS)
    assert read_credentials(folder / "ca.pem", certificate, key, RENTALS).days_left(NOW) in (89, 90)
    (row,) = (line.split("  ") for line in output.splitlines() if line.startswith("secondary-rentals.pem"))
    cells = [cell.strip() for cell in row if cell.strip()]
    assert cells[1:] == ["secondary 'rentals'", f"{NOW + timedelta(days=90):%Y-%m-%d}", "90 days"]
    assert "ca.key" in output.splitlines()[-1]


def test_a_later_call_adds_a_party_and_keeps_the_authority(folder: Path) -> None:
    run("--secondary", "rentals")
    before = (folder / "ca.pem").read_bytes()
    output = run("--secondary", "schools", "--days", "7")
    assert (folder / "ca.pem").read_bytes() == before
    assert "rentals" not in output
    assert "7 days" in output
    assert "ca.key" not in output


def test_renewal_replaces_a_certificate_and_keeps_its_key(folder: Path) -> None:
    run("--secondary", "rentals", "--days", "7")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    output = run("--secondary", "rentals", "--renew")
    assert [path.name for path, content in before.items() if path.read_bytes() != content] == ["secondary-rentals.pem"]
    assert "90 days" in output


def test_quiet_says_nothing(folder: Path) -> None:
    assert run(*EVERYONE, "--quiet") == ""


def test_a_list_shows_whose_each_certificate_is_and_for_how_long(folder: Path) -> None:
    issue_certificates(folder, [RENTALS, Party(Role.PRIMARY, "city")], NOW - timedelta(days=75))
    issue_certificates(folder, [Party(Role.COORDINATOR, "notary")], NOW - timedelta(days=10), days=5)
    stray = Authority.create(NOW).issue(RENTALS, NOW).certificate
    (folder / "stray.pem").write_bytes(stray)
    lines = run("--show", "certs").splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["ca.pem", "coordinator-notary.pem"]
    assert lines[2].endswith("expired")
    assert "15 days" in lines[3]
    assert lines[5].startswith("stray.pem")
    assert str(RENTALS) not in lines[5]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], "no-party-named"),
        (["--secondary", "a", "--secondary", "a"], "party-named-twice"),
        (["--secondary", "a", "--show", "certs"], "show-with-parties"),
        (["--secondary", "City Hall"], "invalid-party-name"),
        (["--secondary", "a", "--days", "0"], "bad-days"),
        (["--secondary", "a", "--days", "2000"], "days-too-large"),
    ],
)
def test_a_mistaken_call_is_refused_and_nothing_is_written(folder: Path, words: list[str], code: str) -> None:
    with raises(SettingError, code):
        run(*words)
    assert not folder.exists()


def test_a_second_call_for_the_same_party_overwrites_nothing(folder: Path) -> None:
    run("--secondary", "rentals")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with raises(FileError, "file-exists"):
        run("--secondary", "rentals")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("words", "code"),
    [(["--show", "nowhere"], "no-certificates"), (["--out", "file/certs", "--secondary", "a"], "not-writable")],
)
def test_a_folder_that_cannot_be_is_an_error_of_ours(folder: Path, words: list[str], code: str) -> None:
    Path("file").touch()
    with raises(FileError, code):
        run(*words)
