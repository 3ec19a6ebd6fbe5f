"""What protection costs: one mechanism swept, the attacker's gain on one axis, the model's quality on the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedsim.audit import advice, by_cut, by_primary
from fedsim.audit.attempt import Attempt, tried
from fedsim.audit.run import Audited, prepare
from fedsim.audit.scene import Linkage, Scene
from fedsim.audit.settings import Settings
from fedsim.audit.tables import read_tables
from fedsim.errors import SettingError
from fedsim.party.job import Job
from fedsim.party.party_file import PartyFile
from fedsim.party.protection import Blur, CutTerms, FeatureTerms, Protection
from fedsim.privacy.bounds import floor

TAUS = (0.5, 0.1, 0.05, 0.02, 0.01, 0.001, 0.0001)
AGAINST: dict[str, Callable[[Attempt], bool]] = {
    "tau": lambda attempt: attempt.what in ("greedy", "likelihood"),
    "blur": lambda attempt: attempt.learns.startswith("where"),
    "gradients": lambda attempt: attempt.what.startswith("gradient"),
    "features": lambda attempt: attempt.what == "feature inversion",
    "activations": lambda attempt: attempt.what == "feature inversion",
}


@dataclass(frozen=True)
class Point:
    """One setting, by one seed: the best attack on what the mechanism protects, and the model on validation rows."""

    setting: str
    seed: int
    gain: float
    attack: str
    metric: str
    quality: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def swept(
    job: Job, files: Sequence[PartyFile], settings: Settings, sweep: str, tell: Callable[[str], None]
) -> list[Point]:
    """Every setting of one mechanism, none first."""
    if sweep not in AGAINST:
        raise SettingError(f"sweep='{sweep}' is none; choose from {', '.join(AGAINST)}")
    tables = read_tables(job, files, settings.most_records, np.random.default_rng([settings.seed, 0]))
    audited, missing = prepare(job, tables, next(iter(tables.secondaries)), settings)
    if missing:
        raise SettingError("a trade-off needs labels to train on; name the primary's party file, too")
    points = []
    for words, linkage, protection in _settings(audited, settings, sweep):
        tell(words)
        points.append(_point(words, audited, linkage, protection, (settings, sweep)))
    return points


def _settings(audited: Audited, settings: Settings, sweep: str) -> list[tuple[str, Linkage, Protection]]:
    scene, plain = audited.scene, audited.scene.linkage(tau=None, sigma=None, blur=None)
    found = [(f"no {sweep}", plain, Protection())]
    if sweep == "tau":
        taus = _reachable(plain)
        return [*found, *((f"tau {tau:g}", scene.linkage(tau=tau, sigma=None), Protection()) for tau in taus)]
    if sweep == "blur":
        return found + _blurs(scene)
    if sweep == "features":
        noisy = ((noise, Protection(features=FeatureTerms(noise=noise))) for noise in advice.NOISES)
        return [*found, *((f"noise {noise:g}", plain, protection) for noise, protection in noisy)]
    bench = advice.Bench(scene, audited.subject, settings)
    clip = 1.0 if sweep == "activations" or bench.plain is None else max(bench.plain.length, advice.TINY)
    noises = [(noise, Protection.model_validate({sweep: CutTerms(clip=clip, noise=noise)})) for noise in advice.NOISES]
    return [*found, *((f"noise {noise:g}", plain, protection) for noise, protection in noises)]


def _reachable(plain: Linkage) -> list[float]:
    """The taus that some noise brings about; those at or below the floor none does."""
    if plain.terms.metric != "hamming":
        raise SettingError(
            f"tau bounds attacks on hamming distances, the metric is {plain.terms.metric}; sweep another"
        )
    least = floor(plain.view.known_scale().deviation)
    return [tau for tau in TAUS if tau > least]


def _blurs(scene: Scene) -> list[tuple[str, Linkage, Protection]]:
    if scene.place_columns is None:
        raise SettingError("no identifiers look like latitude and longitude; sweep something else than blur")
    latitude, longitude = scene.place_columns
    blurs = [Blur(latitude=latitude, longitude=longitude, epsilon_per_km=value) for value in advice.BLURS[:7]]
    return [
        (f"epsilon per km {blur.epsilon_per_km:g}", scene.linkage(tau=None, sigma=None, blur=blur), Protection())
        for blur in blurs
    ]


def _point(
    words: str, audited: Audited, linkage: Linkage, protection: Protection, asked: tuple[Settings, str]
) -> Point:
    """Train, listen, attack what the mechanism is laid against."""
    (settings, sweep), subject = asked, audited.subject
    if subject is None:
        raise SettingError("a trade-off needs labels to train on; name the primary's party file, too")
    rng = np.random.default_rng([settings.seed, 6])
    heard = by_cut.listened(subject, linkage, settings.epochs, protection)
    attempts = [*by_primary.attempts(linkage, settings, rng), *by_cut.attempts(heard, subject, linkage, rng)]
    wanted = [attempt for attempt in attempts if AGAINST[sweep](attempt)]
    rows, _ = tried("", wanted, settings.memory)
    best = max(rows, key=lambda row: row.found.advantage)
    return Point(words, settings.seed, best.found.advantage, best.found.attack, *advice.quality(heard.metrics))
