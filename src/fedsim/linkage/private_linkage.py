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
import math
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsim.errors import InputError, SettingError
from fedsim.linkage.metrics import PairwiseMetric, SteppedMetric, get_metric
from fedsim.linkage.soft_linkage import fit_scale, similarities, topk
from fedsim.privacy import bounds, keyed_prng, mechanisms
from fedsim.registry import METRICS
from fedsim.storage.tensor_file import Tensors, damaged_file, load_tensors, save_tensors
from fedsim.types import AnyArray, EncodedTable, Flags, Floats, Floats32, Integers, Integers32, Links, Scale
from fedsim.validation import validate_integer, validate_number

if TYPE_CHECKING:
    from fedsim.linkage.search.runner import SearchProgress
    from fedsim.linkage.soft_linkage import Engine

log = logging.getLogger(__name__)

MAX_LINKS_FOR_NOISE = 200_000  # used to compute the noise for a given tau with Dice
SPARE_FACTOR = 4  # with min_degree, lists of 4 K partners are searched, so that others can replace rare ones
RECORDS_AT_ONCE = 1 << 18  # scaled, ranked or counted at a time in double precision
MAX_SIGMA = 1e30  # similarities travel as float32
N_RIVALS = 3  # records of the primary that a relative similarity compares with
MIN_RIVAL_SIMILARITY = 0.1  # below it a candidate resembles no record, and dividing by less would only add noise


@dataclass(frozen=True, eq=False)
class LinkageConfig:
    """The terms of a job for the links with one secondary; no noise without ``tau`` or ``sigma``."""

    metric: str  # compares filters
    k: int
    tau: float | None = None  # a bound on the success of the greedy attack
    sigma: float | None = None  # or the standard deviation of the noise
    min_degree: int = 1  # candidates listed by fewer training records than this are not listed at all
    field_bytes: tuple[int, ...] = ()  # sizes of the fields of a filter, if each has its own similarity
    relative: bool = False  # whether similarities are relative to the candidate's nearest other records

    def __post_init__(self) -> None:
        validate_integer(self.min_degree, "min_degree", least=1)
        validate_number(self.sigma or 0.0, "sigma", least=0)
        metric, valid = get_metric(self.metric), METRICS.names(in_jobs=True)
        if metric.name not in valid:
            message = f"metric '{metric.name}' does not compare filters; choose {' or '.join(valid)}"
            raise SettingError(message, code="not-for-filters")
        if self.tau is not None and self.sigma is not None:
            raise SettingError(f"tau={self.tau} and sigma={self.sigma} both set the noise; give one", code="two-noises")
        if self.field_bytes and not isinstance(metric, PairwiseMetric):
            message = f"metric '{metric.name}' only compares whole records; use one similarity per record"
            raise SettingError(message, code="no-field-similarities")
        if self.tau is not None and self.field_bytes:
            message = f"tau={self.tau} bounds one similarity per pair; with one per field, give sigma"
            raise SettingError(message, code="tau-needs-one-similarity")
        if self.tau is not None and not (metric.whole or isinstance(metric, SteppedMetric)):
            message = f"tau={self.tau} has no meaning for '{metric.name}'; choose hamming or dice, or give sigma"
            raise SettingError(message, code="tau-needs-steps")
        if self.relative and not METRICS.detail(metric.name, "relative"):
            message = f"relative similarities need the metric dice, but the metric is {metric.name}; change one of them"
            raise SettingError(message, code="relative-needs-dice")
        if self.sigma is not None and self.sigma > MAX_SIGMA:
            message = f"sigma={self.sigma}; similarities travel as float32, so choose at most {MAX_SIGMA:g}"
            raise SettingError(message, code="sigma-too-large", limit=MAX_SIGMA)


@dataclass(frozen=True, eq=False)
class Rivals:
    """The training records that are most similar to each candidate, one more than :data:`N_RIVALS` if possible.

    A candidate that resembles many records says little about any of them: ``Nordic Trading Ltd`` is similar to every
    trading company. A relative similarity is therefore divided by the candidate's mean similarity to its nearest
    records other than the one it is compared with. Equal records count once.

    Letters: m candidates, R rivals, F compared fields or 1.
    """

    record: AnyArray  # (m, R), digests of their filters
    similarity: Floats  # (m, R, F), NaN where a record lacks the field

    def typical_similarity(self, queries: EncodedTable, partner: Integers) -> Floats:
        """Return each partner's mean similarity to its rivals, excluding the record itself, (n, K) -> (n, K, F)."""
        own, shape = filter_digests(queries)[:, None], (*partner.shape, self.similarity.shape[2])
        if self.record.shape[1] == 1:  # the only record has no rival
            return np.ones(shape)
        typical = np.empty(shape)
        for column in range(partner.shape[1]):  # one column at a time, to limit memory use
            rows = partner[:, column]
            typical[:, column] = _mean_of_rivals(self.record[rows] == own, self.similarity[rows])
        return typical

    def typical_of_all(self, queries: EncodedTable) -> Floats:
        """Return the same for every pair of a query and a candidate, (n, m, F)."""
        if self.record.shape[1] == 1:
            return np.ones((len(queries), len(self.record), self.similarity.shape[2]))
        return np.stack([_mean_of_rivals(self.record == own, self.similarity) for own in filter_digests(queries)])

    def of_candidates(self, rows: Integers) -> Rivals:
        """Return the rivals of some candidates."""
        return Rivals(self.record[rows], self.similarity[rows])


