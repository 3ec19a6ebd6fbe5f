"""The commands ``fedsim approve`` and ``fedsim log``."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from fedsim.cli.job_commands import approve, log
from fedsim.config.job import read_job
from fedsim.config.party_file import read_party_file
from fedsim.config.stored_audit import AUDIT_FORMAT, audit_command, audit_path
from fedsim.errors import FileError, SettingError
from fedsim.protocol.messages import Party, Role
from fedsim.runs.approval import ApprovalError, current_user, find_approval, require_approval
from fedsim.runs.run_folder import read_audit_log
from fedsim_ops.authority import issue_certificates
from init_fixtures import BOTH, TOWN, fedsim

GOLDEN = Path(__file__).parents[2] / "golden"
LOG = "rentals-run/audit.jsonl"
CANARY = "41.987654"


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a job, a party and its table."""
    for name, source in (("job.toml", "job.toml"), ("party.toml", "job_rentals.toml")):
        (tmp_path / name).write_bytes((GOLDEN / source).read_bytes())
    (tmp_path / "rentals.csv").write_text(f"id,latitude,lon,rooms,rent\n1,{CANARY},116,3,9\n2,40,117,2,8\n")
    monkeypatch.chdir(tmp_path)


def run(command: object, *words: str, answer: str = "") -> Result:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, words, input=answer)


def run_approve(*words: str, answer: str = "") -> Result:
    return run(approve, "job.toml", "party.toml", *words, answer=answer)


def is_approved() -> bool:
    return bool(require_approval(read_job(Path("job.toml")), read_party_file(Path("party.toml"))))


def test_the_owner_reads_what_leaves_and_says_yes():
    done = run_approve(answer="y\n")
    assert done.exit_code == 0
    assert "primary 'city'" in done.output
    assert "rooms, rent" in done.output
    assert "[y/N]" in done.output
    assert is_approved()
    assert [entry.what for entry in read_audit_log(Path(LOG))] == ["job approved"]


def audit_paragraph() -> list[str]:
    paragraphs = json.loads(run_approve("--json", "--yes").output)["leaves"]
    (found,) = [paragraph["sentences"] for paragraph in paragraphs if paragraph["heading"].startswith("Audit")]
    return found


def test_the_owner_reads_the_audit_of_exactly_this_job_or_how_to_make_it():
    job, party = read_job(Path("job.toml")), read_party_file(Path("party.toml"))
    assert audit_command(job, party) in audit_paragraph()[0]
    weaker, worst, *others = (
        {
            "about": about,
            "adversary": who,
            "victim": victim,
            "verdict": "kept",
            "leak": leak,
            "attack": name,
            "learns": "places",
        }
        for about, who, victim, leak, name in (
            ("rentals", "primary", "secondary", 0.1, "greedy"),
            ("rentals", "primary", "secondary", 0.4, "trilateration"),
            ("schools", "coordinator", "secondary", 0.9, "order"),
            ("rentals", "coordinator", "primary", 0.9, "names"),
        )
    )
    report = {"format": AUDIT_FORMAT, "hash": job.hash, "tables": [str(party.party)], "headline": "the worst"}
    path = audit_path(job, party)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**report, "findings": [weaker, worst, *others]}))
    headline, *attacks = audit_paragraph()
    assert headline == "the worst"
    assert [("40 %" in text, "trilateration" in text) for text in attacks] == [(True, True)]
    path.write_text(json.dumps({**report, "hash": "0" * 64, "findings": [worst]}))
    assert audit_command(job, party) in audit_paragraph()[0]


@pytest.mark.parametrize("width", [80, 100])
def test_lines_fit_the_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = run_approve(answer="n\n").output
    assert "\nGuarantees of this job\n  - " in shown
    assert max(map(len, shown.splitlines())) <= width


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_anything_but_yes_is_no(answer):
    done = run_approve(answer=answer)
    assert done.exit_code == 2
    assert not Path("rentals-run/approvals").exists()
    assert [entry.what for entry in read_audit_log(Path(LOG))] == ["approval declined"]


def test_programs_get_what_leaves_and_the_answer_while_people_are_asked_aside():
    declined = run_approve("--json", answer="\n")
    found = json.loads(declined.stdout)
    assert (declined.exit_code, found["approved"], found["how"]) == (2, False, "")
    assert "to primary 'city'" in [paragraph["heading"] for paragraph in found["leaves"]]
    assert "[y/N]" in declined.stderr
    for _ in range(2):
        found = json.loads(run_approve("--json", "--yes").output)
        assert found["approved"]
        assert found["how"].startswith("by ")


def test_yes_may_be_said_before_and_is_not_asked_for_twice():
    assert "[y/N]" not in run_approve("--yes").output
    assert run_approve().exit_code == 0
    assert len(list(read_audit_log(Path(LOG)))) == 1


def test_a_job_against_the_policy_cannot_be_approved():
    text = Path("party.toml").read_text(encoding="utf-8").replace("min_candidates = 2", "min_candidates = 3\nmax_k = 4")
    Path("party.toml").write_text(text + 'columns = ["lon", "rent"]\n', encoding="utf-8")
    done = run_approve("--yes")
    assert isinstance(done.exception, SettingError)
    assert done.exception.rules == ["max_k", "columns", "min_candidates"]
    assert done.exception.columns == ["latitude"]
    assert [entry.what for entry in read_audit_log(Path(LOG))] == ["job refused by policy"]


def test_a_column_that_is_not_there_is_told_before_anything_is_written():
    text = Path("party.toml").read_text(encoding="utf-8").replace('"latitude"', '"latitud"')
    Path("party.toml").write_text(text, encoding="utf-8")
    error = run_approve("--yes").exception
    assert (error.code, error.column) == ("missing-column", "latitud")
    assert "'latitude'" in str(error)
    assert not Path("rentals-run").exists()


