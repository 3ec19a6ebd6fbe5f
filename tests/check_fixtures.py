"""A job that is ready, changed in one place, and what its check finds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl

from fedsim.preflight.check import CheckReport, check_job
from fedsim.preflight.estimate import NetworkLink
from fedsim.preflight.finding import CheckFinding, CheckLevel
from fedsim.protocol.messages import Party, Role
from fedsim_ops.authority import Authority, party_files
from job_fixtures import change

DAY = timedelta(days=1)


CITY = Party(Role.PRIMARY, "city")


Change = Callable[[Path], object]


def report(folder: Path, *parties: str, now: datetime | None = None, peers: bool = False) -> CheckReport:
    paths = [folder / f"{name}.toml" for name in parties]
    return check_job(folder / "job.toml", paths, link=NetworkLink(), now=now or datetime.now(UTC), call_peers=peers)


def failures(found: CheckReport, level: CheckLevel = CheckLevel.FAILS) -> list[CheckFinding]:
    """Return all findings of a level."""
    return [finding for section in found.sections for finding in section.findings if finding.level is level]


def warnings(found: CheckReport) -> list[CheckFinding]:
    return failures(found, CheckLevel.WARNING)


def assert_found(findings: list[CheckFinding], check: str, code: str, *words: str) -> None:
    """Assert that a finding has this check and code, a fix, and these words (names and numbers) in its text."""
    matching = [finding for finding in findings if finding.check == check and code in ("", finding.code)]
    texts = [f"{finding.result} -> {finding.fix}" for finding in matching]
    assert any(all(word in text for word in words) for text in texts), findings
    assert all(finding.fix for finding in matching)


def column(folder: Path, table: str, name: str, cells: object) -> None:
    """Put other cells into a column."""
    path = folder / table
    frame = pl.read_csv(path, infer_schema=False)
    frame.with_columns(pl.Series(name, cells, dtype=pl.String)).write_csv(path)


def cell(folder: Path, table: str, name: str, row: int, word: str | None) -> None:
    """Put another word into one cell; rows count from 1."""
    cells = pl.read_csv(folder / table, infer_schema=False)[name].to_list()
    cells[row - 1] = word
    column(folder, table, name, cells)


def with_commas(folder: Path, table: str, name: str) -> None:
    cells = pl.read_csv(folder / table, infer_schema=False)[name].str.replace(".", ",", literal=True)
    column(folder, table, name, cells.to_list())


def renamed(name: str, old: str, new: str) -> Change:
    return lambda folder: change(folder / name, old, new)


def first_lines(name: str, count: int) -> Change:
    def cut(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:count]))

    return cut


def certified(party: Party, days: int, ago: int) -> Change:
    """Return a certificate of the city that was issued some days ago and is valid for ``days`` days."""

    def put(folder: Path) -> None:
        then = datetime.now(UTC) - ago * DAY
        authority = Authority.create(then)
        pair = authority.issue(party, then, days)
        certificate, key = party_files(folder / "certs", CITY)
        (folder / "certs" / "ca.pem").write_bytes(authority.pair.certificate)
        certificate.write_bytes(pair.certificate)
        key.write_bytes(pair.key)

    return put
