"""``fedsim audit`` and the tables of ``fedsim privacy``, as a user types them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from fedsim.cli import main
from job_fixtures import lay_out


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fedsim(monkeypatch, *words) -> int:
    monkeypatch.setattr("sys.argv", ["fedsim", *words])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code or 0


def test_an_audit_prints_its_worst_finding_first_and_writes_both_files(folder, monkeypatch, capsys):
    assert fedsim(monkeypatch, "audit", "job.toml", "city.toml", "rentals.toml", "--quick") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("tau=0.05")
    assert len(printed) <= 110  # where the path of the page is long, too
    found = json.loads((folder / "audit.json").read_text())
    assert found["format"] == "fedsim audit 3"
    assert (folder / "audit.html").read_text().startswith("<!doctype html>")
    for party in ("city", "rentals"):  # where the owner finds it before approving, and the report after training
        assert json.loads((folder / f"{party}-run" / "audits" / f"{found['hash']}.json").read_text()) == found


def test_an_audit_fits_into_a_terminal_of_80_columns(folder, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    fedsim(monkeypatch, "audit", "job.toml", "city.toml", "rentals.toml", "--quick")
    printed = [re.sub(r"\x1b\[[\d;]*m", "", line).rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, printed)) <= 80
    assert {"by the primary", "by the secondary"} <= set(printed)
    assert not any("…" in line or "..." in line for line in printed)


def test_a_limit_that_is_exceeded_ends_with_two_and_a_generous_one_does_not(folder, monkeypatch):
    words = ("audit", "job.toml", "city.toml", "rentals.toml", "--quick", "-q", "--fail-above")
    assert fedsim(monkeypatch, *words, "0.01") == 2
    assert fedsim(monkeypatch, *words, "0.9999999") == 0


def test_bad_words_are_told_and_nothing_is_written(folder, monkeypatch, capsys):
    assert fedsim(monkeypatch, "audit", "job.toml", "notary.toml") == 2
    assert "table" in capsys.readouterr().err
    (folder / "job.toml").write_text((folder / "job.toml").read_text().replace("tau = 0.05", "tau = 1.5"))
    assert fedsim(monkeypatch, "audit", "job.toml", "city.toml", "rentals.toml") == 2
    assert "tau" in capsys.readouterr().err
    assert not list(folder.glob("audit.*"))


def test_the_table_lists_noise_and_epsilon_for_every_tau(folder, monkeypatch, capsys):
    assert fedsim(monkeypatch, "privacy", "table", "--spread", "21178.86", "--taus", "0.01") == 0
    assert "0.00188" in capsys.readouterr().out
    words = ("privacy", "table", "--job", "job.toml", "--party", "city.toml", "--party", "rentals.toml")
    assert fedsim(monkeypatch, *words, "--taus", "0.05") == 0
    assert "bayes" in capsys.readouterr().out
    assert fedsim(monkeypatch, "privacy", "table", "--spread", "100", "--taus", "2") == 2
    assert fedsim(monkeypatch, "privacy", "table") == 2


def test_the_table_of_a_job_has_the_exact_success_of_who_knows_its_distances(folder, monkeypatch, capsys):
    words = ("privacy", "table", "--job", "job.toml", "--party", "city.toml", "--party", "rentals.toml", "--json")
    assert fedsim(monkeypatch, *words, "--taus", "0.5,0.05") == 0
    loose, tight = json.loads(capsys.readouterr().out)["rows"]
    assert 0 < tight["bayes"] < loose["bayes"] < 1


def test_a_tradeoff_has_a_point_for_every_setting(folder, monkeypatch, capsys):
    words = ("lab", "tradeoff", "job.toml", "city.toml", "rentals.toml", "--epochs", "1", "--sweep")
    assert fedsim(monkeypatch, *words, "features") == 0
    points = json.loads((folder / "tradeoff.json").read_text())["points"]
    assert points[-1]["gain"] < points[0]["gain"]
    assert fedsim(monkeypatch, *words, "colour") == 2


def test_a_demanded_audit_is_the_one_that_the_refusal_names(folder, monkeypatch, capsys):
    party = folder / "rentals.toml"
    party.write_text(party.read_text().replace("[policy]", "[policy]\naudit = { limit = 0.99999 }"))
    assert fedsim(monkeypatch, "approve", "job.toml", "rentals.toml", "--yes") == 2
    refused = capsys.readouterr().err
    assert "0.99999" in refused
    command = shlex.split(refused.partition("fedsim audit`: ")[2])
    assert command[:2] == ["fedsim", "audit"]
    assert fedsim(monkeypatch, *command[1:], "--quick", "-q") == 0
    assert fedsim(monkeypatch, "approve", "job.toml", "rentals.toml", "--yes") == 2
    assert "quick" in capsys.readouterr().err
    assert fedsim(monkeypatch, *command[1:], "-q") == 0
    assert fedsim(monkeypatch, "approve", "job.toml", "rentals.toml", "--yes") == 0


def test_check_names_the_command_of_a_demanded_audit(folder, monkeypatch, capsys):
    party = folder / "rentals.toml"
    party.write_text(party.read_text().replace("[policy]", "[policy]\naudit = { limit = 0.3 }"))
    fedsim(monkeypatch, "check", "job.toml", "rentals.toml", "-q")
    assert "fedsim audit job.toml city.toml rentals.toml" in capsys.readouterr().err


def test_a_sweep_of_tau_leaves_out_what_no_noise_reaches(folder, monkeypatch):
    words = ("lab", "tradeoff", "job.toml", "city.toml", "rentals.toml", "--epochs", "1", "--most-records", "120")
    assert fedsim(monkeypatch, *words, "--sweep", "tau", "-q") == 0
    settings = [point["setting"] for point in json.loads((folder / "tradeoff.json").read_text())["points"]]
    assert settings[:3] == ["no tau", "tau 0.5", "tau 0.1"]
    assert "tau 0.0001" not in settings


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("city.toml", "rentals.toml", "rentals.toml"), "secondary 'rentals'"),
        (("city.toml", "rentals.toml", "--out", ""), "is not a file name"),
        (("city.toml", "rentals.toml", "--out", "/proc/nowhere/audit"), "choose another --out"),
        (("city.toml", "rentals.toml", "--out", "flats.csv/audit"), "choose another --out"),
    ],
)
def test_files_named_twice_or_nothing_to_write_to_are_told(folder, monkeypatch, capsys, words, message):
    assert fedsim(monkeypatch, "audit", "job.toml", *words, "--quick") == 2
    assert message in capsys.readouterr().err
    assert not list(folder.glob("audit.*"))
