"""Planned attacks, what the job guarantees against them, and the report of an audit."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from enum import Enum
from importlib import import_module
from typing import Any

from fedsim import errors, validation
from fedsim.config.stored_audit import AUDIT_FORMAT, Adversary, AttackKind, Victim
from fedsim_audit.attacks.attack_finding import (
    MEDIAN_ERROR_METRES,
    NAMED,
    RADIUS_METRES,
    TOKENS_NEEDED,
    AttackFinding,
)

MIN_RECORDS, MIN_TARGETS = 20, 10
GIB = 1 << 30
DEFAULT_MEMORY = 4 * GIB
FULL_EPOCHS, FULL_TARGETS = 3, 500  # an audit with less is quick
# From the 95 % of an interval to 99.9 %: an audit makes many tests, and a single false alarm is too many.
INTERVAL_FACTOR = 3.29 / 1.96


@dataclass(frozen=True)
class AuditSettings:
    """How thorough an audit is, and what counts as a leak.

    Parameters
    ----------
    limit
        The largest acceptable advantage over blind guessing, from 0 to 1 (certainty).
    metres
        A place counts as found within this distance.
    seed
        Random seed of samples and attacks.
    most_records
        Larger tables are sampled.
    epochs
        Epochs of the recorded training.
    targets
        Number of records that the slow attacks try.
    memory
        Attacks that need more than this many bytes are skipped.

    Examples
    --------
    >>> AuditSettings(epochs=1).quick
    True
    """

    limit: float = 0.01
    metres: float = 500.0
    seed: int = 0
    most_records: int = 5_000
    epochs: int = FULL_EPOCHS
    targets: int = FULL_TARGETS
    memory: int = DEFAULT_MEMORY

    def __post_init__(self) -> None:
        validation.validate_number(self.limit, "limit", least=0, below=1)
        validation.validate_number(self.metres, "metres", above=0)
        least = {"seed": 0, "most_records": MIN_RECORDS, "epochs": 1, "targets": MIN_TARGETS}
        for name, low in least.items():
            validation.validate_integer(getattr(self, name), name, least=low)

    @property
    def quick(self) -> bool:
        """Whether the attacks are weaker than usual: a first look that an owner should not rely on."""
        return self.targets < FULL_TARGETS or self.epochs < FULL_EPOCHS

    def as_dict(self) -> dict[str, Any]:
        """Return what a reader must know to judge the results, in JSON types."""
        names = ("quick", "most_records", "metres", "epochs", "targets", "seed")
        return {name: getattr(self, name) for name in names}


# One attack: what the job guarantees against it, and how the result compares.


class Verdict(Enum):
    """How an attack compares with the guarantee."""

    KEPT = "kept"
    BROKEN = "broken"
    UNTESTED = "claimed, but this attack cannot test it"
    DISCLOSED = "disclosed by design, as the approval says"
    NONE = "no guarantee claimed"


@dataclass(frozen=True)
class Guarantee:
    """What the job claims against an attack; ``most`` is the highest score it allows, None where it sets no limit.

    ``claimed`` marks a claim that no score can contradict, and ``disclosed`` what the job gives away by design.
    ``reached`` is the score on a correct build, where the assumptions of the claim hold only approximately.
    """

    sentence: str
    most: float | None = None
    claimed: bool = False
    disclosed: bool = False
    reached: float = 0.0

    def verdict(self, found: AttackFinding) -> Verdict:
        """Return the verdict; a guarantee is broken where even the lower end of the 99.9 % interval exceeds it."""
        if self.disclosed:
            return Verdict.DISCLOSED
        if self.most is None:
            return Verdict.UNTESTED if self.claimed else Verdict.NONE
        low = found.score.value - INTERVAL_FACTOR * (found.score.value - found.score.low)
        return Verdict.BROKEN if low > max(self.most, self.reached) else Verdict.KEPT


NO_GUARANTEE = Guarantee("none")


_LABELS = (
    "{who} guesses with an AUC of {score} whether labels of the primary's records are above the median; {blind} is "
    "chance"
)
EXPLANATIONS = {
    AttackKind.LIKELIHOOD: "from all similarities of a record together {who} finds the filter of {share} of the "
    "records of {about}, and anyone with the key can read identifiers from a filter",
    AttackKind.DISTANCES: "the noise hides too little: {who} computes the exact distance of {share} of the links",
    AttackKind.LOCATION: "from all links together {who} locates {share} of the records of {about} within {metres} m "
    "(median error {error} m), by the places of its own records",
    AttackKind.INVERSION: "if {who} knows the features of some rows of {about}, it explains {share} of the variance of "
    "the others from what it receives",
    AttackKind.GRADIENTS: _LABELS,
    AttackKind.COMPLETION: _LABELS,
    AttackKind.ROW_COUNTS: f"from how often its rows are requested, {_LABELS}",
    AttackKind.DICTIONARY: "by spending all tokens that {about} evaluates on made-up records, {who} opens {share} of "
    "its rows and names {named} of them; its own records open {share_blind}, for which they need {needed} tokens",
    AttackKind.ONE_WORD: "by one word of its name alone {who} opens {share} of the rows of {about}",
    AttackKind.CELLS: "by design {who} locates {share} of the rows that its records reach within {metres} m (median "
    "error {error} m), by the finest cell that a reached row shows",
    AttackKind.UNREACHED: "{who} locates {share} of the rows that its records do not reach within {metres} m (median "
    "error {error} m), by the order of the rows in the table",
    AttackKind.JOINED_LINKS: "by design {who} learns {learns}: joining the links of all its records it reads {share}",
    AttackKind.TABLE_SIZES: "without a single evaluation {who} names the token of {share} of the entries, by how many "
    "entries stand together",
    AttackKind.ATTRIBUTE: "knowing the identifiers of a row of {about} and all of a twentieth of the others, {who} "
    "explains {share} of the variance of its features within its group",
    AttackKind.MEMBERSHIP: "by design {who} can tell a row that it knows and that is in an average from others: "
    "AUC {score}, where {blind} is chance",
    AttackKind.DIFFERENCES: "by subtracting the averages of several jobs {who} finds {share} of the rows that came or "
    "went between them",
}

_NOISE = "add noise to similarities (tau or sigma), or blur places"
_SEALED = "seal the labels (protection.gradients = 'none')"
_CELLS = "show wider cells (metres of the tokens, policy.min_cell_metres)"
_SOFTWARE = "do not use this release: its encrypted table does not protect what it should"
REMEDIES = {
    AttackKind.LIKELIHOOD: _NOISE,
    AttackKind.DISTANCES: _NOISE,
    AttackKind.LOCATION: "blur places (blur.epsilon_per_km)",
    AttackKind.INVERSION: "add noise to features (protection.features.noise)",
    AttackKind.GRADIENTS: _SEALED,
    AttackKind.COMPLETION: _SEALED,
    AttackKind.ROW_COUNTS: _SEALED,
    AttackKind.DICTIONARY: "evaluate fewer tokens (policy.max_tokens), near what the primary's records need",
    AttackKind.ONE_WORD: _SOFTWARE,
    AttackKind.CELLS: _CELLS,
    AttackKind.UNREACHED: _SOFTWARE,
    AttackKind.JOINED_LINKS: "leave the identifier out of the tokens, or use wider bins",
    AttackKind.TABLE_SIZES: _SOFTWARE,
    AttackKind.ATTRIBUTE: "share averages of more records (m)",
    AttackKind.MEMBERSHIP: "share averages of more records (m), or refuse the job if being in the table is a secret",
    AttackKind.DIFFERENCES: _SOFTWARE,
}


@dataclass(frozen=True)
class AuditRow:
    """One attack on the linkage with one secondary (``about``), at the expense of the primary or of this secondary."""

    about: str
    victim: Victim
    learns: str
    found: AttackFinding
    guarantee: Guarantee = NO_GUARANTEE

    @property
    def verdict(self) -> Verdict:
        return self.guarantee.verdict(self.found)

    @property
    def leak(self) -> float:
        """The advantage over blind guessing, from 0 to 1 (certainty).

        This is the estimate rather than the lower end of its interval, so that fewer records do not pass more easily.
        """
        return self.found.advantage

    def fails(self, limit: float) -> bool:
        """Whether the attack gains more than the limit or contradicts what the job claims."""
        return self.leak > limit or self.verdict is Verdict.BROKEN

    @property
    def explanation(self) -> str:
        """What the result means, in one plain sentence."""
        return f"{self.achievement[0].upper()}{self.achievement[1:]}."

    @property
    def achievement(self) -> str:
        """The same as a clause."""
        found = self.found
        whose = "the primary" if self.victim is Victim.PRIMARY else self.about
        who = self.about if found.adversary is Adversary.SECONDARY else f"the {found.adversary.value}"
        facts = {"who": who, "whose": whose, "about": self.about, "share": f"{100 * found.score.value:.3g} %"}
        facts |= {"score": f"{found.score.value:.2f}", "blind": f"{found.blind:.2f}", "learns": self.learns}
        facts |= {"metres": f"{found.figures.get(RADIUS_METRES, 0.0):,.0f}"}
        facts |= {"named": f"{100 * found.figures.get(NAMED, 0.0):.3g} %", "share_blind": f"{100 * found.blind:.3g} %"}
        facts |= {"needed": f"{found.figures.get(TOKENS_NEEDED, 0.0):,.0f}"}
        facts |= {"error": f"{found.figures.get(MEDIAN_ERROR_METRES, 0.0):,.0f}"}
        return EXPLANATIONS[found.kind].format(**facts)

    @property
    def remedy(self) -> str:
        """The setting that limits such an attack."""
        return REMEDIES[self.found.kind]

    def as_dict(self) -> dict[str, Any]:
        """Return the row in JSON types."""

        def number(value: float) -> float | None:
            return float(value) if math.isfinite(value) else None

        found = asdict(self.found)
        found["kind"], found["adversary"] = self.found.kind.value, self.found.adversary.value
        found["figures"] = {name: number(value) for name, value in self.found.figures.items()}
        found["seconds"] = number(self.found.seconds)
        return {
            "about": self.about,
            "victim": self.victim.value,
            "learns": self.learns,
            "explanation": self.explanation,
            "remedy": self.remedy,
            **found,
            "leak": self.leak,
            "guarantee": self.guarantee.sentence,
            "promised_at_most": self.guarantee.most,
            "verdict": self.verdict.value,
        }


@dataclass(frozen=True)
class SkippedAttack:
    """An attack that was not run, and why."""

    who: Adversary
    what: str
    why: str


NEVER_ATTACKED = (
    SkippedAttack(
        Adversary.PRIMARY,
        "gradients that steer a secondary's network (FSHA, URVFL)",
        "all parties are assumed to follow the protocol",
    ),
    SkippedAttack(Adversary.SECONDARY, "poisoned features and backdoors", "they change the model but reveal nothing"),
    SkippedAttack(
        Adversary.COORDINATOR,
        "encoded identifiers",
        "encodings that keep similarities reveal names and places; choose a coordinator that you trust, or none",
    ),
    SkippedAttack(
        Adversary.PRIMARY,
        "several jobs together",
        "features are drawn once for all jobs, similarities are not; limit policy.max_jobs and max_new_records",
    ),
    SkippedAttack(
        Adversary.COORDINATOR,
        "collusion: with the key of one party, the coordinator can open all filters",
        "the protocol cannot prevent it; choose a coordinator that you trust",
    ),
)


@dataclass(frozen=True)
class PlannedAttack:
    """An attack that applies; ``memory`` is the largest number of bytes it needs.

    A guarantee that takes long to compute is a function, called once the attack has run.
    """

    kind: AttackKind
    who: Adversary
    victim: Victim
    what: str
    learns: str
    run: Callable[[], AttackFinding]
    guarantee: Guarantee | Callable[[], Guarantee] = NO_GUARANTEE
    memory: float = 0.0


def run_attacks(
    about: str, attacks: Iterable[PlannedAttack], memory: int
) -> tuple[list[AuditRow], list[SkippedAttack]]:
    """Run all attacks that fit into memory; one that fails is skipped with the reason."""
    rows, skipped = [], []
    for attack in attacks:
        if attack.memory > memory:
            need = f"needs about {attack.memory / GIB:.1f} GiB of memory, but {memory / GIB:.1f} GiB are free"
            why = f"{need}; audit fewer records (--most-records)"
            skipped.append(SkippedAttack(attack.who, attack.what, why))
            continue
        try:
            began = time.perf_counter()
            found, promised = attack.run(), attack.guarantee
            found = replace(found, seconds=time.perf_counter() - began)
            guarantee = promised if isinstance(promised, Guarantee) else promised()
            rows.append(AuditRow(about, attack.victim, attack.learns, found, guarantee))
        except errors.FedSimError as error:
            skipped.append(SkippedAttack(attack.who, attack.what, str(error)))
    return rows, skipped


# The report.


@dataclass(frozen=True)
class AuditReport:
    """All results of an audit; ``notes`` say how far they can be trusted, ``tables`` whose tables were attacked."""

    job: str
    hash: str
    limit: float
    rows: tuple[AuditRow, ...]
    skipped: tuple[SkippedAttack, ...]
    notes: tuple[str, ...]
    tables: tuple[str, ...] = ()
    settings: AuditSettings | None = None

    @property
    def broken(self) -> tuple[AuditRow, ...]:
        """Rows that contradict what the job claims."""
        return tuple(row for row in self.rows if row.verdict is Verdict.BROKEN)

    @property
    def over(self) -> tuple[AuditRow, ...]:
        """Rows above the limit, worst first."""
        return tuple(sorted((row for row in self.rows if row.leak > self.limit), key=lambda row: -row.leak))

    @property
    def headline(self) -> str:
        """The worst finding in one sentence."""
        if self.broken:
            worst = max(self.broken, key=lambda row: row.leak)
            return f"BROKEN: the job claims {worst.guarantee.sentence}, but {worst.achievement}"
        greedy = [row for row in self.rows if row.found.kind is AttackKind.DISTANCES and row.verdict is Verdict.KEPT]
        if greedy:
            # These attacks use all links together, which the bound tau does not cover, whatever the limit is.
            bound, kinds = greedy[0].guarantee.most or 0.0, (AttackKind.LOCATION, AttackKind.LIKELIHOOD)
            stronger = [row for row in self.rows if row.found.kind in kinds and row.leak > bound]
            located = [row for row in stronger if row.found.kind is AttackKind.LOCATION]
            if stronger:  # metres are easier to understand than filters
                worst = max(located or stronger, key=lambda row: row.leak)
                return f"{greedy[0].guarantee.sentence} holds for single similarities, but {worst.achievement}"
        if not self.over:
            return f"no attack gains more than {self.limit:g} over blind guessing"
        return self.over[0].explanation.removesuffix(".")

    def plot(self) -> Any:
        """Return a chart of the attacks per adversary, which a notebook shows; ``save(path)`` writes them as a page."""
        return import_module("fedsim_audit.audit_page").plot_audit(self)  # the charts are of a higher layer

    def as_dict(self) -> dict[str, Any]:
        """Return the report in JSON types."""
        return {
            "format": AUDIT_FORMAT,
            "headline": self.headline,
            "job": self.job,
            "hash": self.hash,
            "tables": list(self.tables),
            "limit": self.limit,
            "settings": None if self.settings is None else self.settings.as_dict(),
            "exceeds": bool(self.over) or bool(self.broken),
            "findings": [row.as_dict() for row in self.rows],
            "not_attacked": [{"adversary": s.who.value, "what": s.what, "why": s.why} for s in self.skipped],
            "notes": list(self.notes),
        }
