"""What a peer, a job file or a table is called controls no terminal, forges no line and reaches no page."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from error_fixtures import raises
from fedsim.cli import main
from fedsim.cli.app import app
from fedsim.cli.options import OutputMode
from fedsim.cli.party import set_up_logging
from fedsim.config import Job, read_party_file
from fedsim.config.settings_schema import to_toml
from fedsim.config.toml_file import ConfigFileError
from fedsim.data.synthetic import city
from fedsim.data.table_reader import read_table
from fedsim.errors import FedSimError, InputError, replace_unprintable
from fedsim.protocol import messages as m
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.session import PartyFailure
from fedsim.report.page import Figure, FigureGroup, mark_code, render_template
from fedsim.report.svg import element
from fedsim.runs.run_folder import AuditLog
from session_fixtures import CITY, RENTALS, frame_of, session_of

HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\x00\x7f\u202e\u2066\u200b\u2028\r\nfake line\ud800"
NAME = HOSTILE.replace("\x00", "").replace("\ud800", "")  # neither can be in a text file


def assert_harmless(text: str, *, lines: int | None = None) -> None:
    """Check that nothing but line feeds is unprintable, and that there are no more lines than expected."""
    found = sorted({char for line in text.split("\n") for char in line if not char.isprintable()})
    assert not found, text[:2000]
    assert lines is None or text.count("\n") <= lines


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables whose columns and categories have hostile names."""
    folder = tmp_path_factory.mktemp("hostile")
    tables = city(np.random.default_rng(3), flats=120, rentals=80)
    for name in ("flats", "rentals"):
        table: pl.DataFrame = getattr(tables, name)
        kinds = pl.Series("kind" + NAME, [f"{'old' if row % 2 else 'new'}{NAME}" for row in range(len(table))])
        table = table.rename({"area": "area" + NAME} if name == "flats" else {"rooms": "rooms" + NAME})
        table.with_columns(kinds).write_csv(folder / f"{name}.csv")
    return folder


# --- from tables to every command and file ------------------------------------------------------------------------

COMMANDS = [
    "init --primary flats.csv --secondary rentals.csv --label price --yes --dry-run",
    "init --primary flats.csv --secondary rentals.csv --label price --k 4 --epochs 2 --yes --out job",
    "link --primary flats.csv --secondary rentals.csv --on lat,lon --metric great-circle --k 3 --out links.parquet",
    "certs --out job/certs --primary flats --secondary rentals",
    "approve job/job.toml job/flats.toml --yes",
    "approve job/job.toml job/rentals.toml --yes",
    "check job/job.toml job/flats.toml job/rentals.toml --verbose",
    "train job/job.toml job/flats.toml job/rentals.toml",
    "runs job",
    "report job/flats-run",
    "privacy log job/flats-run/audit.jsonl",
    "privacy log job/rentals-run/audit.jsonl --json",
    "privacy ledger job/rentals.toml",
    "privacy governance job/job.toml job/rentals.toml --out governance.md",
]


def test_names_in_tables_reach_neither_the_terminal_nor_a_page_or_file(place, monkeypatch):
    monkeypatch.chdir(place)
    for command in COMMANDS:
        done = CliRunner().invoke(app, command.split())
        assert done.exit_code == 0, (command, done.output, done.exception)
        assert_harmless(done.output)
        assert "\nfake line" not in done.output
    pages = {path for path in place.rglob("*") if path.suffix in (".html", ".md", ".toml", ".jsonl")}
    assert {path.suffix for path in pages} == {".html", ".md", ".toml", ".jsonl"}
    for path in pages:
        assert_harmless(path.read_text(encoding="utf-8"))
    assert "area" in read_party_file(place / "job" / "flats.toml").path.read_text()


@pytest.mark.parametrize("suffix", ["csv", "parquet", "sqlite"])
def test_columns_have_the_names_that_are_shown(tmp_path, suffix):
    table, path = pl.DataFrame({"price" + NAME: ["1"]}), tmp_path / f"table.{suffix}"
    source = str(path)
    if suffix == "csv":
        table.write_csv(path)
    elif suffix == "parquet":
        table.write_parquet(path)
    else:
        with sqlite3.connect(path) as database:
            database.execute(f'create table t ("price{NAME}" text)')
            database.execute("insert into t values ('1')")
        source = f"sqlite:///{path}#t"
    assert read_table(source).columns == [replace_unprintable("price" + NAME)]
    assert read_table(source, [replace_unprintable("price" + NAME)]).shape == (1, 1)
    with raises(InputError, "missing-column") as caught:
        read_table(source, ["prize" + NAME])
    assert_harmless(str(caught.value), lines=0)


# --- job files and party files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["field", "encoding", "setting", "name", "address"])
def test_a_job_file_with_control_characters_is_refused_without_showing_them(at):
    job = {
        "name": "flats",
        "coordinator": {"name": "notary", "address": "127.0.0.1:7411"},
        "primary": {"name": "city", "address": "127.0.0.1:7412"},
        "task": {"kind": "regression"},
        "secondaries": {
            "rentals": {
                "k": 20,
                "schema": {"version": 1, "fields": [{"column": "name", "encoding": {"kind": "string"}}]},
            }
        },
    }
    assert Job.from_dict(job)
    field = job["secondaries"]["rentals"]["schema"]["fields"][0]
    target, key = {
        "field": (field, "column"),
        "encoding": (field["encoding"], "kind"),
        "setting": (job["task"], "kind"),
        "name": (job["primary"], "name"),
        "address": (job["coordinator"], "address"),
    }[at]
    target[key] += NAME
    with pytest.raises(ConfigFileError) as caught:
        Job.from_dict(job)
    assert caught.value.code == "unprintable-text"
    assert_harmless(str(caught.value), lines=0)
    assert_harmless("".join(fault.message for fault in caught.value.faults), lines=0)


