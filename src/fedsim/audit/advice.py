"""Search for the weakest setting that brings an attack under the limit."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from fedsim.attack.finding import AttackKind
from fedsim.audit import linkage_attacks, split_attacks
from fedsim.audit.attack_setup import AttackSetup, AuditedLinkage
from fedsim.audit.report import Advice, AuditRow, AuditSettings, PlannedAttack, run_attacks
from fedsim.config.job import Blur, CutTerms, FeatureTerms, Protection
from fedsim.errors import SettingError
from fedsim.training.data import Metrics

# Settings from the weakest to the strongest.
BLUR_EPSILONS = (100.0, 30.0, 10.0, 5.0, 2.0, 1.0, 0.5, 0.2, 0.1)  # per kilometre
SIGMA_LEVELS = (0.01, 0.1, 0.4, 1.0, 4.0, 16.0, 64.0)
DUMMY_SHARES = (0.2, 0.5, 0.9)
NOISE_LEVELS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
LINKAGE_SETTINGS = {
    "blur": ("blur with epsilon_per_km", BLUR_EPSILONS),
    "sigma": ("sigma", SIGMA_LEVELS),
    "dummies": ("dummies", DUMMY_SHARES),
}
MIN_CLIP = 1e-9
QUALITY_METRICS = ("rmse", "auc", "accuracy")  # the first that a task has is used

# The mechanisms that may help against an attack, in the order in which they are tried.
MITIGATIONS = {
    AttackKind.LOCATION: ("blur", "dummies"),
    AttackKind.GREEDY: ("sigma",),
    AttackKind.DISTANCES: ("sigma",),
    AttackKind.LIKELIHOOD: ("sigma", "blur"),
    AttackKind.BIT_ORDER: ("blur",),
    AttackKind.INVERSION: ("features", "activations"),
    AttackKind.GRADIENTS: ("gradients",),
}
_ENCODING = "encodings that keep similarities reveal this; choose a coordinator that you trust, or salt the field"
NO_MITIGATION = {
    AttackKind.BIT_ORDER: _ENCODING,
    AttackKind.NAMES: _ENCODING,
    AttackKind.COMPLETION: "the secondary's own network learns this; give it fewer columns, or train for fewer epochs",
    AttackKind.BUILD_CHECK: "this build does not do what the job says; do not use it",
    AttackKind.ROW_COUNTS: "a secondary always sees which of its rows are requested",
}


@dataclass(frozen=True)
class Mitigation:
    """A mechanism with its settings; ``measure`` returns the leak and the cost under one of them."""

    setting: Callable[[float], str]
    values: Sequence[float]
    measure: Callable[[float], tuple[float, str]]


@dataclass(frozen=True, eq=False, repr=False)
class MitigationSearch:
    """A linkage that is attacked again under other settings."""

    setup: AttackSetup
    inputs: split_attacks.TrainingInputs | None
    settings: AuditSettings

    @cached_property
    def unprotected(self) -> split_attacks.CutTranscript | None:
        """A short training without protection, for comparison."""
        if self.inputs is None:
            return None
        return split_attacks.record_training(self.inputs, self.setup.linkage(), self.settings.epochs, Protection())

    @property
    def gradient_clip(self) -> float:
        """The median norm of a gradient."""
        return max(self.unprotected.length if self.unprotected else 1.0, MIN_CLIP)

    @cached_property
    def plain(self) -> AuditedLinkage:
        """The linkage without blurring, for comparison."""
        return self.setup.linkage(blur=None)

    def mitigation(self, name: str, secret: str) -> Mitigation:
        """Return the mechanism of this name as a protection of a secret."""
        if name in LINKAGE_SETTINGS:
            setting, values = LINKAGE_SETTINGS[name]
            return Mitigation(lambda value: f"{setting} = {value:g}", values, partial(self._link_again, name, secret))
        clip = float(f"{self.gradient_clip if name == 'gradients' else 1.0:.3g}")
        terms = f"protection.{name} with {'' if name == 'features' else f'clip = {clip:g}, '}noise"
        measure = partial(self._train_again, name, clip, secret)
        return Mitigation(lambda noise: f"{terms} = {noise:g}", NOISE_LEVELS, measure)

    def _link_again(self, name: str, secret: str, value: float) -> tuple[float, str]:
        """Return the leak of a linkage with more blur, noise or random links, and what that costs."""
        if name == "blur":
            linkage = self.setup.linkage(blur=make_blur(self.setup, value))
            cost = f"{100 * linkage.share_of_links_kept(self.plain):.0f} % of the links remain"
        elif name == "sigma":
            linkage, cost = self.setup.linkage(tau=None, sigma=value), "similarities carry less"
        else:
            linkage, cost = self.setup.linkage(dummies=value), f"{100 * value:.0f} % of the links are random"
        rng = np.random.default_rng([self.settings.seed, 4])
        primary = linkage_attacks.primary_attacks(linkage, self.settings, rng)
        coordinator = linkage_attacks.coordinator_attacks(linkage, self.settings, rng)
        return self._best_advantage([*primary, *coordinator], secret), cost

    def _train_again(self, side: str, clip: float, secret: str, noise: float) -> tuple[float, str]:
        """Return the leak of a training with noise on features, activations or gradients, and what that costs."""
        if self.inputs is None:
            raise SettingError("training needs labels; pass the primary's party file, too", code="labels-missing")
        linkage, rng = self.setup.linkage(), np.random.default_rng([self.settings.seed, 5])
        protection = make_protection(side, clip, noise)
        transcript = split_attacks.record_training(self.inputs, linkage, self.settings.epochs, protection)
        attacks = split_attacks.training_attacks(transcript, self.inputs, linkage, rng)
        without = _quality_text(self.unprotected.metrics) if self.unprotected else "unknown"
        quality = f"{_quality_text(transcript.metrics)} on validation records, {without} without it"
        return self._best_advantage(attacks, secret), f"{quality}, after {self.settings.epochs} epochs"

    def _best_advantage(self, attacks: Iterable[PlannedAttack], secret: str) -> float:
        """Return the best advantage of all attacks on the secret, whatever its interval."""
        relevant = [attack for attack in attacks if attack.kind.secret == secret]
        rows, _ = run_attacks("", relevant, self.settings.memory)
        return max((row.found.advantage for row in rows), default=0.0)


def make_blur(setup: AttackSetup, epsilon_per_km: float) -> Blur:
    """Return the blur of the linkage's places."""
    if setup.place_columns is None:
        message = "no identifiers are latitude and longitude, so there is nothing to blur; choose another mechanism"
        raise SettingError(message, code="no-places")
    return Blur(latitude=setup.place_columns[0], longitude=setup.place_columns[1], epsilon_per_km=epsilon_per_km)


