"""Privacy-utility trade-off: sweep one mechanism, and measure the attacker's gain and the model's quality."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedsim.audit import advice, linkage_attacks, split_attacks
from fedsim.audit.attack_runner import PlannedAttack, run_attacks
from fedsim.audit.attack_setup import AttackSetup, AuditedLinkage
from fedsim.audit.report import AuditSettings
from fedsim.audit.run import PreparedAudit, prepare_audit, read_audit_tables
from fedsim.config.job import Blur, CutTerms, FeatureTerms, Job, Protection
from fedsim.config.party_file import PartyFile
from fedsim.errors import SettingError
from fedsim.privacy.bounds import lowest_bound

TAU_LEVELS = (0.5, 0.1, 0.05, 0.02, 0.01, 0.001, 0.0001)
RELEVANT_ATTACKS: dict[str, Callable[[PlannedAttack], bool]] = {
    "tau": lambda attempt: attempt.what in ("greedy", "likelihood"),
    "blur": lambda attempt: attempt.learns.startswith("where"),
    "gradients": lambda attempt: attempt.what.startswith("gradient"),
    "features": lambda attempt: attempt.what == "feature inversion",
    "activations": lambda attempt: attempt.what == "feature inversion",
}


@dataclass(frozen=True)
class TradeoffPoint:
    """One setting, by one seed: the best attack on what the mechanism protects, and the model on validation rows."""

    setting: str
    seed: int
    gain: float
    attack: str
    metric: str
    quality: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def sweep_mechanism(
    job: Job, files: Sequence[PartyFile], settings: AuditSettings, sweep: str, tell: Callable[[str], None]
) -> list[TradeoffPoint]:
    """Every setting of one mechanism, none first."""
    if sweep not in RELEVANT_ATTACKS:
        raise SettingError(f"sweep='{sweep}' is none; choose from {', '.join(RELEVANT_ATTACKS)}")
    tables = read_audit_tables(job, files, settings.most_records, np.random.default_rng([settings.seed, 0]))
    audited, missing = prepare_audit(job, tables, next(iter(tables.secondaries)), settings)
    if missing:
        raise SettingError("a trade-off needs labels to train on; name the primary's party file, too")
    points = []
    for words, linkage, protection in _sweep_settings(audited, settings, sweep):
        tell(words)
        points.append(_measure_point(words, audited, linkage, protection, (settings, sweep)))
    return points


def _sweep_settings(
    audited: PreparedAudit, settings: AuditSettings, sweep: str
) -> list[tuple[str, AuditedLinkage, Protection]]:
    scene, plain = audited.scene, audited.scene.linkage(tau=None, sigma=None, blur=None)
    found = [(f"no {sweep}", plain, Protection())]
    if sweep == "tau":
        taus = _reachable_taus(plain)
        return [*found, *((f"tau {tau:g}", scene.linkage(tau=tau, sigma=None), Protection()) for tau in taus)]
    if sweep == "blur":
        return found + _blur_settings(scene)
    if sweep == "features":
        noisy = ((noise, Protection(features=FeatureTerms(noise=noise))) for noise in advice.NOISE_LEVELS)
        return [*found, *((f"noise {noise:g}", plain, protection) for noise, protection in noisy)]
    bench = advice.MitigationSearch(scene, audited.subject, settings)
    clip = 1.0 if sweep == "activations" or bench.plain is None else max(bench.plain.length, advice.MIN_CLIP)
    noises = [
        (noise, Protection.model_validate({sweep: CutTerms(clip=clip, noise=noise)})) for noise in advice.NOISE_LEVELS
    ]
    return [*found, *((f"noise {noise:g}", plain, protection) for noise, protection in noises)]


def _reachable_taus(plain: AuditedLinkage) -> list[float]:
    """The taus that some noise brings about; those at or below the floor none does."""
    if plain.terms.metric != "hamming":
        raise SettingError(
            f"tau bounds attacks on hamming distances, the metric is {plain.terms.metric}; sweep another"
        )
    least = lowest_bound(plain.view.known_scale().deviation)
    return [tau for tau in TAU_LEVELS if tau > least]


def _blur_settings(scene: AttackSetup) -> list[tuple[str, AuditedLinkage, Protection]]:
    if scene.place_columns is None:
        raise SettingError("no identifiers look like latitude and longitude; sweep something else than blur")
    latitude, longitude = scene.place_columns
    blurs = [Blur(latitude=latitude, longitude=longitude, epsilon_per_km=value) for value in advice.BLUR_EPSILONS[:7]]
    return [
        (f"epsilon per km {blur.epsilon_per_km:g}", scene.linkage(tau=None, sigma=None, blur=blur), Protection())
        for blur in blurs
    ]


def _measure_point(
    words: str,
    audited: PreparedAudit,
    linkage: AuditedLinkage,
    protection: Protection,
    asked: tuple[AuditSettings, str],
) -> TradeoffPoint:
    """Train, listen, attack what the mechanism is laid against."""
    (settings, sweep), subject = asked, audited.subject
    if subject is None:
        raise SettingError("a trade-off needs labels to train on; name the primary's party file, too")
    rng = np.random.default_rng([settings.seed, 6])
    heard = split_attacks.record_training(subject, linkage, settings.epochs, protection)
    attempts = [
        *linkage_attacks.primary_attacks(linkage, settings, rng),
        *split_attacks.training_attacks(heard, subject, linkage, rng),
    ]
    wanted = [attempt for attempt in attempts if RELEVANT_ATTACKS[sweep](attempt)]
    rows, _ = run_attacks("", wanted, settings.memory)
    best = max(rows, key=lambda row: row.found.advantage)
    return TradeoffPoint(
        words, settings.seed, best.found.advantage, best.found.attack, *advice.model_quality(heard.metrics)
    )