def _mean_of_rivals(is_own: Flags, similarity: Floats) -> Floats:
    """Return the mean similarity to all rivals except the record itself, (n, R) and (n, R, F) -> (n, F)."""
    left_out = is_own.copy()
    left_out[:, -1] |= ~is_own.any(axis=1)  # the furthest, if the record is not among them
    others = np.where(left_out[:, :, None], np.nan, similarity)  # (n, R, F)
    count = (~np.isnan(others)).sum(axis=1)
    mean = np.nansum(others, axis=1) / np.maximum(count, 1)
    return np.where(count > 0, np.maximum(mean, MIN_RIVAL_SIMILARITY), 1.0)


@dataclass(frozen=True, eq=False)
class LinkageState:
    """What the coordinator stores to answer repeated requests and requests about later records.

    ``candidates`` are in the secondary's order, and ``order[pseudonym]`` is the secondary's row; ``allowed`` are the
    pseudonyms that may be listed. ``tau`` is the bound that the noise achieves, or None if no bound holds: without
    noise, for a metric without steps, or if all training distances are equal. ``field_scales`` has the mean and
    deviation of every field whose similarity the primary receives, and no rows if it receives one similarity per pair.
    ``rivals`` are indexed by pseudonym; None unless similarities are relative.
    """

    candidates: EncodedTable
    order: Integers32  # (m,)
    allowed: Integers32  # ascending
    scale: Scale
    sigma: float
    tau: float | None
    metric: str
    field_scales: Floats = field(default_factory=lambda: np.zeros((0, 2)))  # (F, 2)
    rivals: Rivals | None = None

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
    allowed = np.arange(len(candidates), dtype=np.int32)
    if linking.min_degree > 1:
        training, spare = queries.take(np.flatnonzero(counted)), min(len(shuffled), SPARE_FACTOR * linking.k)
        lists, _ = topk(training, shuffled, metric=linking.metric, k=spare, threads=threads, engine=engine)
        frequent = mechanisms.MinimumDegree(linking.min_degree, linking.k).apply(lists)
        allowed = np.unique(frequent[frequent >= 0]).astype(np.int32)
        if len(allowed) < linking.k:
            message = f"min_degree={linking.min_degree} leaves {len(allowed)} candidates for k={linking.k}; lower one"
            raise SettingError(message, code="min-degree-too-large", candidates=len(allowed))
    rivals = _find_rivals(queries.take(counted), shuffled, linking, threads, engine) if linking.relative else None
    pairs = _nearest_pairs(queries, shuffled, allowed, linking, threads, progress, rivals=rivals, engine=engine)
    scale, sigma, tau = _fit_noise(linking, pairs, counted)
    scales = np.zeros((0, 2))
    if linking.field_bytes:
        by_field = _field_distances(pairs, linking)[counted]  # (n, K, F)
        scales = np.array([_fit_field_scale(distance) for distance in np.moveaxis(by_field, 2, 0)])
    state = LinkageState(candidates, order.astype(np.int32), allowed, scale, sigma, tau, linking.metric, scales, rivals)
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
    if linking.relative != (state.rivals is not None):
        message = "relative similarities were switched on or off after the list was linked; use the setting of training"
        raise SettingError(message, code="other-similarities")
    shuffled = state.candidates.take(state.order)
    pairs = _nearest_pairs(queries, shuffled, state.allowed, linking, threads, rivals=state.rivals)
    return _to_private_links(pairs, state, linking, secret, list_name)


@dataclass(frozen=True, eq=False)
class _NearestPairs:
    """The nearest pairs before noise; partners are rows of ``shuffled``, that is, pseudonyms.

    ``typical`` is the divisor of relative similarities, (n, K, F).
    """

    queries: EncodedTable
    shuffled: EncodedTable
    partner: Integers  # (n, K)
    distance: AnyArray  # (n, K)
    typical: Floats | None = None


def _nearest_pairs(  # noqa: PLR0913
    queries: EncodedTable,
    shuffled: EncodedTable,
    allowed: Integers32,
    linking: LinkageConfig,
    threads: int | None,
    progress: SearchProgress | None = None,
    *,
    rivals: Rivals | None,
    engine: Engine | None = None,
) -> _NearestPairs:
    """Return the K nearest candidates of every query; ``rivals`` only make distances relative, after the search."""
    among = shuffled if len(allowed) == len(shuffled) else shuffled.take(allowed)
    options: dict[str, Any] = {"threads": threads, "progress": progress, "engine": engine}
    partner, distance = topk(queries, among, metric=linking.metric, k=linking.k, **options)
    if among is not shuffled:
        partner = allowed[partner].astype(np.int64)
    pairs = _NearestPairs(queries, shuffled, partner, distance)
    if rivals is None:
        return pairs
    typical = rivals.typical_similarity(queries, pairs.partner)
    if not linking.field_bytes:
        pairs = replace(pairs, distance=relative_distance(distance, typical[:, :, 0]))
    return replace(pairs, typical=typical)