PARTY_FILE = """
name = "rentals"
role = "secondary"
folder = "rentals-run"
[data]
path = {path}
[features]
drop = [{column}]
[{section}]
{setting} = 1
"""


@pytest.mark.parametrize("at", ["path", "column", "section", "setting"])
def test_faults_of_a_party_file_show_no_control_characters(tmp_path, at, capsys):
    names = {"path": "rentals.csv", "column": "id", "section": "policy", "setting": "max_k"}
    names[at] += NAME
    (tmp_path / "rentals.toml").write_text(PARTY_FILE.format(**{key: to_toml(text) for key, text in names.items()}))
    for words in (["explain"], ["approve", "job.toml"]):
        with pytest.raises(SystemExit):
            main([*words, str(tmp_path / "rentals.toml"), "--debug"])
        output = capsys.readouterr()
        assert_harmless(output.out + output.err)
        assert "\nfake line" not in output.out + output.err


# --- peers ---------------------------------------------------------------------------------------------------------

WORDS = {
    "trouble": m.Trouble("coordinator " + NAME, NAME, passing=False),
    "notice": m.Notice(NAME),
    "an unexpected kind": m.Refusal(NAME, passing=False),
}


@pytest.fixture
def log_lines(capsys, monkeypatch):
    """What the process of a party has logged, in both forms."""
    logger = logging.getLogger("fedsim")
    monkeypatch.setattr(logger, "propagate", False)  # pytest's report of logs cannot hold half a surrogate pair
    before = logger.handlers, logger.level

    def lines(form: str, work) -> str:
        set_up_logging("city", OutputMode(verbose=True), logs=form)
        work()
        return capsys.readouterr().err

    yield lines
    logger.handlers, logger.level = before


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("words", WORDS)
def test_words_of_a_peer_are_logged_on_one_harmless_line(log_lines, form, words):
    session = session_of(CITY, RENTALS)

    def hear() -> None:
        session._take(frame_of(WORDS[words]))

    def guarded() -> None:
        try:
            hear()
        except FedSimError as error:
            logging.getLogger("fedsim.parties").warning("%s", error)
        if failure := session.connection.stop_signal.failure:
            logging.getLogger("fedsim.parties").warning("%s", failure.to_error())

    output = log_lines(form, guarded)
    assert_harmless(output, lines=1)
    assert output


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_log_line_of_any_origin_stays_one_line(log_lines, form):
    def fail() -> None:
        log = logging.getLogger("fedsim.parties")
        log.warning("column %s: " + HOSTILE, HOSTILE, extra={"fields": {HOSTILE: HOSTILE}})
        try:
            int(HOSTILE)
        except ValueError:
            log.exception("failed")

    output = log_lines(form, fail)
    assert_harmless(output)
    assert output.splitlines()[0].count("fake line") >= 2


def test_an_invalid_party_name_is_shown_harmlessly():
    with pytest.raises(FedSimError) as caught:
        Party(Role.PRIMARY, "city" + HOSTILE)
    assert_harmless(str(caught.value), lines=0)
    assert_harmless(str(PartyFailure("city" + HOSTILE, HOSTILE, passing=False).to_error()), lines=0)


def test_the_audit_log_keeps_what_a_peer_said_in_printable_lines(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl", CITY)
    log.append("refused", {"peer": HOSTILE, "reason": HOSTILE, "versions": json.dumps({HOSTILE: HOSTILE})})
    assert_harmless(log.path.read_bytes().decode("ascii"), lines=1)
    done = CliRunner().invoke(app, ["privacy", "log", str(log.path)])
    assert_harmless(done.output)
    assert "\nfake line" not in done.output


# --- pages and errors ----------------------------------------------------------------------------------------------


def test_a_page_and_a_notebook_show_no_control_characters():
    picture = element("text", HOSTILE, aria_label=HOSTILE)
    figure = Figure(HOSTILE, HOSTILE, picture, (HOSTILE,), ((HOSTILE,),), (HOSTILE,))
    about = {"subject": HOSTILE, "lead": mark_code(HOSTILE), "content": HOSTILE}
    assert_harmless(render_template("figures_page.html", title=HOSTILE, figures=[figure], **about))
    assert_harmless(FigureGroup(HOSTILE, (figure,))._repr_html_())


def test_an_error_is_one_harmless_line_wherever_it_was_raised(monkeypatch, capsys):
    for kind in FedSimError.__subclasses__():
        if kind is not ConfigFileError:
            assert_harmless(str(kind(f"column '{HOSTILE}' is missing")), lines=0)
    monkeypatch.setattr("fedsim.cli.app.app", _fail)
    for words in ([], ["--debug"]):
        with pytest.raises(SystemExit):
            main(words)
        assert_harmless(capsys.readouterr().err)


def _fail(**_: object) -> None:
    raise ValueError(HOSTILE + os.linesep)
