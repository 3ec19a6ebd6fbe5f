"""What a primary learns by asking again, within what the policies allow: by several jobs, and by made-up records.

Another job draws the noise on similarities anew, and every made-up record has noise of its own. So the
attacks use as many of them as a secondary and its coordinator accept. Blurred places and protected features are the
same in all jobs.

Letters: n own records, m partner records, K partners, U linked rows, C numbers sent per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

import numpy as np
import polars as pl
import torch
from numpy.random import Generator

from fedsim import cells
from fedsim.config.job import Job
from fedsim.config.party_file import Policy
from fedsim.config.stored_audit import AttackKind
from fedsim.linkage.private_linkage import link_new_records
from fedsim.pipeline.party_table import encode_table
from fedsim.privacy import geodesy, keyed_prng
from fedsim.privacy.mechanisms import NoisyFeatures
from fedsim.protocol.roles.coordinator_role import NEW_LINK_FACTOR
from fedsim.runtime import run_store
from fedsim.runtime.primary import training_config
from fedsim.runtime.secondary import longest_training
from fedsim.splitnn import Features
from fedsim.splitnn.party_model import RandomSource
from fedsim.splitnn.secondary_model import start_secondary
from fedsim.types import EncodedTable, Floats, Integers
from fedsim_audit.attacks import attack_finding
from fedsim_audit.attacks.attack_finding import AttackFinding
from fedsim_audit.attacks.cut_layer_attacks import inversion_attack
from fedsim_audit.attacks.location_attacks import ranked_centroids
from fedsim_audit.attacks.repetition_attacks import (
    average_views,
    guess_features,
    locate_rows,
    location_attack,
    repeat_attack,
    repeated_inversion_attack,
    thin_links,
)
from fedsim_audit.attacks.similarity_attacks import Codebook, LinksByPartner, PrimaryView, likelihood_attack
from fedsim_audit.audit_report import NO_GUARANTEE, AuditSettings, Guarantee, PlannedAttack
from fedsim_audit.linkage_attacks import (
    FILTER_SECRET,
    MAPPED_POSITIONS,
    PRIOR_SLACK,
    AttackSetup,
    AuditedLinkage,
    Place,
    blur_guarantee,
    nearest_guarantee,
    primary_attack,
)
from fedsim_audit.split_attacks import TrainingInputs, feature_columns, sample_known_rows

MAX_JOBS, MAX_QUICK_JOBS = 100, 10  # that an audit simulates
PAIRS_OF_ALL_JOBS = 1_500_000_000  # records by candidates, over all simulated jobs
MAX_PROBES = 100  # records per target
MAX_TRAINED_EMBEDDINGS = 20  # an autoencoder of every job takes about two seconds
TARGETS_PER_PROBED = 5  # targets of other attacks for every record that is probed
MAX_LINKS = 200  # of a row, to locate it
FLIPPED_BITS = 2  # of a made-up filter
PROBE_REACH = 0.7  # of the median distance of a link: made-up places are this near to a target


@dataclass(frozen=True)
class Allowance:
    """What one primary may ask: jobs of a secondary, and new records of a list, in total and per candidate."""

    jobs: int
    new_records: int
    new_links: int
    record_uses: int | None

    @classmethod
    def of(cls, job: Job, secondary: Policy, coordinator: Policy) -> Allowance:
        """Return what the policies of a secondary and of the coordinator allow jobs such as this one."""
        epochs = longest_training(job)[0]
        return cls(
            jobs=max(1, min(secondary.max_jobs, secondary.max_total_epochs // epochs)),
            new_records=min(secondary.max_new_records, coordinator.max_new_records),
            new_links=coordinator.max_new_links,
            record_uses=secondary.max_record_uses,
        )


@dataclass(frozen=True, eq=False, repr=False)
class BudgetAudit:
    """A linkage, what its training sends, and the policies that limit how often a primary may ask."""

    linkage: AuditedLinkage
    inputs: TrainingInputs | None
    job: Job
    secondary: Policy
    coordinator: Policy
    settings: AuditSettings

    @property
    def setup(self) -> AttackSetup:
        return self.linkage.setup

    @property
    def trains_embedding(self) -> bool:
        """Whether every job trains an embedding of its own."""
        return self.job.sends_embedding and self.job.protection.embedding_name == "autoencoder"

    @property
    def feature_jobs(self) -> int:
        """The number of jobs of which features are attacked; no linkage is needed for that."""
        most = MAX_TRAINED_EMBEDDINGS if self.trains_embedding else MAX_JOBS
        return min(self.allowance.jobs, MAX_QUICK_JOBS if self.settings.quick else most)

    @cached_property
    def allowance(self) -> Allowance:
        """What the policies allow."""
        return Allowance.of(self.job, self.secondary, self.coordinator)

    @cached_property
    def jobs(self) -> int:
        """The number of jobs that are simulated: all that are allowed, as far as time permits."""
        pairs = len(self.setup.primary) * len(self.setup.secondary)
        most = MAX_QUICK_JOBS if self.settings.quick else MAX_JOBS
        return max(2, min(self.allowance.jobs, most, PAIRS_OF_ALL_JOBS // pairs)) if self.allowance.jobs > 1 else 1

    def attacks(self, rng: Generator) -> Iterator[PlannedAttack]:
        """Plan the attacks of a primary that uses up what it is allowed."""
        yield from _repeated_links(self, rng)
        yield from _probing(self, rng)
        if self.inputs is not None:
            yield from _repeated_features(self, self.inputs, rng)


# Several jobs: similarities and places


@dataclass(frozen=True, eq=False, repr=False)
class JobView:
    """What the primary sees in one job, with the secondary's rows instead of pseudonyms, and its places as linked."""

    view: PrimaryView
    own: Mapping[Place, Floats]

    @classmethod
    def of(cls, linkage: AuditedLinkage) -> JobView:
        """Return what is seen of a linkage."""
        setup = linkage.setup
        own = {each: cells.read_number_columns(linkage.linked, each.columns, setup.name) for each in setup.all_places}
        seen = linkage.view
        return cls(PrimaryView(linkage.order[seen.partner], seen.similarity, seen.scale, seen.sigma), own)


