"""What the primary can learn from a linkage: filters one similarity at a time, filters and places from all links."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from scipy.stats import spearmanr

from fedsim.attack.finding import Adversary, Estimate, Finding, timed
from fedsim.attack.greedy import distance_attack, greedy_attack
from fedsim.attack.likelihood import grid_attack, likelihood_attack
from fedsim.attack.linkgraph import BY_CROWD, BY_MIDDLE, BY_RANK, link_graph_attack
from fedsim.attack.membership import membership_attack
from fedsim.attack.multilateration import multilateration_attack
from fedsim.attack.view import PrimaryView
from fedsim.audit.attempt import Attempt
from fedsim.audit.guard import DOUBT, within
from fedsim.audit.rows import NOTHING, Guarantee
from fedsim.audit.scene import Linkage
from fedsim.audit.settings import Settings
from fedsim.privacy.bounds import noise_for, success_bound
from fedsim.privacy.mechanisms import PlanarLaplace
from fedsim.privacy.plane import metres_between
from fedsim.types import Floats, Integers

Attack = Callable[[PrimaryView], Finding]
FILTER = "the exact filter of a partner's record, hence its identifiers"
SLACK = 0.05  # the shape of a town is a prior that helps any attacker a little beyond the blurred place
NO_MORE = Guarantee("none: tau speaks of one similarity at a time")
PSEUDONYMS = Guarantee("pseudonyms are a secret random order and say nothing about rows", 0.0)


def attempts(linkage: Linkage, settings: Settings, rng: np.random.Generator) -> Iterator[Attempt]:
    """Every attack of the primary that applies to this linkage."""
    yield from _on_filters(linkage, settings, rng)
    if linkage.own is not None:
        yield from on_places(linkage, settings, rng)
        yield from _on_blur(linkage)
    rows = linkage.order
    yield _attempt("row order", "the order of the secondary's table", lambda: row_order(rows), PSEUDONYMS)


def _on_blur(linkage: Linkage) -> Iterator[Attempt]:
    """Whether places have moved as far as the job says: a mechanism left out, not an attack."""
    before, after, blur = linkage.scene.own_places(), linkage.own, linkage.terms.blur
    if blur is None or before is None or after is None:
        return
    step = PlanarLaplace(blur.epsilon).mean_step
    promised = Guarantee(f"places move by {step:,.0f} m on average", 0.0)
    yield _attempt(
        "noise left out of places",
        "what moving places should hide",
        lambda: missing_steps(before, after, step),
        promised,
    )


@timed
def missing_steps(before: Floats, after: Floats, promised: float) -> Finding:
    """How much of the promised mean step is not there; records of one place count once, for they move together."""
    first = np.unique(before, axis=0, return_index=True)[1]
    steps = metres_between(before[first], after[first])
    missing, doubt = float(1.0 - steps.mean() / promised), DOUBT * math.sqrt(0.5 / len(steps))
    measure, knew = "share of the promised step that is missing", "places before and after they moved"
    return Finding(
        "noise left out of places", Adversary.PRIMARY, measure, within(missing, doubt), 0.0, len(steps), knew
    )


def _on_filters(linkage: Linkage, settings: Settings, rng: np.random.Generator) -> Iterator[Attempt]:
    view, terms, room = linkage.seen, linkage.terms, _codebook_bytes(linkage)
    promised = _tau(linkage)
    if terms.metric == "hamming":
        distance = linkage.distances()

        def on_filters(seen: PrimaryView) -> Finding:
            return greedy_attack(seen, linkage.codes, rng=rng)

        def on_distances(seen: PrimaryView) -> Finding:
            return distance_attack(seen, distance)

        for name, learns, seen, attack, memory in (
            ("greedy", FILTER, view, on_filters, room),
            ("greedy, distances", "the exact distance of a link", linkage.apart(), on_distances, 0.0),
        ):
            affordable = memory <= settings.memory
            mark = _with_honest_noise(linkage, promised, seen, attack, rng) if affordable else promised
            yield _attempt(name, learns, partial(_stronger, seen, attack), mark, memory)
    claimed = NO_MORE if promised.most is not None else NOTHING
    yield _attempt(
        "likelihood",
        FILTER,
        lambda: likelihood_attack(view, linkage.codes, rng=rng, targets=settings.targets),
        claimed,
        room,
    )


def on_places(linkage: Linkage, settings: Settings, rng: np.random.Generator) -> Iterator[Attempt]:
    """Every attack that locates partners; a blurred job promises something against all of them."""
    view, own, truth = linkage.seen, linkage.own, linkage.truth(settings.metres)
    if own is None:
        return
    learns, promised = f"where a partner's record is, within {settings.metres:g} m", blur_promise(linkage, settings)
    ways = [BY_MIDDLE, BY_RANK, *([BY_CROWD] if linkage.terms.dummies else [])]
    for way in ways:
        yield _attempt(way.attack, learns, partial(link_graph_attack, view, own, truth, rng=rng, way=way), promised)
    if not linkage.terms.hide_rows and not linkage.terms.dummies:
        name = "link graph made consistent"
        yield _attempt(name, learns, lambda: membership_attack(view, own, truth, rng=rng), promised)
    if not linkage.terms.hide_rows:
        blind = PrimaryView(view.partner, view.similarity, None, view.sigma)
        yield _attempt("multilateration", learns, lambda: multilateration_attack(blind, own, truth, rng=rng), promised)
    encoder = linkage.ranked_places()
    if encoder is not None:
        yield _attempt(
            "grid likelihood",
            learns,
            lambda: grid_attack(view, own, truth, encoder, rng=rng, targets=settings.targets),
            promised,
        )


@timed
def row_order(order: Integers) -> Finding:
    """Whether pseudonyms follow the secondary's own rows: a mechanism left out, not an attack."""
    related = abs(float(spearmanr(np.arange(len(order)), order).statistic)) if len(order) > 2 else 0.0
    doubt = 4.0 / math.sqrt(max(1, len(order)))  # four deviations of chance
    found = Estimate(related, max(0.0, related - doubt), min(1.0, related + doubt))
    measure, knew = "rank correlation of pseudonyms with rows", "pseudonyms"
    return Finding("row order", Adversary.PRIMARY, measure, found, 0.0, len(order), knew)


