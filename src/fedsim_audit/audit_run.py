"""Run an audit: read the tables, link, attack, search for settings that help."""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from fedsim.config.job import Blur, FeatureTerms, Job, Protection
from fedsim.config.party_file import PartyColumns, PartyFile, Policy
from fedsim.config.stored_audit import Adversary, AttackKind
from fedsim.data.splits import random_split
from fedsim.errors import FedSimError, SettingError
from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.messages import Party, Role
from fedsim.training.data import Metrics
from fedsim.types import Floats
from fedsim_audit import audit_report, budget_attacks, linkage_attacks, split_attacks

ProgressCallback = Callable[[float], None]
# The share of an audit's time that has passed when a stage begins; a rough guide for the progress bar.
STAGES = {"link": 0.0, "primary": 0.02, "coordinator": 0.2, "train": 0.25, "repeat": 0.4, "advice": 0.65, "end": 1.0}
SEARCH_EFFORT = 4  # the search for settings attacks a quarter of the records of the audit itself


@dataclass(frozen=True, eq=False)
class AuditTables:
    """Both sides in the clear; ``notes`` say how they differ from the tables of the job.

    ``policies`` are those of the parties whose files are here, by role and name; others count with their defaults.
    """

    primary: PartyData
    secondaries: Mapping[str, PartyData]
    notes: tuple[str, ...]
    policies: Mapping[Party, Policy] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class PreparedAudit:
    """The linkage with one secondary, and the inputs of training where there are labels."""

    setup: linkage_attacks.AttackSetup
    linkage: linkage_attacks.AuditedLinkage
    inputs: split_attacks.TrainingInputs | None
    job: Job
    policies: tuple[Policy, Policy] = (Policy(), Policy())  # of the secondary and of the coordinator
    sent: dict[int, Floats] = field(default_factory=dict)  # by job, what trained embeddings send

    def budget(self, settings: audit_report.AuditSettings) -> budget_attacks.BudgetAudit:
        """Return the attacks of a primary that asks again."""
        return budget_attacks.BudgetAudit(self.linkage, self.inputs, self.job, *self.policies, settings, self.sent)


def read_audit_tables(job: Job, files: Sequence[PartyFile], most: int, rng: np.random.Generator) -> AuditTables:
    """Read the tables of these parties; sample larger ones, and replace a missing side by half of the other.

    Nothing is sent, so no approval is needed, and policies only say how often a primary may ask.
    """
    found = _read_tables(job, files, most, rng)
    return replace(found, policies={own.party: own.policy for own in files})