@dataclass(eq=False, repr=False)
class _Jobs:
    """The views of as many jobs as were asked for."""

    audit: BudgetAudit

    def __post_init__(self) -> None:
        self._views = [JobView.of(self.audit.linkage)]

    def first(self, number: int) -> list[JobView]:
        """Return the first jobs, in the order in which they ran."""
        for job in range(len(self._views), number):
            self._views.append(JobView.of(self.audit.setup.linkage(job=job)))
        return self._views[:number]


def _only_rows(view: PrimaryView, rows: Integers) -> PrimaryView:
    partner = np.where(np.isin(view.partner, rows), view.partner, -1)
    return PrimaryView(partner, view.similarity, view.scale, view.sigma)


def _repeated_links(audit: BudgetAudit, rng: Generator) -> Iterator[PlannedAttack]:
    linkage, jobs, settings = audit.linkage, audit.jobs, audit.settings
    listed = np.unique(linkage.order[linkage.view.partner])
    rows = attack_finding.sample_targets(listed, settings.targets, rng)
    flips = bool(linkage.terms.encoding.hardening)
    title, views = _jobs_title(jobs), _Jobs(audit)
    if not flips and linkage.view.sigma:

        def filters(number: int) -> AttackFinding:
            view = _only_rows(average_views([each.view for each in views.first(number)]), rows)
            return likelihood_attack(view, _codes_by_row(linkage), rng=rng, targets=None)

        run = partial(_attack_jobs, audit, f"filters {title}", AttackKind.REPEATED_LINKS, jobs, filters)
        memory = float(3 * 200 * 8 * len(linkage.encoded[1]) + 16 * jobs * linkage.view.partner.size)
        yield primary_attack(AttackKind.REPEATED_LINKS, f"filters {title}", FILTER_SECRET, run, NO_GUARANTEE, memory)
    for place in linkage.setup.all_places:
        yield from _repeated_places(audit, place, views, rows, rng)


def _jobs_title(jobs: int) -> str:
    return f"over {jobs} jobs" if jobs > 1 else "over one job"