def relative_distance(distance: Floats, typical: Floats) -> Floats:
    """Return one minus the similarity divided by the candidate's typical similarity; negative if it is more similar.

    >>> relative_distance(np.array([0.4, 0.4]), np.array([0.5, 0.8])).round(2).tolist()
    [-0.2, 0.25]
    """
    return np.asarray(1.0 - (1.0 - distance) / typical)


def _find_rivals(
    training: EncodedTable,
    shuffled: EncodedTable,
    linking: LinkageConfig,
    threads: int | None,
    engine: Engine | None,
) -> Rivals:
    """Search in the other direction: the nearest distinct training records of every candidate."""
    records = EncodedTable(np.unique(training.bits, axis=0), training.n_bits, training.fingerprint)
    n_rivals = min(N_RIVALS + 1, len(records))
    record, distance = topk(shuffled, records, metric=linking.metric, k=n_rivals, threads=threads, engine=engine)
    distances = distance[:, :, None]
    if linking.field_bytes:
        distances = _field_distances(_NearestPairs(shuffled, records, record, distance), linking)
    return Rivals(filter_digests(records)[record], 1.0 - distances)


def filter_digests(table: EncodedTable) -> AnyArray:
    """Return a digest of every filter, (n,); equal filters have equal digests."""
    digests = (blake2b(row, digest_size=8).digest() for row in np.ascontiguousarray(table.bits))
    return np.frombuffer(b"".join(digests), dtype="<u8")


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
        if pairs.typical is not None and not linking.field_bytes:
            step /= pairs.typical[rows, :, 0]
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
    purpose = [list_name, state.metric, *(["relative"] if linking.relative else [])]
    if linking.field_bytes:
        # With F similarities per pair, noise of sigma times the square root of F on each reveals no more than noise of
        # sigma on a single one: the inverse variances of Gaussian noise add up.
        sigma = state.sigma * math.sqrt(len(linking.field_bytes))
        distances = np.moveaxis(_field_distances(pairs, linking), 2, 0)
        scales = [Scale(float(mean), float(deviation)) for mean, deviation in state.field_scales]
        parts = [
            _noisy_similarity(pairs, distance, scale, sigma, [*purpose, f"field {place}"], secret)
            for place, (distance, scale) in enumerate(zip(distances, scales, strict=True))
        ]
        vectors = np.stack(parts, axis=2)
        nothing = np.isnan(vectors).all(axis=2)  # the two records have no field in common: as far apart as any pair
        if nothing.any():
            vectors[nothing] = [np.nanmin(part) if np.isfinite(part).any() else 0.0 for part in parts]
    else:
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


def _field_distances(pairs: _NearestPairs, linking: LinkageConfig) -> Floats:
    """Return the distance of every pair in every field, relative if requested, (n, K, F); NaN if a field is missing."""
    metric, width = get_metric(linking.metric), pairs.queries.bits.shape[1]
    if sum(linking.field_bytes) != width or not isinstance(metric, PairwiseMetric):
        message = f"fields of {linking.field_bytes} bytes do not make filters of {width}; encode the tables again"
        raise InputError(message, code="not-filters")
    found, start = np.empty((*pairs.partner.shape, len(linking.field_bytes))), 0
    for place, size in enumerate(linking.field_bytes):
        ours, theirs = (bits[:, start : start + size] for bits in (pairs.queries.bits, pairs.shuffled.bits))
        for column in range(pairs.partner.shape[1]):  # one column at a time, to limit memory use
            found[:, column, place] = metric.pair_distances(ours, theirs[pairs.partner[:, column]])
        start += size
    return found if pairs.typical is None else relative_distance(found, pairs.typical)


def _fit_field_scale(distance: Floats) -> tuple[float, float]:
    present = distance[~np.isnan(distance)]
    scale = fit_scale(present) if present.size else Scale(0.0, 1.0)
    return scale.mean, scale.deviation


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
    tensors: Tensors = {"filters": state.candidates.bits, "order": state.order, "allowed": state.allowed}
    if len(state.field_scales):
        tensors = {**tensors, "field_scales": state.field_scales}
    if state.rivals is not None:
        tensors = {**tensors, "rivals": state.rivals.record, "rival_similarity": state.rivals.similarity}
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
            allowed=tensors["allowed"],
            scale=Scale(float.fromhex(facts["mean"]), float.fromhex(facts["deviation"])),
            sigma=float.fromhex(facts["sigma"]),
            tau=float.fromhex(facts["tau"]) if facts["tau"] else None,
            metric=facts["metric"],
            field_scales=tensors.get("field_scales", np.zeros((0, 2))),
            rivals=Rivals(tensors["rivals"], tensors["rival_similarity"]) if "rivals" in tensors else None,
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