@pytest.mark.parametrize(
    ("name", "old", "new", "line"),
    [
        ("job.toml", "", "# FILL IN: ranges that cover both tables\n", 1),
        ("party.toml", "", "# FILL IN: ranges that cover both tables\n", 1),
        ("party.toml", '"rentals-run"', '"FILL IN"', 3),
    ],
)
def test_a_file_that_is_not_filled_in_cannot_be_approved(name, old, new, line):
    path = Path(name)
    path.write_text(path.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    error = run_approve("--yes").exception
    assert isinstance(error, SettingError)
    assert (error.code, error.lines) == ("not-filled-in", [line])
    assert name in str(error)
    assert not Path("rentals-run").exists()


@pytest.mark.parametrize(("words", "variable", "name"), [(["--by", "Ada L."], "Bob", "Ada L."), ([], "Bob", "Bob")])
def test_an_approval_names_who_gave_it(monkeypatch, words, variable, name):
    monkeypatch.setenv("FEDSIM_APPROVER", variable)
    assert run_approve("--yes", *words).exit_code == 0
    approval = find_approval(read_job(Path("job.toml")), read_party_file(Path("party.toml")))
    assert approval.by == name
    (entry,) = read_audit_log(Path(LOG))
    assert (entry.facts["by"], entry.facts["account"]) == (name, current_user())
    assert f"by {name} at" in run_approve().output


def test_an_approver_without_a_name_is_asked_for_it(monkeypatch):
    monkeypatch.delenv("FEDSIM_APPROVER", raising=False)
    monkeypatch.setattr("fedsim.cli.agreement.current_user", lambda: "")
    refused = run_approve("--yes").exception
    assert (type(refused), refused.code) == (SettingError, "no-approver")
    assert run_approve(answer="y\nAda\n").exit_code == 0
    assert find_approval(read_job(Path("job.toml")), read_party_file(Path("party.toml"))).by == "Ada"


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "x" * 500, "  "])
def test_a_name_that_cannot_be_shown_is_refused(name):
    refused = run_approve("--yes", "--by", name).exception
    assert (type(refused), refused.code) == (SettingError, "bad-approver")


@pytest.fixture
def _certificates() -> None:
    """The certificate and the key that the party file names."""
    issue_certificates(Path("certs"), [Party(Role.SECONDARY, "rentals")], datetime.now(UTC))


def approval_text() -> str:
    return require_approval(read_job(Path("job.toml")), read_party_file(Path("party.toml")))


def test_an_approval_without_certificates_is_not_signed():
    assert run_approve("--yes").exit_code == 0
    assert approval_text().endswith(", not signed")


@pytest.mark.usefixtures("_certificates")
def test_an_approval_is_signed_with_the_key_of_the_party():
    assert run_approve("--yes", "--by", "Ada").exit_code == 0
    assert approval_text().endswith(", signed")
    (path,) = Path("rentals-run/approvals").iterdir()
    path.write_text(path.read_text().replace('"Ada"', '"Eve"'))
    with pytest.raises(ApprovalError) as caught:
        approval_text()
    assert caught.value.code == "approval-changed"


@pytest.mark.usefixtures("_certificates")
def test_a_signature_under_another_authority_is_shown_as_such():
    assert run_approve("--yes").exit_code == 0
    shutil.rmtree("certs")
    issue_certificates(Path("certs"), [Party(Role.SECONDARY, "rentals")], datetime.now(UTC))
    assert approval_text().endswith(", signed under another authority")


def test_no_record_is_shown_or_kept():
    shown = run_approve("--yes").output + run(log, LOG).output
    kept = "".join(path.read_text(encoding="utf-8") for path in Path("rentals-run").rglob("*.json*"))
    assert CANARY not in shown + kept


def test_the_log_is_shown_and_checked():
    run_approve("--yes")
    shown = run(log, LOG)
    assert shown.exit_code == 0
    assert "secondary 'rentals'" in shown.output
    assert "job approved" in shown.output
    assert "\n1 entry, none changed" in shown.output
    assert "\x1b" not in shown.output


def test_a_log_that_was_changed_is_shown_up_to_there():
    run_approve()
    run_approve("--yes")
    Path(LOG).write_bytes(Path(LOG).read_bytes().replace(b"job approved", b"job Approved"))
    shown = run(log, LOG)
    assert isinstance(shown.exception, FileError)
    assert (shown.exception.code, shown.exception.line) == ("changed-line", 2)
    assert "approval declined" in shown.output


def test_programs_get_one_object():
    run_approve("--yes")
    result = json.loads(run(log, LOG, "--json").output)
    assert result["fault"] is None
    assert result["last"] == result["entries"][-1]["hash"]


def test_levels_are_one_table_with_that_of_the_job_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    TOWN.flats.write_csv("flats.csv")
    TOWN.rentals.write_csv("rentals.csv")
    fedsim("init", *BOTH, "--yes", "--out", "direct")
    words = ["approve", "direct/job.toml", "direct/rentals.toml", "--yes"]
    shown = fedsim(*words)
    (table,) = [each["table"] for each in json.loads(fedsim(*words, "--json"))["leaves"] if each["table"]]
    assert [row[0] for row in table[1:]] == ["averages, m = 10", "rows, m = 5 (this job)", "split"]
    assert max(map(len, shown.partition("Levels")[2].partition("explanations")[0].splitlines())) <= 80
    assert any({"level", "you"} <= {*line.split()} for line in shown.splitlines())