def _read_tables(job: Job, files: Sequence[PartyFile], most: int, rng: np.random.Generator) -> AuditTables:
    holders = [own for own in files if own.role is not Role.COORDINATOR]
    if not holders:
        message = "an audit needs a party with a table; pass the party file of the primary, of a secondary or of both"
        raise SettingError(message, code="no-table")
    names = [own.name for own in holders]
    twice = next((own.party for own in holders if names.count(own.name) > 1), None)
    if twice is not None:
        raise SettingError(f"several files belong to {twice}; pass one file per party", code="party-twice")
    notes, tables = [], {}
    for own in holders:
        table = tables[own.name] = PartyData.read(job, own, least=audit_report.MIN_RECORDS)
        if (n := len(table)) > most:
            notes.append(f"{own.party}: a sample of {most:,} of {n:,} records; the full, denser table reveals more")
            tables[own.name] = table.take(np.sort(rng.choice(n, most, replace=False)))
    primary = next((tables[own.name] for own in holders if own.role is Role.PRIMARY), None)
    secondaries = {own.name: tables[own.name] for own in holders if own.role is Role.SECONDARY}
    if primary is not None and secondaries:
        return AuditTables(primary, secondaries, tuple(notes))
    alone = next(iter(tables.values()))
    replaced = f"only the table of {alone.own.party} was given: a random half of it replaces the other side"
    notes.append(f"{replaced}, so the results are estimates of what the true partner will see")
    rows = rng.permutation(len(alone))
    first, second = alone.take(rows[: len(rows) // 2]), alone.take(rows[len(rows) // 2 :])
    if primary is None:
        name, *others = secondaries
        if not job.protection.sealed:
            notes.append("the primary's labels are not available here; the attacked training uses a made-up label")
        notes += [f"{tables[n].own.party} was left out; audit it alone, or with the primary's file" for n in others]
        return AuditTables(first, {name: second}, tuple(notes))
    name = next(iter(job.secondaries))
    columns = PartyColumns({name: second.columns.identifiers[name]}, second.columns.features, None)
    return AuditTables(first, {name: replace(second, columns=columns)}, tuple(notes))


def audit_job(
    job: Job,
    files: Sequence[PartyFile],
    settings: audit_report.AuditSettings,
    progress: ProgressCallback = lambda _: None,
) -> audit_report.AuditReport:
    """Attack every linkage whose tables are here, and the training on it; nothing leaves this process.

    Parameters
    ----------
    job
        The job to audit.
    files
        Party files of the tables that are here: of the primary, of secondaries or of both.
    settings
        How thorough the audit is, and what counts as a leak.
    progress
        Called with the approximate share of the time that has passed.
    """
    tables = read_audit_tables(job, files, settings.most_records, np.random.default_rng([settings.seed, 0]))
    rows: list[audit_report.AuditRow] = []
    skipped: list[audit_report.SkippedAttack] = []
    advices: list[audit_report.Advice] = []
    for place, name in enumerate(tables.secondaries):

        def passed(share: float, place: int = place) -> None:
            progress((place + share) / len(tables.secondaries))

        passed(STAGES["link"])
        audited, missing = prepare_audit(job, tables, name, settings)
        found, left = attack_secondary(audited, settings, passed)
        rows += found
        skipped += [*missing, *left]
        advices += recommend_settings(audited, found, settings, passed)
    notes = [*tables.notes, "tau applies to integer Hamming distances; in other units it depends on the unit"]
    absent = [str(party) for party in job.parties if party.role is not Role.PRIMARY and party not in tables.policies]
    if absent:
        names = ", ".join(absent)
        notes.append(f"no file was given for {names}; default limits on repeated requests were assumed")
    return audit_report.AuditReport(
        job=job.name,
        hash=job.hash,
        limit=settings.limit,
        settings=settings,
        rows=tuple(rows),
        skipped=(*skipped, *audit_report.NEVER_ATTACKED),
        advice=tuple(advices),
        notes=tuple(notes),
        tables=tuple(str(own.party) for own in files if own.data is not None),
    )


def prepare_audit(
    job: Job, tables: AuditTables, name: str, settings: audit_report.AuditSettings
) -> tuple[PreparedAudit, list[audit_report.SkippedAttack]]:
    """Link with one secondary, and prepare the training where there are labels."""
    primary, secondary = tables.primary, tables.secondaries[name]
    if name not in primary.columns.identifiers or not job.secondaries[name].encoding.columns:
        message = f"job '{job.name}' has no identifiers for {name}, so there is no linkage to attack"
        raise SettingError(message, code="no-identifiers", secondary=name)
    rng = np.random.default_rng([settings.seed, 2])
    split = primary.draw_split("random", rng) if primary.columns.label else random_split(len(primary), rng)
    counted = np.zeros(len(primary), dtype=bool)
    counted[split.train] = True
    identifiers = primary.identifiers(name), secondary.identifiers(name)
    setup = linkage_attacks.AttackSetup(name, job.secondaries[name], *identifiers, counted, settings.seed)
    linkage = setup.linkage()
    parties = Party(Role.SECONDARY, name), Party(Role.COORDINATOR, job.coordinator.name)
    policies = tables.policies.get(parties[0], Policy()), tables.policies.get(parties[1], Policy())
    audited = PreparedAudit(setup, linkage, None, job, policies)
    try:
        inputs = split_attacks.training_inputs(job, primary, secondary, split)
    except FedSimError as error:
        missing = audit_report.SkippedAttack(Adversary.SECONDARY, "training: gradients and activations", str(error))
        return audited, [missing]
    return replace(audited, inputs=inputs), []


def attack_secondary(
    audited: PreparedAudit, settings: audit_report.AuditSettings, progress: ProgressCallback
) -> tuple[list[audit_report.AuditRow], list[audit_report.SkippedAttack]]:
    """Run all attacks that apply, of every adversary."""
    linkage, name = audited.linkage, audited.setup.name
    rng = np.random.default_rng([settings.seed, zlib.crc32(name.encode())])
    progress(STAGES["primary"])
    rows, skipped = audit_report.run_attacks(
        name, linkage_attacks.primary_attacks(linkage, settings, rng), settings.memory
    )
    if not linkage.setup.all_places:
        why = "no identifiers are latitude and longitude"
        skipped.append(audit_report.SkippedAttack(Adversary.PRIMARY, f"places of {name}", why))
    progress(STAGES["coordinator"])
    found, left = audit_report.run_attacks(
        name, linkage_attacks.coordinator_attacks(linkage, settings, rng), settings.memory
    )
    if not found and not left:
        why = "the filters combine several fields or are salted; no attack applies"
        left.append(audit_report.SkippedAttack(Adversary.COORDINATOR, f"filters of {name}", why))
    rows, skipped = rows + found, skipped + left
    if audited.inputs is not None:
        progress(STAGES["train"])
        transcript = split_attacks.record_training(audited.inputs, linkage, settings.epochs)
        attacks = split_attacks.training_attacks(transcript, audited.inputs, linkage, rng)
        found, left = audit_report.run_attacks(name, attacks, settings.memory)
        rows, skipped = rows + found, skipped + left
        if not audited.inputs.labelled:
            why = "the primary's file was not given; the labels are the primary's, not yours"
            skipped.append(audit_report.SkippedAttack(Adversary.SECONDARY, "labels", why))
    progress(STAGES["repeat"])
    found, left = audit_report.run_attacks(name, audited.budget(settings).attacks(rng), settings.memory)
    return rows + found, skipped + left


# Advice: the weakest setting that brings an attack under the limit. Settings go from the weakest to the strongest.

BLUR_EPSILONS = (100.0, 30.0, 10.0, 5.0, 2.0, 1.0, 0.5, 0.2, 0.1)  # per kilometre
SIGMA_LEVELS = (0.01, 0.1, 0.4, 1.0, 4.0, 16.0, 64.0)
NOISE_LEVELS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
LINKAGE_SETTINGS = {
    "blur": ("blur with epsilon_per_km", BLUR_EPSILONS),
    "sigma": ("sigma", SIGMA_LEVELS),
}
POLICY_LIMITS = {"max_jobs": (50.0, 20.0, 10.0, 5.0, 2.0, 1.0), "max_new_records": (5_000.0, 2_000.0, 1_000.0, 0.0)}
QUALITY_METRICS = ("rmse", "auc", "accuracy")  # the first that a task has is used

# The mechanisms that may help against an attack, in the order in which they are tried.
MITIGATIONS = {
    AttackKind.LOCATION: ("blur",),
    AttackKind.GREEDY: ("sigma",),
    AttackKind.DISTANCES: ("sigma",),
    AttackKind.LIKELIHOOD: ("sigma", "blur"),
    AttackKind.BIT_ORDER: ("blur",),
    AttackKind.INVERSION: ("features",),
    AttackKind.GRADIENTS: ("sealed",),
    AttackKind.COMPLETION: ("sealed",),
    AttackKind.ROW_COUNTS: ("sealed",),
    AttackKind.REPEATED_LINKS: ("max_jobs",),
    AttackKind.REPEATED_FEATURES: ("max_jobs",),
    AttackKind.PROBING: ("max_new_records",),
}
_ENCODING = "encodings that keep similarities reveal this; choose a coordinator that you trust, or salt the field"
_ONE_JOB = "the policy already allows only one job; protect what that job reveals"
NO_MITIGATION = {
    AttackKind.BIT_ORDER: _ENCODING,
    AttackKind.NAMES: _ENCODING,
    AttackKind.REPEATED_LINKS: _ONE_JOB,
    AttackKind.REPEATED_FEATURES: _ONE_JOB,
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

    audited: PreparedAudit
    settings: audit_report.AuditSettings

    @property
    def setup(self) -> linkage_attacks.AttackSetup:
        return self.audited.setup

    @property
    def inputs(self) -> split_attacks.TrainingInputs | None:
        return self.audited.inputs

    @cached_property
    def unprotected(self) -> split_attacks.CutTranscript | None:
        """A short training without protection, for comparison."""
        if self.inputs is None:
            return None
        return split_attacks.record_training(self.inputs, self.setup.linkage(), self.settings.epochs, Protection())

    @cached_property
    def plain(self) -> linkage_attacks.AuditedLinkage:
        """The linkage without blurring, for comparison."""
        return self.setup.linkage(blur=None)

    def mitigation(self, name: str, secret: str) -> Mitigation:
        """Return the mechanism of this name as a protection of a secret."""
        if name in LINKAGE_SETTINGS:
            setting, values = LINKAGE_SETTINGS[name]
            return Mitigation(lambda value: f"{setting} = {value:g}", values, partial(self._link_again, name, secret))
        if name in POLICY_LIMITS:
            measure = partial(self._ask_less, name, secret)
            return Mitigation(lambda value: f"policy.{name} = {value:g}", self.lower_limits(name), measure)
        if name == "sealed":
            measure = partial(self._train_again, name, secret)
            return Mitigation(lambda _: 'protection.gradients = "none"', (1.0,), measure)
        measure = partial(self._train_again, name, secret)
        return Mitigation(lambda noise: f"protection.features with noise = {noise:g}", NOISE_LEVELS, measure)

    def lower_limits(self, name: str) -> Sequence[float]:
        """Return the limits of a policy that are below the present one."""
        allowed = self.audited.budget(self.settings).allowance
        present = {"max_jobs": allowed.jobs, "max_new_records": allowed.new_records}[name]
        return [limit for limit in POLICY_LIMITS[name] if limit < present]

    def _link_again(self, name: str, secret: str, value: float) -> tuple[float, str]:
        """Return the leak of a linkage with more blur or noise, and what that costs."""
        if name == "blur":
            linkage = self.setup.linkage(blur=make_blur(self.setup, value))
            cost = f"{100 * linkage.share_of_links_kept(self.plain):.0f} % of the links remain"
        else:
            linkage, cost = self.setup.linkage(tau=None, sigma=value), "similarities are less informative"
        rng = np.random.default_rng([self.settings.seed, 4])
        primary = linkage_attacks.primary_attacks(linkage, self.settings, rng)
        coordinator = linkage_attacks.coordinator_attacks(linkage, self.settings, rng)
        return self._best_advantage([*primary, *coordinator], secret), cost

    def _ask_less(self, name: str, secret: str, value: float) -> tuple[float, str]:
        """Return the leak if the policies of secondary and coordinator allow less, and what that costs."""
        secondary, coordinator = (own.model_copy(update={name: int(value)}) for own in self.audited.policies)
        fewer = replace(self.audited, policies=(secondary, coordinator))
        rng = np.random.default_rng([self.settings.seed, 10])
        return self._best_advantage(fewer.budget(self.settings).attacks(rng), secret), "the primary may ask less often"

    def _train_again(self, side: str, secret: str, noise: float) -> tuple[float, str]:
        """Return the leak of a training with sealed labels or noise on features, and what that costs."""
        if self.inputs is None:
            raise SettingError("training needs labels; pass the primary's party file, too", code="labels-missing")
        linkage, rng = self.setup.linkage(), np.random.default_rng([self.settings.seed, 5])
        protection = make_protection(side, noise)
        transcript = split_attacks.record_training(self.inputs, linkage, self.settings.epochs, protection)
        attacks = split_attacks.training_attacks(transcript, self.inputs, linkage, rng)
        if not self.inputs.labelled:
            return self._best_advantage(attacks, secret), "the cost depends on the primary's labels"
        without = _quality_text(self.unprotected.metrics) if self.unprotected else "unknown"
        quality = f"{_quality_text(transcript.metrics)} on validation records, {without} without it"
        return self._best_advantage(attacks, secret), f"{quality}, after {self.settings.epochs} epochs"

    def _best_advantage(self, attacks: Iterable[audit_report.PlannedAttack], secret: str) -> float:
        """Return the best advantage of all attacks on the secret, whatever its interval."""
        relevant = [
            replace(attack, guarantee=audit_report.NO_GUARANTEE)
            for attack in attacks
            if _secret(attack.kind, attack.learns) == secret
        ]
        rows, _ = audit_report.run_attacks("", relevant, self.settings.memory)
        return max((row.found.advantage for row in rows), default=0.0)


def make_blur(setup: linkage_attacks.AttackSetup, epsilon_per_km: float) -> Blur:
    """Return the blur of the linkage's places."""
    if setup.place_columns is None:
        message = "no identifiers are latitude and longitude, so there is nothing to blur; choose another mechanism"
        raise SettingError(message, code="no-places")
    return Blur(latitude=setup.place_columns[0], longitude=setup.place_columns[1], epsilon_per_km=epsilon_per_km)


def make_protection(side: str, noise: float) -> Protection:
    """Return sealed labels if ``side`` is "sealed", or else noise on features."""
    return Protection(gradients="none") if side == "sealed" else Protection(features=FeatureTerms(noise=noise))


def recommend_settings(
    audited: PreparedAudit,
    rows: Sequence[audit_report.AuditRow],
    settings: audit_report.AuditSettings,
    progress: ProgressCallback = lambda _: None,
) -> list[audit_report.Advice]:
    """Search advice against the worst finding above the limit of each adversary and secret."""
    if settings.tries == 0:
        return []
    setup = audited.setup
    worst: dict[tuple[str, ...], audit_report.AuditRow] = {}
    for row in sorted(rows, key=lambda row: row.leak):
        if row.leak > settings.limit:
            worst[row.found.adversary.value, _secret(row.found.kind, row.learns)] = row
    fewer = replace(settings, targets=max(settings.targets // SEARCH_EFFORT, audit_report.MIN_TARGETS))
    search, advice = MitigationSearch(audited, fewer), []
    for place, row in enumerate(worst.values()):
        found = row.found
        progress(STAGES["advice"] + (STAGES["end"] - STAGES["advice"]) * place / len(worst))
        impossible = {"blur"} if setup.place_columns is None else set()
        impossible |= {name for name in POLICY_LIMITS if not search.lower_limits(name)}
        names = [name for name in MITIGATIONS.get(found.kind, ()) if name not in impossible]
        if not names:
            reason = NO_MITIGATION.get(found.kind, "no setting of a job changes this")
            advice.append(audit_report.Advice(setup.name, found.attack, "", row.leak, False, reason))
        for name in names:
            mitigation = search.mitigation(name, _secret(found.kind, row.learns))
            advice.append(_search_weakest_setting(setup.name, found.attack, mitigation, settings))
    return advice


def _secret(kind: AttackKind, learns: str) -> str:
    """Return an id of what is learned: a primary that asks again learns filters, and places, by the same attack."""
    return f"{kind.secret}: {learns}" if kind in (AttackKind.REPEATED_LINKS, AttackKind.PROBING) else kind.secret


def _search_weakest_setting(
    about: str, attack: str, mitigation: Mitigation, settings: audit_report.AuditSettings
) -> audit_report.Advice:
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
    return audit_report.Advice(about, attack, mitigation.setting(mitigation.values[high]), leak, reached, cost)


def model_quality(metrics: Metrics) -> tuple[str, float]:
    """Return the metric that judges a training, with its value."""
    name = next(name for name in QUALITY_METRICS if name in metrics)
    return name, metrics[name]


def _quality_text(metrics: Metrics) -> str:
    name, value = model_quality(metrics)
    return f"{name} {value:.4g}"
