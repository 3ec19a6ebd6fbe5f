"""The coordinator's linkage: from encoded identifiers to pseudonyms and noisy similarities, and the files it keeps.

The primary receives pseudonyms and noisy similarities (paper, section 4.1, equations 1 and 2). The search runs on
candidates that are already shuffled: if distances are equal, the lower pseudonym wins, which reveals nothing about the
secondary's order. The partners of a record are sorted by *noisy* similarity; sorting by distance would reveal the order
without noise.

Letters: n primary records, m secondary records, K partners.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsim.errors import InputError, SettingError
from fedsim.linkage.metrics import SteppedMetric, get_metric
from fedsim.linkage.soft_linkage import fit_scale, similarities, topk
from fedsim.privacy import bounds, keyed_prng
from fedsim.registry import METRICS
from fedsim.storage.tensor_file import Tensors, damaged_file, load_tensors, save_tensors
from fedsim.types import AnyArray, EncodedTable, Flags, Floats32, Integers, Integers32, Links, Scale
from fedsim.validation import validate_number

if TYPE_CHECKING:
    from fedsim.linkage.search.runner import SearchProgress
    from fedsim.linkage.soft_linkage import Engine

log = logging.getLogger(__name__)

MAX_LINKS_FOR_NOISE = 200_000  # used to compute the noise for a given tau with Dice
RECORDS_AT_ONCE = 1 << 18  # scaled, ranked or counted at a time in double precision
MAX_SIGMA = 1e30  # similarities travel as float32


@dataclass(frozen=True, eq=False)
class LinkageConfig:
    """The terms of a job for the links with one secondary; no noise without ``tau`` or ``sigma``."""

    metric: str  # compares filters
    k: int
    tau: float | None = None  # a bound on the success of the greedy attack
    sigma: float | None = None  # or the standard deviation of the noise

    def __post_init__(self) -> None:
        validate_number(self.sigma or 0.0, "sigma", least=0)
        metric, valid = get_metric(self.metric), METRICS.names(in_jobs=True)
        if metric.name not in valid:
            message = f"metric '{metric.name}' does not compare filters; choose {' or '.join(valid)}"
            raise SettingError(message, code="not-for-filters")
        if self.tau is not None and self.sigma is not None:
            raise SettingError(f"tau={self.tau} and sigma={self.sigma} both set the noise; give one", code="two-noises")
        if self.tau is not None and not (metric.whole or isinstance(metric, SteppedMetric)):
            message = f"tau={self.tau} has no meaning for '{metric.name}'; choose hamming or dice, or give sigma"
            raise SettingError(message, code="tau-needs-steps")
        if self.sigma is not None and self.sigma > MAX_SIGMA:
            message = f"sigma={self.sigma}; similarities travel as float32, so choose at most {MAX_SIGMA:g}"
            raise SettingError(message, code="sigma-too-large", limit=MAX_SIGMA)


@dataclass(frozen=True, eq=False)
class LinkageState:
    """What the coordinator stores to answer repeated requests and requests about later records.

    ``candidates`` are in the secondary's order, and ``order[pseudonym]`` is the secondary's row. ``tau`` is the bound
    that the noise achieves, or None if no bound holds: without noise, for a metric without steps, or if all training
    distances are equal.
    """

    candidates: EncodedTable
    order: Integers32  # (m,)
    scale: Scale
    sigma: float
    tau: float | None
    metric: str

    def __repr__(self) -> str:
        return f"LinkageState({len(self.candidates)} candidates, {self.metric}, sigma {self.sigma:g})"


def link_encoded_tables(  # noqa: PLR0913
    queries: EncodedTable,
    candidates: EncodedTable,
    counted: Flags,
    linking: LinkageConfig,
    secret: bytes,
    list_name: str,
    *,
    threads: int | None = None,
    progress: SearchProgress | None = None,
    engine: Engine | None = None,
) -> tuple[LinkageState, Links]:
    """Link every query; scale and noise are fitted to the ``counted`` queries, the primary's training records.

    Equal arguments give equal results, so a coordinator that lost everything but its secret delivers the same links
    again. Other settings or training records change the scale, and new noise is drawn for a new scale, because the same
    noise at two scales would reveal the distance. Each such delivery is one more sample of the same distances, so
    answer later requests with :func:`link_new_records`.
    """
    n = len(queries)
    if not isinstance(counted, np.ndarray) or counted.dtype != np.bool_ or counted.shape != (n,) or not counted.any():
        message = f"counted must hold one flag for each of the {n} primary records, and at least one must be true"
        raise InputError(message, code="bad-training-mask")
    check_filters(queries, "primary")
    check_filters(candidates, "secondary")
    order = pseudonym_order(secret, list_name, candidates)
    shuffled = candidates.take(order)
    pairs = _nearest_pairs(queries, shuffled, linking, threads, progress, engine=engine)
    scale, sigma, tau = _fit_noise(linking, pairs, counted)
    state = LinkageState(candidates, order.astype(np.int32), scale, sigma, tau, linking.metric)
    return state, _to_private_links(pairs, state, linking, secret, list_name)


def link_new_records(
    queries: EncodedTable,
    state: LinkageState,
    linking: LinkageConfig,
    secret: bytes,
    list_name: str,
    threads: int | None = None,
) -> Links:
    """Link new records with the same scale, noise and pseudonyms; a record seen before gets the same links."""
    check_filters(queries, "primary")
    if linking.metric != state.metric:
        message = f"metric '{linking.metric}', but the list was linked by '{state.metric}'; use that metric"
        raise SettingError(message, code="other-metric")
    shuffled = state.candidates.take(state.order)
    pairs = _nearest_pairs(queries, shuffled, linking, threads)
    return _to_private_links(pairs, state, linking, secret, list_name)


@dataclass(frozen=True, eq=False)
class _NearestPairs:
    """The nearest pairs before noise; partners are rows of ``shuffled``, that is, pseudonyms."""

    queries: EncodedTable
    shuffled: EncodedTable
    partner: Integers  # (n, K)
    distance: AnyArray  # (n, K)


def _nearest_pairs(
    queries: EncodedTable,
    shuffled: EncodedTable,
    linking: LinkageConfig,
    threads: int | None,
    progress: SearchProgress | None = None,
    engine: Engine | None = None,
) -> _NearestPairs:
    """Return the K nearest candidates of every query."""
    options: dict[str, Any] = {"threads": threads, "progress": progress, "engine": engine}
    return _NearestPairs(queries, shuffled, *topk(queries, shuffled, metric=linking.metric, k=linking.k, **options))


def pseudonym_order(secret: bytes, list_name: str, candidates: EncodedTable) -> Integers:
    """Return the row behind each pseudonym: a permutation that only the holder of the secret knows."""
    purpose = json.dumps([list_name, candidates.digest])
    return keyed_prng.secret_permutation(secret, purpose, len(candidates))


def check_filters(table: EncodedTable, side: str) -> None:
    """Check a table from another organisation: bits outside the filter would count as differences."""
    width = -(-table.n_bits // 8)
    if table.bits.ndim != 2 or table.bits.shape[1] != width or (table.bits[:, -1:] & table.spare_bits).any():
        message = f"the rows of the {side} table are not filters of {table.n_bits} bits; encode it again"
        raise InputError(message, code="not-filters")


def _fit_noise(linking: LinkageConfig, pairs: _NearestPairs, counted: Flags) -> tuple[Scale, float, float | None]:
    """Return the scale, sigma and the bound that they achieve, from the distances of the training records."""
    distance, metric = pairs.distance[counted], get_metric(linking.metric)
    scale, flat = fit_scale(distance), distance.min() == distance.max()
    if linking.tau is not None and flat:
        message = f"tau={linking.tau} cannot be guaranteed: all training distances are equal; give sigma instead"
        raise SettingError(message, code="flat-distances")
    sigma = float(linking.sigma or 0.0)
    if isinstance(metric, SteppedMetric):
        rows = np.flatnonzero(counted)
        rows = rows[:: -(-len(rows) * distance.shape[1] // MAX_LINKS_FOR_NOISE)]
        tables = metric.prepare(pairs.queries.take(rows), "primary"), metric.prepare(pairs.shuffled, "secondary")
        step = metric.steps(*tables, pairs.partner[rows])
        half_step = step / (2.0 * scale.deviation)
        similarity = similarities(pairs.distance[rows], scale)
        if linking.tau is not None:
            sigma = bounds.sigma_for_expected_success(linking.tau, similarity, half_step)
        success = bounds.expected_success(sigma, similarity, half_step)
    else:
        if linking.tau is not None:
            sigma = bounds.sigma_for_bound(linking.tau, scale.deviation)
        success = bounds.success_bound(sigma, scale.deviation)
    bounded = (metric.whole or isinstance(metric, SteppedMetric)) and sigma > 0 and not flat
    if linking.tau is not None:
        some = distance[:: -(-distance.size // MAX_LINKS_FOR_NOISE)]
        informed = bounds.bayes_success(sigma, scale.deviation, some)
        log.info("tau %.4g, sigma %.4g: who knows the histogram of distances guesses %.4g", success, sigma, informed)
    return scale, sigma, success if bounded else None


def _to_private_links(
    pairs: _NearestPairs, state: LinkageState, linking: LinkageConfig, secret: bytes, list_name: str
) -> Links:
    """Return partners by descending similarity as the primary sees it, with ties broken by pseudonym."""
    purpose = [list_name, state.metric]
    vectors = _noisy_similarity(pairs, pairs.distance, state.scale, state.sigma, purpose, secret)[:, :, None]
    return rank_by_similarity(pairs.partner.astype(np.int32), vectors)


def rank_by_similarity(pseudonym: Integers32, vectors: Floats32) -> Links:
    """Return links by descending similarity, with ties broken by pseudonym, (n, K) and (n, K, F)."""
    similarity, take = mean_similarity(vectors), np.take_along_axis
    links = Links(np.empty_like(pseudonym), np.empty_like(vectors))
    for here in _tiles(len(pseudonym)):
        order = np.lexsort((pseudonym[here], -similarity[here]), axis=1)
        links.partner[here] = take(pseudonym[here], order, axis=1)
        links.similarity[here] = take(vectors[here], order[:, :, None], axis=1)
    return links


def _tiles(n_records: int) -> list[slice]:
    return [slice(first, first + RECORDS_AT_ONCE) for first in range(0, n_records, RECORDS_AT_ONCE)]


def count_links(partner: Integers32, n_candidates: int) -> Integers:
    """Return the number of links of every pseudonym, (n, K) -> (m,), with m at least ``n_candidates``."""
    counts = np.zeros(max(n_candidates, int(partner.max(initial=-1)) + 1), np.int64)
    for here in _tiles(len(partner)):
        counts += np.bincount(partner[here].ravel(), minlength=len(counts))
    return counts


def _noisy_similarity(
    pairs: _NearestPairs, distance: AnyArray, scale: Scale, sigma: float, purpose: list[str], secret: bytes
) -> Floats32:
    noise = None
    if sigma > 0:
        # The purpose includes everything that the noise is scaled by or added to. Nine digits, so that a rounding error
        # on another machine does not draw a second sample; the difference is lost in float32.
        rule = [f"{number:.9g}" for number in (sigma, scale.mean, scale.deviation)]
        text = json.dumps([*purpose, *rule])
        noise = keyed_prng.pair_noise(secret, pairs.queries.bits, pairs.shuffled.bits, pairs.partner, purpose=text)
    found = np.empty(distance.shape, np.float32)
    for here in _tiles(len(distance)):
        drawn = None if noise is None else noise[here]
        found[here] = similarities(distance[here], scale, sigma=sigma, noise=drawn)
    return found


def mean_similarity(vectors: Floats32) -> Floats32:
    """Return the mean over the fields that are present, (n, K, F) -> (n, K); the lowest value if all are missing."""
    missing = np.isnan(vectors)
    if vectors.shape[2] == 1 and not missing.any():
        return vectors[:, :, 0]
    count = vectors.shape[2] - missing.sum(axis=2)
    total = np.where(missing, 0.0, vectors).sum(axis=2)
    lowest = np.float32(np.nanmin(vectors)) if count.any() else np.float32(0)
    return np.where(count > 0, total / np.maximum(count, 1), lowest).astype(np.float32)


# Files of the coordinator. Only its owner may read them: the order of a list is the secret that makes row numbers
# pseudonyms.

STATE_FORMAT, PRIVATE_LINKS_FORMAT = "fedsim linked list 1", "fedsim delivery 1"


def save_linkage_state(state: LinkageState, path: Path | str) -> None:
    """Write the state of a linked list, atomically."""
    tensors: Tensors = {"filters": state.candidates.bits, "order": state.order}
    facts = {
        "n_bits": str(state.candidates.n_bits),
        "fingerprint": state.candidates.fingerprint,
        "mean": state.scale.mean.hex(),
        "deviation": state.scale.deviation.hex(),
        "sigma": state.sigma.hex(),
        "tau": "" if state.tau is None else state.tau.hex(),
        "metric": state.metric,
    }
    save_tensors(path, STATE_FORMAT, tensors, facts)


def load_linkage_state(path: Path | str) -> LinkageState:
    """Read a state written by :func:`save_linkage_state`; raise ``FileError`` for another format or changed content."""
    tensors, facts = load_tensors(path, STATE_FORMAT)
    try:
        return LinkageState(
            candidates=EncodedTable(tensors["filters"], int(facts["n_bits"]), facts["fingerprint"]),
            order=tensors["order"],
            scale=Scale(float.fromhex(facts["mean"]), float.fromhex(facts["deviation"])),
            sigma=float.fromhex(facts["sigma"]),
            tau=float.fromhex(facts["tau"]) if facts["tau"] else None,
            metric=facts["metric"],
        )
    except (ValueError, LookupError):
        raise damaged_file(path, STATE_FORMAT) from None


def save_private_links(links: Links, path: Path | str) -> None:
    """Write the links that the primary receives, atomically."""
    vectors = links.similarity[:, :, 0] if links.similarity.shape[2] == 1 else links.similarity
    save_tensors(path, PRIVATE_LINKS_FORMAT, {"partner": links.partner, "similarity": vectors}, {})


def load_private_links(path: Path | str) -> Links:
    """Memory-map links written by :func:`save_private_links`; raise ``FileError`` for another format or a change."""
    tensors, _ = load_tensors(path, PRIVATE_LINKS_FORMAT, mapped=True)
    if set(tensors) != {"partner", "similarity"}:
        raise damaged_file(path, PRIVATE_LINKS_FORMAT)
    return Links(tensors["partner"], tensors["similarity"])