def _attack_jobs(
    audit: BudgetAudit, name: str, kind: AttackKind, jobs: int, attempt: Callable[[int], AttackFinding]
) -> AttackFinding:
    found = repeat_attack(name, kind, jobs, attempt)
    return replace(found, figures={**found.figures, attack_finding.JOBS_ALLOWED: float(audit.allowance.jobs)})


def _repeated_places(
    audit: BudgetAudit, place: Place, views: _Jobs, rows: Integers, rng: Generator
) -> Iterator[PlannedAttack]:
    linkage, jobs, radius = audit.linkage, audit.jobs, audit.settings.metres
    few, truth = attack_finding.sample_targets(rows, _n_probed(audit), rng), linkage.true_places(place, radius)
    if not linkage.view.sigma:  # places move once for all jobs, so that another one shows nothing new
        return

    def locate(number: int) -> AttackFinding:
        seen, own = views.first(number), views.first(1)[0].own[place]
        average = average_views([each.view for each in seen])
        return location_attack(_located(linkage, average, own, few, rng), own, truth, rng=rng)

    which = f" ({place.columns[0]})" if len(linkage.setup.all_places) > 1 else ""
    name, learns = f"places {_jobs_title(jobs)}{which}", f"where a partner record is, within {radius:g} m{which}"
    promised = partial(blur_guarantee, linkage, audit.settings, place)
    run = partial(_attack_jobs, audit, name, AttackKind.REPEATED_LINKS, jobs, locate)
    yield primary_attack(
        AttackKind.REPEATED_LINKS, name, learns, run, promised, 48.0 * jobs * linkage.view.partner.size
    )


def _located(
    linkage: AuditedLinkage, view: PrimaryView, own: Floats, rows: Integers, rng: Generator
) -> Mapping[str, Floats]:
    """Return where a view places some rows."""
    few = thin_links(_only_rows(view, rows), MAX_LINKS, rng)
    return locate_rows(few, own, len(linkage.order), linkage.place_encoder(), rng=rng)


