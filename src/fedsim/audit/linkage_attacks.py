"""The attacks on a linkage: by the primary on its links, and by the coordinator on encoded identifiers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl
from scipy.stats import spearmanr

from fedsim.attack.filter_attacks import (
    NameList,
    filter_similarity,
    frequency_attack,
    graph_attack,
    name_similarity,
    order_attack,
)
from fedsim.attack.finding import Adversary, AttackFinding, IntervalEstimate, timed
from fedsim.attack.location_attacks import (
    PLAIN_CENTROID,
    RANKED_CENTROID,
    ROBUST_CENTROID,
    consistency_attack,
    link_graph_attack,
    multilateration_attack,
)
from fedsim.attack.primary_view import PrimaryView
from fedsim.attack.similarity_attacks import distance_attack, greedy_attack, grid_attack, likelihood_attack
from fedsim.audit.attack_runner import CHECK_DEVIATIONS, NO_GUARANTEE, Guarantee, PlannedAttack, clipped_estimate
from fedsim.audit.attack_setup import AuditedLinkage
from fedsim.audit.report import AuditSettings
from fedsim.data.columns import parse_required_numbers
from fedsim.linkage import similarities
from fedsim.linkage.encoding import NumericFilter, StringFilter
from fedsim.linkage.encoding.filters import normalise_text
from fedsim.linkage.encoding.record_filters import BitFlip
from fedsim.privacy.bounds import sigma_for_bound, success_bound
from fedsim.privacy.geodesy import great_circle_metres
from fedsim.privacy.mechanisms import PlanarLaplace
from fedsim.types import Bits, Floats, Integers

# What the primary can learn from a linkage: filters one similarity at a time, filters and places from all links


ViewAttack = Callable[[PrimaryView], AttackFinding]
FILTER_SECRET = "the exact filter of a partner's record, hence its identifiers"  # noqa: S105
PRIOR_SLACK = 0.05  # the shape of a town is a prior that helps any attacker a little beyond the blurred place
TAU_DOES_NOT_APPLY = Guarantee("none: tau speaks of one similarity at a time")
PSEUDONYM_GUARANTEE = Guarantee("pseudonyms are a secret random order and say nothing about rows", 0.0)


def primary_attacks(
    linkage: AuditedLinkage, settings: AuditSettings, rng: np.random.Generator
) -> Iterator[PlannedAttack]:
    """Every attack of the primary that applies to this linkage."""
    yield from _filter_attacks(linkage, settings, rng)
    if linkage.own is not None:
        yield from location_attacks(linkage, settings, rng)
        yield from _blur_check(linkage)
    rows = linkage.order
    yield _planned(
        "row order", "the order of the secondary's table", lambda: row_order_check(rows), PSEUDONYM_GUARANTEE
    )


def _blur_check(linkage: AuditedLinkage) -> Iterator[PlannedAttack]:
    """Whether places have moved as far as the job says: a mechanism left out, not an attack."""
    before, after, blur = linkage.scene.primary_places(), linkage.own, linkage.terms.blur
    if blur is None or before is None or after is None:
        return
    step = PlanarLaplace(blur.epsilon).mean_step
    promised = Guarantee(f"places move by {step:,.0f} m on average", 0.0)
    yield _planned(
        "noise left out of places",
        "what moving places should hide",
        lambda: missing_displacement(before, after, step),
        promised,
    )


@timed
def missing_displacement(before: Floats, after: Floats, promised: float) -> AttackFinding:
    """How much of the promised mean step is not there; records of one place count once, for they move together."""
    first = np.unique(before, axis=0, return_index=True)[1]
    steps = great_circle_metres(before[first], after[first])
    missing, doubt = float(1.0 - steps.mean() / promised), CHECK_DEVIATIONS * math.sqrt(0.5 / len(steps))
    measure, knew = "share of the promised step that is missing", "places before and after they moved"
    return AttackFinding(
        "noise left out of places", Adversary.PRIMARY, measure, clipped_estimate(missing, doubt), 0.0, len(steps), knew
    )


def _filter_attacks(
    linkage: AuditedLinkage, settings: AuditSettings, rng: np.random.Generator
) -> Iterator[PlannedAttack]:
    view, terms, room = linkage.seen, linkage.terms, _codebook_bytes(linkage)
    promised = _tau_guarantee(linkage)
    if terms.metric == "hamming":
        distance = linkage.distances()

        def on_filters(seen: PrimaryView) -> AttackFinding:
            return greedy_attack(seen, linkage.codes, rng=rng)

        def on_distances(seen: PrimaryView) -> AttackFinding:
            return distance_attack(seen, distance)

        for name, learns, seen, attack, memory in (
            ("greedy", FILTER_SECRET, view, on_filters, room),
            ("greedy, distances", "the exact distance of a link", linkage.with_distinct_pairs(), on_distances, 0.0),
        ):
            affordable = memory <= settings.memory
            mark = _with_reference_noise(linkage, promised, seen, attack, rng) if affordable else promised
            yield _planned(name, learns, partial(_best_of_two_attackers, seen, attack), mark, memory)
    claimed = TAU_DOES_NOT_APPLY if promised.most is not None else NO_GUARANTEE
    yield _planned(
        "likelihood",
        FILTER_SECRET,
        lambda: likelihood_attack(view, linkage.codes, rng=rng, targets=settings.targets),
        claimed,
        room,
    )


def location_attacks(
    linkage: AuditedLinkage, settings: AuditSettings, rng: np.random.Generator
) -> Iterator[PlannedAttack]:
    """Every attack that locates partners; a blurred job promises something against all of them."""
    view, own, truth = linkage.seen, linkage.own, linkage.truth(settings.metres)
    if own is None:
        return
    learns, promised = f"where a partner's record is, within {settings.metres:g} m", blur_guarantee(linkage, settings)
    ways = [PLAIN_CENTROID, RANKED_CENTROID, *([ROBUST_CENTROID] if linkage.terms.dummies else [])]
    for way in ways:
        yield _planned(way.attack, learns, partial(link_graph_attack, view, own, truth, rng=rng, way=way), promised)
    if not linkage.terms.hide_rows and not linkage.terms.dummies:
        name = "link graph made consistent"
        yield _planned(name, learns, lambda: consistency_attack(view, own, truth, rng=rng), promised)
    if not linkage.terms.hide_rows:
        blind = PrimaryView(view.partner, view.similarity, None, view.sigma)
        yield _planned("multilateration", learns, lambda: multilateration_attack(blind, own, truth, rng=rng), promised)
    encoder = linkage.place_encoder()
    if encoder is not None:
        yield _planned(
            "grid likelihood",
            learns,
            lambda: grid_attack(view, own, truth, encoder, rng=rng, targets=settings.targets),
            promised,
        )


@timed
def row_order_check(order: Integers) -> AttackFinding:
    """Whether pseudonyms follow the secondary's own rows: a mechanism left out, not an attack."""
    related = abs(float(spearmanr(np.arange(len(order)), order).statistic)) if len(order) > 2 else 0.0
    doubt = 4.0 / math.sqrt(max(1, len(order)))  # four deviations of chance
    found = IntervalEstimate(related, max(0.0, related - doubt), min(1.0, related + doubt))
    measure, knew = "rank correlation of pseudonyms with rows", "pseudonyms"
    return AttackFinding("row order", Adversary.PRIMARY, measure, found, 0.0, len(order), knew)


