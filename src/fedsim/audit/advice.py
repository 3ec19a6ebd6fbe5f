"""Search for the weakest setting that brings an attack under the limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedsim.attack.finding import Adversary
from fedsim.audit import linkage_attacks, split_attacks
from fedsim.audit.attack_runner import AuditRow, PlannedAttack, run_attacks
from fedsim.audit.attack_setup import AttackSetup, AuditedLinkage
from fedsim.audit.report import MEDIAN_ERROR_METRES, Advice, AuditSettings
from fedsim.config.job import Blur, CutTerms, FeatureTerms, Protection
from fedsim.errors import SettingError
from fedsim.training.labels import Metrics

BLUR_EPSILONS = (100.0, 30.0, 10.0, 5.0, 2.0, 1.0, 0.5, 0.2, 0.1)  # epsilon per kilometre, weakest first
SIGMA_LEVELS = (0.01, 0.1, 0.4, 1.0, 4.0, 16.0, 64.0)
DUMMY_SHARES = (0.2, 0.5, 0.9)
NOISE_LEVELS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
MIN_CLIP = 1e-9
QUALITY_METRICS = ("rmse", "auc", "accuracy")  # the first that a task has


@dataclass(frozen=True)
class Mitigation:
    """A mechanism with its settings from the weakest to the strongest; ``measure`` gives leak and cost under one."""

    setting: Callable[[float], str]
    values: Sequence[float]
    measure: Callable[[float], tuple[float, str]]


@dataclass(frozen=True, eq=False, repr=False)
class MitigationSearch:
    """A linkage on which attacks are run again under other settings."""

    scene: AttackSetup
    subject: split_attacks.TrainingInputs | None
    settings: AuditSettings

    @cached_property
    def plain(self) -> split_attacks.CutTranscript | None:
        """A short training without protection, to hold the others against."""
        if self.subject is None:
            return None
        return split_attacks.record_training(self.subject, self.scene.linkage(), self.settings.epochs, Protection())

    def leak(self, learns: str, linkage: AuditedLinkage) -> float:
        """How much the best of all attacks on the same secret gains on another linkage."""
        rng = np.random.default_rng([self.settings.seed, 4])
        primary = linkage_attacks.primary_attacks(linkage, self.settings, rng)
        return _best_advantage(
            [*primary, *linkage_attacks.coordinator_attacks(linkage, self.settings, rng)], learns, self.settings
        )

    def blur(self, learns: str) -> Mitigation:
        columns = self.scene.place_columns or ("", "")
        plain = self.scene.linkage(blur=None)

        def measure(epsilon: float) -> tuple[float, str]:
            moved = self.scene.linkage(blur=Blur(latitude=columns[0], longitude=columns[1], epsilon_per_km=epsilon))
            kept = moved.share_of_links_kept(plain)
            return self.leak(learns, moved), f"{100 * kept:.0f} % of the links stay"

        return Mitigation(lambda value: f"blur with epsilon_per_km = {value:g}", BLUR_EPSILONS, measure)

    def sigma(self, learns: str) -> Mitigation:
        def measure(sigma: float) -> tuple[float, str]:
            return self.leak(learns, self.scene.linkage(tau=None, sigma=sigma)), "similarities say less"

        return Mitigation(lambda value: f"sigma = {value:g}", SIGMA_LEVELS, measure)

    def dummies(self, learns: str) -> Mitigation:
        def measure(share: float) -> tuple[float, str]:
            leak = self.leak(learns, self.scene.linkage(dummies=share))
            return leak, f"{100 * share:.0f} % of the links are random"

        return Mitigation(lambda value: f"dummies = {value:g}", DUMMY_SHARES, measure)

    def gradients(self, learns: str) -> Mitigation:
        """Clipped at the length that half of the gradients have."""
        return self._cut(learns, "gradients", max(self.plain.length if self.plain else 1.0, MIN_CLIP))

    def features(self, learns: str) -> Mitigation:
        return self._trained_under(
            learns, lambda noise: f"protection.features with noise = {noise:g}", _feature_protection
        )

    def activations(self, learns: str) -> Mitigation:
        return self._cut(learns, "activations", 1.0)

    def _cut(self, learns: str, side: str, clip: float) -> Mitigation:
        clip = float(f"{clip:.3g}")
        return self._trained_under(
            learns,
            lambda noise: f"protection.{side} with clip = {clip:g}, noise = {noise:g}",
            lambda noise: Protection.model_validate({side: CutTerms(clip=clip, noise=noise)}),
        )

    def _trained_under(
        self, learns: str, setting: Callable[[float], str], protection: Callable[[float], Protection]
    ) -> Mitigation:
        without = _quality_text(self.plain.metrics) if self.plain else "unknown"

        def measure(noise: float) -> tuple[float, str]:
            heard, leak = self.trained(learns, protection(noise))
            return (
                leak,
                f"validation {_quality_text(heard.metrics)}, {without} without, after {self.settings.epochs} epochs",
            )

        return Mitigation(setting, NOISE_LEVELS, measure)

    def trained(self, learns: str, protection: Protection) -> tuple[split_attacks.CutTranscript, float]:
        """A short training under this protection, and the best attack on it."""
        if self.subject is None:
            raise SettingError("no training without labels; name the primary's file, too")
        linkage, rng = self.scene.linkage(), np.random.default_rng([self.settings.seed, 5])
        heard = split_attacks.record_training(self.subject, linkage, self.settings.epochs, protection)
        return heard, _best_advantage(
            split_attacks.training_attacks(heard, self.subject, linkage, rng), learns, self.settings
        )


def recommend_settings(
    scene: AttackSetup, subject: split_attacks.TrainingInputs | None, rows: Sequence[AuditRow], settings: AuditSettings
) -> list[Advice]:
    """Advice against the worst finding of each kind above the limit; ``tries`` of zero asks for none."""
    if settings.tries == 0:
        return []
    bench, advice = MitigationSearch(scene, subject, settings), []
    for row in _worst_per_secret(rows, settings.limit):
        levers = _mitigations(bench, row)
        if not levers:
            advice.append(Advice(scene.name, row.found.attack, "", row.leak, False, _no_mitigation_reason(row)))
        advice += [_search_weakest_setting(scene.name, row.found.attack, lever, settings) for lever in levers]
    return advice


def _worst_per_secret(rows: Sequence[AuditRow], limit: float) -> list[AuditRow]:
    """One row for every adversary and kind of secret."""
    worst: dict[tuple[Adversary, str], AuditRow] = {}
    for row in sorted(rows, key=lambda row: row.leak):
        if row.leak > limit:
            worst[row.found.adversary, row.learns] = row
    return list(worst.values())


def _mitigations(bench: MitigationSearch, row: AuditRow) -> list[Mitigation]:
    """Mechanisms that may help against an attack, in the order they are worth trying."""
    attack, learns, places = row.found.attack, row.learns, bench.scene.place_columns is not None
    if MEDIAN_ERROR_METRES in row.found.figures:
        return [bench.blur(learns), bench.dummies(learns)]
    if attack.startswith("greedy"):
        return [bench.sigma(learns)]
    if attack == "likelihood":
        return [bench.sigma(learns), *([bench.blur(learns)] if places else [])]
    if attack.startswith("order") and places:
        return [bench.blur(learns)]
    if attack == "feature inversion":
        return [bench.features(learns), bench.activations(learns)]
    return [bench.gradients(learns)] if attack.startswith("gradient") else []


def _search_weakest_setting(about: str, attack: str, lever: Mitigation, settings: AuditSettings) -> Advice:
    """The weakest setting under the limit by halving; the strongest, and what it leaves, where none is."""
    strongest = len(lever.values) - 1
    leak, cost = lever.measure(lever.values[strongest])
    if leak > settings.limit:
        return Advice(about, attack, lever.setting(lever.values[strongest]), leak, False, cost)
    low, high, best = 0, strongest, (leak, cost)
    for _ in range(settings.tries):
        if low >= high:
            break
        middle = (low + high) // 2
        tried_here = lever.measure(lever.values[middle])
        if tried_here[0] <= settings.limit:
            high, best = middle, tried_here
        else:
            low = middle + 1
    return Advice(about, attack, lever.setting(lever.values[high]), best[0], True, best[1])


def _best_advantage(attempts: Iterable[PlannedAttack], learns: str, settings: AuditSettings) -> float:
    """Gain over guessing as measured, not the low end of its interval: a setting must do more than be in doubt."""
    rows, _ = run_attacks("", [attempt for attempt in attempts if attempt.learns == learns], settings.memory)
    return max((row.found.advantage for row in rows), default=0.0)


def _no_mitigation_reason(row: AuditRow) -> str:
    if row.found.adversary is Adversary.COORDINATOR:
        return "codes that keep similarities give this away; choose a coordinator you trust, or salt the field"
    if row.found.attack == "model completion":
        return "the secondary's own network learns this; give it fewer columns or stop earlier"
    if row.found.attack.startswith("noise left out"):
        return "this build does not do what the job says; do not use it"
    if row.found.attack == "row counts":
        return "a secondary always sees which of its rows are asked for"
    return "no mechanism of a job changes it"


def _feature_protection(noise: float) -> Protection:
    return Protection(features=FeatureTerms(noise=noise))


def model_quality(metrics: Metrics) -> tuple[str, float]:
    """The figure by which a training is judged here, with its name."""
    name = next(name for name in QUALITY_METRICS if name in metrics)
    return name, metrics[name]


def _quality_text(metrics: Metrics) -> str:
    name, value = model_quality(metrics)
    return f"{name} {value:.4g}"
