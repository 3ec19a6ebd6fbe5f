"""The privacy-utility trade-off: vary one protection, attack every setting, and measure what it costs the model."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer

from fedsim.cli.options import OutputMode
from fedsim.cli.output import print_table, write_json
from fedsim.config import Job, PartyFile, read_job, read_party_file
from fedsim.config.job import Blur, FeatureTerms, Protection
from fedsim.config.stored_audit import AttackKind
from fedsim.errors import SettingError
from fedsim.privacy.bounds import lowest_bound
from fedsim.report import page, svg
from fedsim.report.formatting import format_number
from fedsim.report.page import write_page
from fedsim.training.data import Metrics
from fedsim_audit import audit_report, audit_run, linkage_attacks, split_attacks

TAU_LEVELS = (0.5, 0.1, 0.05, 0.02, 0.01, 0.001, 0.0001)
BLUR_EPSILONS = (100.0, 30.0, 10.0, 5.0, 2.0, 1.0, 0.5)  # per kilometre
NOISE_LEVELS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
QUALITY_METRICS = ("rmse", "auc", "accuracy")  # the first that a task has is used
# The mechanisms that can be swept, and the attacks that each of them should stop.
SWEEPS = {
    "tau": (AttackKind.DISTANCES, AttackKind.LIKELIHOOD),
    "blur": (AttackKind.LOCATION,),
    "features": (AttackKind.INVERSION,),
}
EDGE_SHARE = 0.2


@dataclass(frozen=True)
class TradeoffPoint:
    """One setting under one seed: the best attack on what the mechanism protects, and the quality of the model."""

    setting: str
    seed: int
    gain: float
    attack: str
    metric: str
    quality: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def sweep_mechanism(
    job: Job,
    files: Sequence[PartyFile],
    settings: audit_report.AuditSettings,
    sweep: str,
    progress: Callable[[str], None],
) -> list[TradeoffPoint]:
    """Measure the attacker's gain and the model's quality at every setting of one mechanism, starting without it."""
    if sweep not in SWEEPS:
        message = f"sweep='{sweep}' is not a mechanism; choose from {', '.join(SWEEPS)}"
        raise SettingError(message, code="unknown-sweep", known=tuple(SWEEPS))
    tables = audit_run.read_audit_tables(job, files, settings.most_records, np.random.default_rng([settings.seed, 0]))
    audited, _ = audit_run.prepare_audit(job, tables, next(iter(tables.secondaries)), settings)
    if audited.inputs is None:
        message = "a trade-off needs labels to train on; pass the primary's party file, too"
        raise SettingError(message, code="labels-missing")
    points = []
    for name, linkage, protection in _sweep_settings(audited, settings, sweep):
        progress(name)
        rng = np.random.default_rng([settings.seed, 6])
        transcript = split_attacks.record_training(audited.inputs, linkage, settings.epochs, protection)
        attacks = [
            *linkage_attacks.primary_attacks(linkage, settings, rng),
            *split_attacks.training_attacks(transcript, audited.inputs, linkage, rng),
        ]
        rows, _ = audit_report.run_attacks(
            "", [attack for attack in attacks if attack.kind in SWEEPS[sweep]], settings.memory
        )
        best = max(rows, key=lambda row: row.found.advantage).found
        quality = model_quality(transcript.metrics)
        points.append(TradeoffPoint(name, settings.seed, best.advantage, best.attack, *quality))
    return points


def _sweep_settings(
    audited: audit_run.PreparedAudit, settings: audit_report.AuditSettings, sweep: str
) -> list[tuple[str, linkage_attacks.AuditedLinkage, Protection]]:
    setup, plain = audited.setup, audited.setup.linkage(tau=None, sigma=None, blur=None)
    points = [(f"no {sweep}", plain, Protection())]
    if sweep == "tau":
        if (metric := plain.terms.metric) != "hamming":
            message = f"tau applies to hamming distances, but the metric is {metric}; sweep another mechanism"
            raise SettingError(message, code="tau-needs-hamming", metric=metric)
        least = lowest_bound(plain.view.known_scale().deviation)  # no noise reaches a tau at or below it
        levels = [tau for tau in TAU_LEVELS if tau > least]
        points += [(f"tau {tau:g}", setup.linkage(tau=tau, sigma=None), Protection()) for tau in levels]
    elif sweep == "blur":
        for epsilon in BLUR_EPSILONS:
            linkage = setup.linkage(tau=None, sigma=None, blur=make_blur(setup, epsilon))
            points.append((f"epsilon per km {epsilon:g}", linkage, Protection()))
    else:
        for noise in NOISE_LEVELS:
            points.append((f"noise {noise:g}", plain, Protection(features=FeatureTerms(noise=noise))))
    return points


def make_blur(setup: linkage_attacks.AttackSetup, epsilon_per_km: float) -> Blur:
    """Return the blur of the linkage's places."""
    if setup.place_columns is None:
        message = "no identifiers are latitude and longitude, so there is nothing to blur; sweep another mechanism"
        raise SettingError(message, code="no-places")
    return Blur(latitude=setup.place_columns[0], longitude=setup.place_columns[1], epsilon_per_km=epsilon_per_km)