def blur_promise(linkage: Linkage, settings: Settings) -> Guarantee:
    """What blurring promises: nobody does better than one who holds the blurred place itself."""
    blur = linkage.terms.blur
    if blur is None:
        return NOTHING
    mechanism, reach = PlanarLaplace(blur.epsilon), blur.epsilon * settings.metres
    share = 1.0 - (1.0 + reach) * math.exp(-reach)
    return Guarantee(mechanism.guarantee, min(1.0, max(share, _blind(linkage, settings)) + SLACK))


def _blind(linkage: Linkage, settings: Settings) -> float:
    """Share that a guesser finds who names the best place of all for everybody."""
    places = linkage.truth(settings.metres).places
    some = places[:: 1 + len(places) // 500]
    near = np.hypot(*np.moveaxis((some[:, None] - some) * 111_195.0, -1, 0)) <= settings.metres
    return float(near.mean(axis=1).max())


def _tau(linkage: Linkage) -> Guarantee:
    """The bound the job claims, whatever the build does."""
    terms, scale = linkage.terms, linkage.view.known_scale()
    if terms.tau is not None:
        return Guarantee(f"tau={terms.tau:g} against the greedy attack", terms.tau)
    if terms.sigma and terms.metric == "hamming":
        bound = success_bound(terms.sigma, scale.deviation)
        return Guarantee(f"sigma={terms.sigma:g}, that is tau={bound:.3g} against the greedy attack", bound)
    return NOTHING


def _with_honest_noise(
    linkage: Linkage, promised: Guarantee, seen: PrimaryView, attack: Attack, rng: np.random.Generator
) -> Guarantee:
    """The theorem takes similarities to be normal; where they are not, noise drawn here as promised sets the mark."""
    scale, distance = linkage.view.known_scale(), linkage.distances()
    if promised.most is None or scale.deviation <= 0:
        return promised
    sigma = linkage.terms.sigma or noise_for(promised.most, scale.deviation)
    similarity = (-distance - scale.mean) / scale.deviation + rng.normal(0.0, sigma, distance.shape)
    reached = _stronger(PrimaryView(seen.partner, similarity, scale, sigma), attack).score.high
    return replace(promised, reached=reached)


def _stronger(view: PrimaryView, attack: Attack) -> Finding:
    """The better of two attackers: one who believes in the noise, and one who does not."""
    naive = PrimaryView(view.partner, view.similarity, view.scale, 0.0)
    tries = [attack(seen) for seen in ([view, naive] if view.sigma else [view])]
    return max(tries, key=lambda found: found.score.value)


def _attempt(
    what: str, learns: str, run: Callable[[], Finding], promised: Guarantee = NOTHING, memory: float = 0.0
) -> Attempt:
    return Attempt(Adversary.PRIMARY, what, learns, run, promised, memory)


def _codebook_bytes(linkage: Linkage) -> float:
    """Distances of some hundred links to all possible filters, and both tables' filters unpacked."""
    queries, candidates = linkage.encoded
    return float(3 * 200 * 8 * len(candidates) + 4 * (len(queries) + len(candidates)) * queries.bits.shape[1])