def blur_guarantee(linkage: AuditedLinkage, settings: AuditSettings) -> Guarantee:
    """What blurring promises: nobody does better than one who holds the blurred place itself."""
    blur = linkage.terms.blur
    if blur is None:
        return NO_GUARANTEE
    mechanism, reach = PlanarLaplace(blur.epsilon), blur.epsilon * settings.metres
    share = 1.0 - (1.0 + reach) * math.exp(-reach)
    return Guarantee(mechanism.guarantee, min(1.0, max(share, _blind_location_rate(linkage, settings)) + PRIOR_SLACK))


def _blind_location_rate(linkage: AuditedLinkage, settings: AuditSettings) -> float:
    """Share that a guesser finds who names the best place of all for everybody."""
    places = linkage.truth(settings.metres).places
    some = places[:: 1 + len(places) // 500]
    near = np.hypot(*np.moveaxis((some[:, None] - some) * 111_195.0, -1, 0)) <= settings.metres
    return float(near.mean(axis=1).max())


def _tau_guarantee(linkage: AuditedLinkage) -> Guarantee:
    """The bound the job claims, whatever the build does."""
    terms, scale = linkage.terms, linkage.view.known_scale()
    if terms.tau is not None:
        return Guarantee(f"tau={terms.tau:g} against the greedy attack", terms.tau)
    if terms.sigma and terms.metric == "hamming":
        bound = success_bound(terms.sigma, scale.deviation)
        return Guarantee(f"sigma={terms.sigma:g}, that is tau={bound:.3g} against the greedy attack", bound)
    return NO_GUARANTEE


def _with_reference_noise(
    linkage: AuditedLinkage, promised: Guarantee, seen: PrimaryView, attack: ViewAttack, rng: np.random.Generator
) -> Guarantee:
    """The theorem takes similarities to be normal; where they are not, noise drawn here as promised sets the mark."""
    scale, distance = linkage.view.known_scale(), linkage.distances()
    if promised.most is None or scale.deviation <= 0:
        return promised
    sigma = linkage.terms.sigma or sigma_for_bound(promised.most, scale.deviation)
    similarity = similarities(distance, scale, sigma=sigma, noise=rng)
    reached = _best_of_two_attackers(PrimaryView(seen.partner, similarity, scale, sigma), attack).score.high
    return replace(promised, reached=reached)


def _best_of_two_attackers(view: PrimaryView, attack: ViewAttack) -> AttackFinding:
    """The better of two attackers: one who believes in the noise, and one who does not."""
    naive = PrimaryView(view.partner, view.similarity, view.scale, 0.0)
    tries = [attack(seen) for seen in ([view, naive] if view.sigma else [view])]
    return max(tries, key=lambda found: found.score.value)


def _planned(
    what: str, learns: str, run: Callable[[], AttackFinding], promised: Guarantee = NO_GUARANTEE, memory: float = 0.0
) -> PlannedAttack:
    return PlannedAttack(Adversary.PRIMARY, what, learns, run, promised, memory)


def _codebook_bytes(linkage: AuditedLinkage) -> float:
    """Distances of some hundred links to all possible filters, and both tables' filters unpacked."""
    queries, candidates = linkage.encoded
    return float(3 * 200 * 8 * len(candidates) + 4 * (len(queries) + len(candidates)) * queries.bits.shape[1])


# What the coordinator can read off the filters of a secondary, without any key


KNOWN_RECORDS = 10  # records whose numbers the coordinator happens to know
MAX_GRAPH_RECORDS = 300  # the attack costs their cube
RECORDS_PER_TARGET = 4  # records named for every target of the slow attacks
MAX_ORDER_BITS = 4_096  # of long filters every so-manieth byte is looked at: the attack costs their square


def coordinator_attacks(
    linkage: AuditedLinkage, settings: AuditSettings, rng: np.random.Generator
) -> Iterator[PlannedAttack]:
    """Every attack of the coordinator that applies to these filters."""
    schema, table = linkage.terms.encoding, linkage.encoded[1]
    flips = next((step.flip_probability for step in schema.hardening if isinstance(step, BitFlip)), 0.0)
    numeric = [field.column for field in schema.fields if isinstance(field.encoding, NumericFilter)]
    texts = [field for field in schema.fields if isinstance(field.encoding, StringFilter) and field.salt is None]
    if numeric:
        bits = min(table.n_bits, MAX_ORDER_BITS)
        yield PlannedAttack(
            Adversary.COORDINATOR,
            "order of numeric filters",
            f"the order of {', '.join(numeric)} in the secondary's table",
            lambda: _run_order_attack(linkage, numeric, flips, rng),
            _bit_flip_guarantee(flips),
            memory=16.0 * bits**2 + 6.0 * len(table) * bits,
        )
    if len(texts) == 1 and len(schema.fields) == 1:
        yield from _name_attacks(linkage, texts[0].column, flips, rng, RECORDS_PER_TARGET * settings.targets)


def _name_attacks(
    linkage: AuditedLinkage, column: str, flips: float, rng: np.random.Generator, most: int
) -> Iterator[PlannedAttack]:
    names = _normalised_names(linkage, column)
    learns, promised = (
        f"the {column} of a record, with the party's own list as the public one",
        _bit_flip_guarantee(flips),
    )
    rows = np.sort(rng.choice(len(names), min(most, len(names)), replace=False))
    yield PlannedAttack(
        Adversary.COORDINATOR,
        "frequency of string filters",
        learns,
        lambda: _run_frequency_attack(linkage, [names[row] for row in rows], linkage.encoded[1].bits[rows], flips),
        promised,
        memory=24.0 * len(rows) * len(set(names)),
    )
    yield PlannedAttack(
        Adversary.COORDINATOR,
        "graph matching of filters",
        learns,
        lambda: _run_graph_attack(linkage, names, rng),
        promised,
        memory=80.0 * MAX_GRAPH_RECORDS**2,
    )


def _run_order_attack(
    linkage: AuditedLinkage, numeric: list[str], flips: float, rng: np.random.Generator
) -> AttackFinding:
    filters, frame = linkage.encoded[1].bits, linkage.scene.secondary
    step = -(-8 * filters.shape[1] // MAX_ORDER_BITS)
    truth = np.column_stack(
        [parse_required_numbers(frame[name], table=linkage.scene.name).to_numpy() for name in numeric]
    )
    known = rng.choice(len(truth), min(KNOWN_RECORDS, len(truth)), replace=False)
    some = np.ascontiguousarray(filters[:, ::step])
    return order_attack(some, truth.astype(np.float64), known, rng=rng, flip_probability=flips)


def _run_frequency_attack(linkage: AuditedLinkage, names: list[str], filters: Bits, flips: float) -> AttackFinding:
    public, truth, count = np.unique(names, return_inverse=True, return_counts=True)
    listed = NameList(public.tolist(), count.astype(np.float64), _string_filter(linkage).grams)
    return frequency_attack(filters, listed, truth.astype(np.int64), flip_probability=flips)


def _run_graph_attack(linkage: AuditedLinkage, names: list[str], rng: np.random.Generator) -> AttackFinding:
    public, first = np.unique(names, return_index=True)
    chosen = rng.choice(len(public), min(MAX_GRAPH_RECORDS, len(public)), replace=False)
    shuffled = rng.permutation(len(chosen))
    encoded = filter_similarity(linkage.encoded[1].bits[first[chosen][shuffled]])
    plain = name_similarity([str(name) for name in public[chosen]], _string_filter(linkage).grams)
    return graph_attack(encoded, plain, shuffled.astype(np.int64))


def _string_filter(linkage: AuditedLinkage) -> StringFilter:
    return next(field.encoding for field in linkage.terms.encoding.fields if isinstance(field.encoding, StringFilter))


def _normalised_names(linkage: AuditedLinkage, column: str) -> list[str]:
    texts = linkage.scene.secondary[column].cast(pl.String).to_list()
    return [normalise_text(text) for text in texts] if _string_filter(linkage).normalised else texts


def _bit_flip_guarantee(flips: float) -> Guarantee:
    if flips == 0:
        return NO_GUARANTEE
    return Guarantee(f"none that bounds this attack: each bit is flipped with probability {flips:.3g}")