def model_quality(metrics: Metrics) -> tuple[str, float]:
    """Return the metric that judges a training, with its value."""
    name = next(name for name in QUALITY_METRICS if name in metrics)
    return name, metrics[name]


def tradeoff_page(points: Sequence[TradeoffPoint], *, title: str) -> str:
    """Return a self-contained HTML page about a sweep: quality versus the attacker's gain, one line per seed."""
    metric, qualities = points[0].metric, [point.quality for point in points]
    x, y = svg.x_scale(0.0, 1.0), svg.y_scale(*svg.nice_range(min(qualities), max(qualities)))
    parts = [svg.left_axis(y, f"validation {metric}"), svg.bottom_axis(x, "gain of the best attack")]
    for seed in dict.fromkeys(point.seed for point in points):
        here = [point for point in points if point.seed == seed]
        parts.append(svg.path([(x(point.gain), y(point.quality)) for point in here], class_="line"))
        for point in here:
            words = f"{point.setting}: gain {format_number(point.gain)}, {metric} {format_number(point.quality)}"
            parts.append(svg.dot(x(point.gain), y(point.quality), 4.5, words))
    for point in (points[0], points[-1]):  # labels stay inside the figure
        outer = "start" if point.gain < EDGE_SHARE else "end"
        anchor = "middle" if EDGE_SHARE <= point.gain <= 1.0 - EDGE_SHARE else outer
        parts.append(svg.text(point.setting, x(point.gain), y(point.quality) - 8, anchor=anchor))
    heading, better = "The price of protection", "lower" if metric == "rmse" else "higher"
    caption = f"Further left is safer, {better} is a better model. A gain of 0 is blind guessing, 1 is certainty."
    rows = tuple((p.setting, format_number(p.gain), format_number(p.quality), p.attack) for p in points)
    head = ("setting", "gain", metric, "best attack")
    figure = page.Figure(heading, caption, svg.image(heading, f"{len(points)} settings", parts), head, rows)
    lead = "Every setting was trained for a few epochs and attacked, on the tables of the parties themselves."
    about = {"subject": "trade-off", "lead": lead, "content": "success rates"}
    return page.render_template("figures_page.html", title=title, figures=[figure], **about)


def run_tradeoff(
    job_path: Path,
    parties: Sequence[Path],
    plan: tuple[Sequence[audit_report.AuditSettings], str],
    out: Path,
    mode: OutputMode,
) -> None:
    """Sweep one protection for every seed, write both files and print a table."""
    job, files, (settings, sweep) = read_job(job_path), [read_party_file(path) for path in parties], plan
    points = [point for each in settings for point in sweep_mechanism(job, files, each, sweep, lambda _: None)]
    value = {"format": "fedsim tradeoff 1", "job": job.hash, "sweep": sweep, "points": [p.as_dict() for p in points]}
    write_page(tradeoff_page(points, title=f"{job.name}: {sweep}"), out.with_name(f"{out.name}.html"))
    write_json(out.with_name(f"{out.name}.json"), value)

    def print_text() -> None:
        rows = []
        for setting in dict.fromkeys(point.setting for point in points):
            here = [point for point in points if point.setting == setting]
            gain, quality = (float(np.mean([getattr(point, name) for point in here])) for name in ("gain", "quality"))
            attacks = ", ".join(dict.fromkeys(point.attack for point in here))
            rows.append((setting, f"{gain:.3f}", format_number(quality), attacks))
        print_table(("setting", "attacker's gain", f"validation {points[0].metric}", "best attack"), rows)
        typer.echo(f"Wrote {out}.html and {out}.json")

    mode.show(value, print_text)
