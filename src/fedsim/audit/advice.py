"""What to change: for findings above the limit the weakest setting that brings them under, by search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedsim.attack.finding import Adversary
from fedsim.audit import by_coordinator, by_cut, by_primary
from fedsim.audit.attempt import Attempt, tried
from fedsim.audit.report import METRES, Advice
from fedsim.audit.rows import Row
from fedsim.audit.scene import Linkage, Scene
from fedsim.audit.settings import Settings
from fedsim.errors import SettingError
from fedsim.party.protection import Blur, CutTerms, FeatureTerms, Protection
from fedsim.training.metrics import Metrics

BLURS = (100.0, 30.0, 10.0, 5.0, 2.0, 1.0, 0.5, 0.2, 0.1)  # epsilon per kilometre, weakest first
SIGMAS = (0.01, 0.1, 0.4, 1.0, 4.0, 16.0, 64.0)
DUMMIES = (0.2, 0.5, 0.9)
NOISES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
TINY = 1e-9
QUALITIES = ("rmse", "auc", "accuracy")  # the first that a task has


@dataclass(frozen=True)
class Lever:
    """A mechanism with its settings from the weakest to the strongest; ``measure`` gives leak and cost under one."""

    setting: Callable[[float], str]
    values: Sequence[float]
    measure: Callable[[float], tuple[float, str]]


@dataclass(frozen=True, eq=False, repr=False)
class Bench:
    """A linkage on which attacks are run again under other settings."""

    scene: Scene
    subject: by_cut.Subject | None
    settings: Settings

    @cached_property
    def plain(self) -> by_cut.Heard | None:
        """A short training without protection, to hold the others against."""
        if self.subject is None:
            return None
        return by_cut.listened(self.subject, self.scene.linkage(), self.settings.epochs, Protection())

    def leak(self, learns: str, linkage: Linkage) -> float:
        """How much the best of all attacks on the same secret gains on another linkage."""
        rng = np.random.default_rng([self.settings.seed, 4])
        primary = by_primary.attempts(linkage, self.settings, rng)
        return _leak([*primary, *by_coordinator.attempts(linkage, self.settings, rng)], learns, self.settings)

    def blur(self, learns: str) -> Lever:
        columns = self.scene.place_columns or ("", "")
        plain = self.scene.linkage(blur=None)

        def measure(epsilon: float) -> tuple[float, str]:
            moved = self.scene.linkage(blur=Blur(latitude=columns[0], longitude=columns[1], epsilon_per_km=epsilon))
            kept = moved.kept_links(plain)
            return self.leak(learns, moved), f"{100 * kept:.0f} % of the links stay"

        return Lever(lambda value: f"blur with epsilon_per_km = {value:g}", BLURS, measure)

    def sigma(self, learns: str) -> Lever:
        def measure(sigma: float) -> tuple[float, str]:
            return self.leak(learns, self.scene.linkage(tau=None, sigma=sigma)), "similarities say less"

        return Lever(lambda value: f"sigma = {value:g}", SIGMAS, measure)

    def dummies(self, learns: str) -> Lever:
        def measure(share: float) -> tuple[float, str]:
            leak = self.leak(learns, self.scene.linkage(dummies=share))
            return leak, f"{100 * share:.0f} % of the links are random"

        return Lever(lambda value: f"dummies = {value:g}", DUMMIES, measure)

    def gradients(self, learns: str) -> Lever:
        """Clipped at the length that half of the gradients have."""
        return self._cut(learns, "gradients", max(self.plain.length if self.plain else 1.0, TINY))

    def features(self, learns: str) -> Lever:
        return self._trained_under(learns, lambda noise: f"protection.features with noise = {noise:g}", _features)

    def activations(self, learns: str) -> Lever:
        return self._cut(learns, "activations", 1.0)

    def _cut(self, learns: str, side: str, clip: float) -> Lever:
        clip = float(f"{clip:.3g}")
        return self._trained_under(
            learns,
            lambda noise: f"protection.{side} with clip = {clip:g}, noise = {noise:g}",
            lambda noise: Protection.model_validate({side: CutTerms(clip=clip, noise=noise)}),
        )

    def _trained_under(
        self, learns: str, setting: Callable[[float], str], protection: Callable[[float], Protection]
    ) -> Lever:
        without = _words(self.plain.metrics) if self.plain else "unknown"

        def measure(noise: float) -> tuple[float, str]:
            heard, leak = self.trained(learns, protection(noise))
            return leak, f"validation {_words(heard.metrics)}, {without} without, after {self.settings.epochs} epochs"

        return Lever(setting, NOISES, measure)

    def trained(self, learns: str, protection: Protection) -> tuple[by_cut.Heard, float]:
        """A short training under this protection, and the best attack on it."""
        if self.subject is None:
            raise SettingError("no training without labels; name the primary's file, too")
        linkage, rng = self.scene.linkage(), np.random.default_rng([self.settings.seed, 5])
        heard = by_cut.listened(self.subject, linkage, self.settings.epochs, protection)
        return heard, _leak(by_cut.attempts(heard, self.subject, linkage, rng), learns, self.settings)


def advised(scene: Scene, subject: by_cut.Subject | None, rows: Sequence[Row], settings: Settings) -> list[Advice]:
    """Advice against the worst finding of each kind above the limit; ``tries`` of zero asks for none."""
    if settings.tries == 0:
        return []
    bench, advice = Bench(scene, subject, settings), []
    for row in _worst_of_each(rows, settings.limit):
        levers = _levers(bench, row)
        if not levers:
            advice.append(Advice(scene.name, row.found.attack, "", row.leak, False, _no_way_out(row)))
        advice += [_searched(scene.name, row.found.attack, lever, settings) for lever in levers]
    return advice


def _worst_of_each(rows: Sequence[Row], limit: float) -> list[Row]:
    """One row for every adversary and kind of secret."""
    worst: dict[tuple[Adversary, str], Row] = {}
    for row in sorted(rows, key=lambda row: row.leak):
        if row.leak > limit:
            worst[row.found.adversary, row.learns] = row
    return list(worst.values())


def _levers(bench: Bench, row: Row) -> list[Lever]:
    """Mechanisms that may help against an attack, in the order they are worth trying."""
    attack, learns, places = row.found.attack, row.learns, bench.scene.place_columns is not None
    if METRES in row.found.figures:
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


def _searched(about: str, attack: str, lever: Lever, settings: Settings) -> Advice:
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


def _leak(attempts: Iterable[Attempt], learns: str, settings: Settings) -> float:
    """Gain over guessing as measured, not the low end of its interval: a setting must do more than be in doubt."""
    rows, _ = tried("", [attempt for attempt in attempts if attempt.learns == learns], settings.memory)
    return max((row.found.advantage for row in rows), default=0.0)


def _no_way_out(row: Row) -> str:
    if row.found.adversary is Adversary.COORDINATOR:
        return "codes that keep similarities give this away; choose a coordinator you trust, or salt the field"
    if row.found.attack == "model completion":
        return "the secondary's own network learns this; give it fewer columns or stop earlier"
    if row.found.attack.startswith("noise left out"):
        return "this build does not do what the job says; do not use it"
    if row.found.attack == "row counts":
        return "a secondary always sees which of its rows are asked for"
    return "no mechanism of a job changes it"


def _features(noise: float) -> Protection:
    return Protection(features=FeatureTerms(noise=noise))


def quality(metrics: Metrics) -> tuple[str, float]:
    """The figure by which a training is judged here, with its name."""
    name = next(name for name in QUALITIES if name in metrics)
    return name, metrics[name]


def _words(metrics: Metrics) -> str:
    name, value = quality(metrics)
    return f"{name} {value:.4g}"
