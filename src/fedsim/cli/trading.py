"""The work behind ``fedsim privacy table`` and ``fedsim privacy tradeoff``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import typer

from fedsim.audit.run import prepare
from fedsim.audit.settings import Settings
from fedsim.audit.tables import read_tables
from fedsim.audit.tradeoff import Point, swept
from fedsim.cli.options import names
from fedsim.errors import SettingError
from fedsim.linkage.whole_file import whole_file
from fedsim.party.job import read_job
from fedsim.party.party_file import read_party_file
from fedsim.privacy.bounds import floor, noise_for
from fedsim.privacy.dp import gaussian_epsilon, link_sensitivity
from fedsim.report.page import write_page
from fedsim.report.tradeoff_page import tradeoff_page
from fedsim.report.words import measure

DELTA = 1e-5


@dataclass(frozen=True)
class Row:
    """A bound, the noise it takes, and the epsilon that this gives."""

    tau: float
    sigma: float
    epsilon: float


def tell_table(
    spread: float | None, taus: str, links: int, linkage: tuple[Path | None, Sequence[Path]], *, as_json: bool
) -> None:
    """One line per tau; a spread comes from the caller or from a linkage of the caller's tables."""
    job, parties = linkage
    if (spread is None) == (job is None):
        raise SettingError("the table needs one spread: give --spread, or --job with --party")
    found = _spread_of(job, parties) if job is not None else float(spread or 0.0)
    sensitivity = link_sensitivity(links=links, changed_bits=1, spread=found)
    noises = [(tau, noise_for(tau, found)) for tau in _numbers(taus)]
    rows = [
        Row(tau, sigma, gaussian_epsilon(sigma=sigma, delta=DELTA, sensitivity=sensitivity)) for tau, sigma in noises
    ]
    if as_json:
        figures = {"spread": found, "floor": floor(found), "delta": DELTA, "links": links}
        typer.echo(json.dumps({**figures, "rows": [asdict(row) for row in rows]}))
        return
    typer.echo(f"spread {found:.6g}; no tau at or below {floor(found):.4e} can be promised")
    typer.echo(f"{'tau':<12}{'sigma':<14}epsilon (delta {DELTA:g}, {links} links, filters one bit apart)")
    for row in rows:
        typer.echo(f"{row.tau:<12g}{row.sigma:<14.6g}{row.epsilon:.4g}")
    typer.echo("tau speaks of whole Hamming distances: in metres or degrees it changes with the unit")


def tell_tradeoff(
    job: Path, parties: Sequence[Path], asked: tuple[Sequence[Settings], str], out: Path, *, quiet: bool, as_json: bool
) -> None:
    """Sweep for every seed, write both files, print a table."""
    described, files, (each, sweep) = read_job(job), [read_party_file(path) for path in parties], asked
    points = [point for settings in each for point in swept(described, files, settings, sweep, lambda _: None)]
    page = tradeoff_page(points, title=f"{described.name}: {sweep}")
    write_page(page, out.with_name(f"{out.name}.html"))
    about = {"format": "fedsim tradeoff 1", "job": described.hash, "sweep": sweep}
    found = {**about, "points": [point.as_dict() for point in points]}
    with whole_file(out.with_name(f"{out.name}.json")) as part:
        part.write_text(f"{json.dumps(found, indent=1, allow_nan=False)}\n", encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(found, allow_nan=False))
    elif not quiet:
        _tell(points)
        typer.echo(f"written: {out}.html, {out}.json")


def _tell(points: Sequence[Point]) -> None:
    typer.echo(f"{'setting':<24}{'attacker gains':<16}{'validation ' + points[0].metric:<20}best attack")
    for setting in dict.fromkeys(point.setting for point in points):
        here = [point for point in points if point.setting == setting]
        gain, quality = (float(np.mean([getattr(point, name) for point in here])) for name in ("gain", "quality"))
        attacks = ", ".join(dict.fromkeys(point.attack for point in here))
        typer.echo(f"{setting:<24}{gain:<16.3f}{measure(quality):<20}{attacks}")


def _spread_of(job: Path, parties: Sequence[Path]) -> float:
    described, settings = read_job(job), Settings()
    files = [read_party_file(path) for path in parties]
    tables = read_tables(described, files, settings.most_records, np.random.default_rng([settings.seed, 0]))
    linkage = prepare(described, tables, next(iter(tables.secondaries)), settings)[0].linkage
    return linkage.view.known_scale().deviation


def _numbers(taus: str) -> list[float]:
    try:
        return [float(word) for word in names(taus)]
    except ValueError:
        raise SettingError("--taus is a list of numbers between commas, such as 0.01,0.001") from None