def make_protection(side: str, clip: float, noise: float) -> Protection:
    """Return noise on ``side``: features, activations or gradients."""
    terms = FeatureTerms(noise=noise) if side == "features" else CutTerms(clip=clip, noise=noise)
    return Protection.model_validate({side: terms})


def recommend_settings(
    setup: AttackSetup, inputs: split_attacks.TrainingInputs | None, rows: Sequence[AuditRow], settings: AuditSettings
) -> list[Advice]:
    """Search advice against the worst finding above the limit of each adversary and secret."""
    if settings.tries == 0:
        return []
    worst: dict[tuple[str, ...], AuditRow] = {}
    for row in sorted(rows, key=lambda row: row.leak):
        if row.leak > settings.limit:
            name = row.found.attack if row.is_check else row.found.kind.secret  # every check counts by itself
            worst[row.found.adversary.value, name] = row
    search, advice = MitigationSearch(setup, inputs, settings), []
    for row in worst.values():
        found = row.found
        names = [n for n in MITIGATIONS.get(found.kind, ()) if n != "blur" or setup.place_columns is not None]
        if not names:
            reason = NO_MITIGATION.get(found.kind, "no mechanism of a job changes this")
            advice.append(Advice(setup.name, found.attack, "", row.leak, False, reason))
        for name in names:
            mitigation = search.mitigation(name, found.kind.secret)
            advice.append(_search_weakest_setting(setup.name, found.attack, mitigation, settings))
    return advice


def _search_weakest_setting(about: str, attack: str, mitigation: Mitigation, settings: AuditSettings) -> Advice:
    """Bisect for the weakest setting under the limit; return the strongest if even that one is above it."""
    low, high = 0, len(mitigation.values) - 1
    leak, cost = mitigation.measure(mitigation.values[high])
    reached = leak <= settings.limit
    for _ in range(settings.tries if reached else 0):
        if low >= high:
            break
        middle = (low + high) // 2
        tried = mitigation.measure(mitigation.values[middle])
        if tried[0] <= settings.limit:
            high, (leak, cost) = middle, tried
        else:
            low = middle + 1
    return Advice(about, attack, mitigation.setting(mitigation.values[high]), leak, reached, cost)


def model_quality(metrics: Metrics) -> tuple[str, float]:
    """Return the metric that judges a training, with its value."""
    name = next(name for name in QUALITY_METRICS if name in metrics)
    return name, metrics[name]


def _quality_text(metrics: Metrics) -> str:
    name, value = model_quality(metrics)
    return f"{name} {value:.4g}"