def _n_probed(audit: BudgetAudit) -> int:
    """Return the number of rows that are located or probed: fewer than other attacks try, but many times."""
    return max(1, audit.settings.targets // TARGETS_PER_PROBED)


def _codes_by_row(linkage: AuditedLinkage, queries: EncodedTable | None = None) -> Codebook:
    """Return the codebook with the true filter of every row of the secondary."""
    codes = linkage.codes if queries is None else linkage.codes_of(queries)
    truth = np.empty_like(codes.truth)
    truth[linkage.order] = codes.truth
    return replace(codes, truth=truth)


# Several jobs: features


def _repeated_features(audit: BudgetAudit, inputs: TrainingInputs, rng: Generator) -> Iterator[PlannedAttack]:
    linkage, job = audit.linkage, inputs.job
    jobs = audit.feature_jobs
    rows = attack_finding.sample_targets(np.unique(linkage.order[linkage.view.partner]), None, rng)
    features = feature_columns(inputs.secondary)[rows]
    known = sample_known_rows(len(rows), rng)

    terms, used, guesses = job.protection.features, protected_features(audit, inputs), list[Floats]()

    def invert(number: int) -> AttackFinding:
        for each in range(len(guesses), number):
            guesses.append(guess_features(sent_rows(inputs, used, job_secret(audit, each))[rows], features, known))
        # The same models and intervals for every number of jobs, so that only what they reveal differs.
        models = np.random.default_rng([audit.setup.seed, 11])
        return repeated_inversion_attack(guesses[:number], features, known, rng=models)

    def promised() -> Guarantee:
        """Bound the attack by what anyone who was given the protected features themselves would recover."""
        if terms is None:
            return NO_GUARANTEE
        given = inversion_attack(feature_columns(used)[rows], features, known, rng=np.random.default_rng(11))
        most, sentence = given.score.value + PRIOR_SLACK, NoisyFeatures(terms.noise).guarantee
        return Guarantee(sentence, most) if most < 1.0 else Guarantee("none is left")

    name, learns = f"features {_jobs_title(jobs)}", f"the features of {audit.setup.name}"
    run = partial(_attack_jobs, audit, name, AttackKind.REPEATED_FEATURES, jobs, invert)
    memory = 16.0 * features.size * jobs
    yield primary_attack(AttackKind.REPEATED_FEATURES, name, learns, run, promised, memory)


def job_secret(audit: BudgetAudit, number: int) -> bytes:
    """Return the secret of a secondary in one of its jobs."""
    return np.random.default_rng([audit.setup.seed, 3, number]).bytes(keyed_prng.SECRET_BYTES)


def protected_features(audit: BudgetAudit, inputs: TrainingInputs) -> Features:
    """Return the features of a secondary as all its jobs use them."""
    return run_store.protect_features(inputs.secondary, inputs.job, job_secret(audit, 0), audit.setup.name)


def sent_rows(inputs: TrainingInputs, features: Features, secret: bytes) -> Floats:
    """Return what a secondary sends of all its rows in a job with this secret, (m, C).

    This is the embedding, or else the activations of a network that has learnt nothing yet.
    """
    job, name = inputs.job, "secondary"
    source = RandomSource(int.from_bytes(secret[:7], "big"), name)
    if job.sends_embedding:
        return run_store.embedded_rows(features, job, source).astype(np.float64)
    below = replace(training_config(job).secondary, seed=source.step_seed("weights"))
    with torch.no_grad():
        rows = start_secondary(name, features, below, total_steps=1).infer(torch.arange(len(features)))
    return rows.numpy().astype(np.float64)


# Predictions of made-up records


@dataclass(frozen=True, eq=False, repr=False)
class Probes:
    """Made-up records and their links: the secondary's rows, and similarities as those of training.

    ``turn`` says for how many records of the same target it was asked before each of them.
    """

    queries: EncodedTable
    view: PrimaryView
    places: Mapping[Place, Floats]
    turn: Integers


def _probing(audit: BudgetAudit, rng: Generator) -> Iterator[PlannedAttack]:
    linkage, settings = audit.linkage, audit.settings
    rows = attack_finding.sample_targets(np.unique(linkage.order[linkage.view.partner]), _n_probed(audit), rng)
    probes, most = cache(partial(probe_rows, audit, rows, rng)), probes_per_row(audit, len(rows))
    if most == 0:
        return

    def seen(number: int) -> tuple[PrimaryView, Integers]:
        """Return the links of training with those of ``number`` records per target, and which records these are."""
        used, own, links = np.flatnonzero(probes().turn < number), linkage.view, probes().view
        partner = np.vstack([linkage.order[own.partner], links.partner[used]])
        together = np.vstack([own.similarity, links.similarity[used]])
        return _only_rows(PrimaryView(partner, together, own.scale, own.sigma), rows), used

    def filters(number: int) -> AttackFinding:
        (view, used), queries = seen(number), linkage.encoded[0]
        bits = np.vstack([queries.bits, probes().queries.bits[used]])
        codes = _codes_by_row(linkage, EncodedTable(bits, queries.n_bits, queries.fingerprint))
        return likelihood_attack(view, codes, rng=rng, targets=None)

    def locate(place: Place, number: int) -> AttackFinding:
        view, used = seen(number)
        linked = cells.read_number_columns(linkage.linked, place.columns, audit.setup.name)
        own, truth = np.vstack([linked, probes().places[place][used]]), linkage.true_places(place, settings.metres)
        return location_attack(_located(linkage, view, own, rows, rng), own, truth, rng=rng)

    title, what, kind = f"by {most} made-up records each", "made-up records each", AttackKind.PROBING
    memory = float(3 * 200 * 8 * len(linkage.encoded[1]) + 4 * len(rows) * most * linkage.encoded[0].bits.shape[1])
    run = partial(repeat_attack, f"filters {title}", kind, most, filters, what, first=0)
    everybody = audit.setup.secondary
    promised = partial(nearest_guarantee, linkage, everybody, linkage.partners, everybody)
    yield primary_attack(kind, f"filters {title}", FILTER_SECRET, run, promised, memory)
    for place in linkage.setup.all_places:
        which = f" ({place.columns[0]})" if len(linkage.setup.all_places) > 1 else ""
        name, learns = f"places {title}{which}", f"where a partner record is, within {settings.metres:g} m{which}"
        promised = partial(blur_guarantee, linkage, settings, place)
        run = partial(repeat_attack, name, kind, most, partial(locate, place), what, first=0)
        yield primary_attack(kind, name, learns, run, promised, memory)


def probes_per_row(audit: BudgetAudit, n_rows: int) -> int:
    """Return how many made-up records may be linked to each row."""
    allowed, most = audit.allowance, MAX_QUICK_JOBS if audit.settings.quick else MAX_PROBES
    limits = [allowed.new_records // n_rows, most, allowed.record_uses]
    return min(limit for limit in limits if limit is not None)


def probe_rows(audit: BudgetAudit, rows: Integers, rng: Generator) -> Probes:
    """Link made-up records near some rows, as many of each row as the coordinator answers.

    It refuses those that would give a row too many links; links to rows beside the target are not counted here.
    """
    linkage, turns = audit.linkage, probes_per_row(audit, len(rows))
    degree = np.bincount(linkage.order[linkage.view.partner].ravel(), minlength=len(linkage.order))
    most = np.maximum(audit.allowance.new_links, NEW_LINK_FACTOR * degree[rows])
    target, turn = np.tile(np.arange(len(rows)), turns), np.repeat(np.arange(turns), len(rows))
    target, turn = target[turn < most[target]], turn[turn < most[target]]
    queries, places = _made_up_records(audit, rows[target], rng)
    terms, name, seen = linkage.terms, linkage.setup.name, linkage.view
    config = replace(terms.linkage, k=min(terms.k, len(linkage.order)))
    found = link_new_records(queries, linkage.state, config, linkage.secret, name, threads=1)
    similarity = found.overall.astype(np.float64)
    return Probes(queries, PrimaryView(linkage.order[found.partner], similarity, seen.scale, seen.sigma), places, turn)


def _made_up_records(audit: BudgetAudit, rows: Integers, rng: Generator) -> tuple[EncodedTable, Mapping[Place, Floats]]:
    """Return one made-up record per row: its place is near that of the row, or a few bits of its filter are made up."""
    linkage, setup = audit.linkage, audit.setup
    view = PrimaryView(linkage.order[linkage.view.partner], linkage.view.similarity)
    flat = view.partner.ravel()
    order = np.lexsort((-view.similarity.ravel(), flat))  # the most similar record of every row comes first
    listed, first = np.unique(flat[order], return_index=True)
    nearest = order[first[np.searchsorted(listed, rows)]] // view.partner.shape[1]
    queries, frame, places = linkage.encoded[0], setup.primary[nearest], {}
    made = EncodedTable(queries.bits[nearest], queries.n_bits, queries.fingerprint)
    for place in setup.all_places:
        own = cells.read_number_columns(linkage.linked, place.columns, setup.name)
        origin, located = geodesy.mean_place(own), _centres(view, own, len(linkage.order))
        away = geodesy.great_circle_metres(np.repeat(own, view.partner.shape[1], axis=0), located[flat])
        angle, reach = 2.0 * math.pi * rng.random(len(rows)), PROBE_REACH * float(np.median(away))
        step = (reach * np.sqrt(rng.random(len(rows))))[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
        moved = geodesy.to_degrees(geodesy.to_metres(located[rows], origin) + step, origin)
        places[place] = np.clip(moved, own.min(axis=0), own.max(axis=0))
        frame = frame.with_columns(map(pl.Series, place.columns, places[place].T))
    if places:
        made = encode_table(linkage.terms.encoding, frame, linkage.key, setup.name, rng=rng)
    if any(isinstance(field.encoding, MAPPED_POSITIONS) for field in linkage.terms.encoding.fields):
        return made, places
    # Filters of near places are often equal, and equal records share their noise.
    bits = np.unpackbits(made.bits, axis=1)
    bits[np.arange(len(bits))[:, None], rng.integers(0, made.n_bits, (len(bits), FLIPPED_BITS))] ^= 1
    return EncodedTable(np.packbits(bits, axis=1), made.n_bits, made.fingerprint), places


def _centres(view: PrimaryView, own: Floats, n_rows: int) -> Floats:
    """Return the centre of the records that list each row, (m, 2) in degrees."""
    named, origin, places = LinksByPartner.of(view), geodesy.mean_place(own), np.full((n_rows, 2), np.nan)
    places[named.row] = geodesy.to_degrees(ranked_centroids(named, geodesy.to_metres(own, origin)), origin)
    return places
