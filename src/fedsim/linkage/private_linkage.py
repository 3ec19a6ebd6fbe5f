"""The coordinator's linkage: from encoded identifiers to pseudonyms and noisy similarities, and the files it keeps."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import InputError, SettingError
from fedsim.linkage.files import encoded_table_digest
from fedsim.linkage.metrics import Dice, Hamming, get_metric
from fedsim.linkage.nearest import BackendOptions, topk
from fedsim.linkage.search.runner import SearchProgress
from fedsim.linkage.soft_linkage import fit_scale, similarities
from fedsim.privacy.bounds import check_sigma, sigma_for_bound, success_bound
from fedsim.privacy.keyed_prng import derive_subkey, secret_permutation
from fedsim.privacy.mechanisms import DummyLinks, MinimumDegree
from fedsim.privacy.pair_noise import pair_noise
from fedsim.storage.tensor_file import Tensors, damaged_file, load_tensors, save_tensors
from fedsim.types import EncodedTable, Floats, Integers, Scale
from fedsim.validation import check_fraction, validate_integer

# The coordinator's linkage: from encoded identifiers of both sides to what the primary may know
#
# The primary gets pseudonyms and noisy similarities (paper, section 4.1, equations 1 and 2). The search itself runs in
# pseudonym space, on candidates already shuffled: where distances are equal the lower pseudonym wins, which says
# nothing about the secondary's own order. A record's partners are sent in the order of their *noisy* similarity; the
# order by distance would be an answer without noise.
#
# Letters: n primary records, m secondary records, K partners.


SPARE_FACTOR = 4  # times k partners are looked at before rare ones are passed over
MAX_SIGMA = 1e30  # similarities travel as float32


@dataclass(frozen=True, eq=False)
class LinkageConfig:
    """What a job says about one list: how to compare, how many partners, how much noise.

    The noise comes from ``tau``, the bound on the greedy attack, or from ``sigma``; without either there is none.
    Candidates that fewer than ``min_degree`` training records would name are named by none, and ``dummies`` is the
    share of links that point to a random candidate instead. ``hide_rows`` says that the primary may not see which
    partners repeat.
    """

    metric: str
    k: int
    tau: float | None = None
    sigma: float | None = None
    min_degree: int = 1
    dummies: float = 0.0
    hide_rows: bool = False

    def __post_init__(self) -> None:
        validate_integer(self.min_degree, "min_degree", least=1)
        check_fraction(dummies=self.dummies)
        metric = get_metric(self.metric)
        if not isinstance(metric, Hamming | Dice):
            raise SettingError(f"metric '{metric.name}' does not compare filters; choose hamming or dice")
        if self.tau is not None and self.sigma is not None:
            raise SettingError(f"tau={self.tau} and sigma={self.sigma} both set the noise; give one of them")
        if self.tau is not None and not metric.whole:
            raise SettingError(
                f"tau={self.tau} with metric '{metric.name}': the bound holds for distances that are whole numbers; "
                "choose hamming, or give sigma"
            )
        check_sigma(self.sigma or 0.0)
        if self.sigma is not None and self.sigma > MAX_SIGMA:
            raise SettingError(f"sigma={self.sigma}; choose at most {MAX_SIGMA:g}, for similarities travel as float32")


@dataclass(frozen=True, eq=False)
class LinkageState:
    """What the coordinator keeps of a list, to answer again and about later records.

    ``candidates`` stand in the secondary's order and ``order[pseudonym]`` is the secondary's row; ``allowed`` are the
    pseudonyms that may be named. ``tau`` is the bound that the noise reaches; None where no bound holds: without noise,
    for a metric that does not count, or where all training distances are equal.
    """

    candidates: EncodedTable
    order: NDArray[np.int32]  # (m,)
    allowed: NDArray[np.int32]  # ascending
    scale: Scale
    sigma: float
    tau: float | None
    metric: str

    def __repr__(self) -> str:
        return f"LinkageState({len(self.candidates)} candidates, {self.metric}, sigma {self.sigma:g})"


@dataclass(frozen=True, eq=False)
class PrivateLinks:
    """All the primary gets: for every record its partners' pseudonyms, most similar first, and their similarities."""

    partner: NDArray[np.int32]  # (n, K)
    similarity: NDArray[np.float32]  # (n, K)

    def __len__(self) -> int:
        return len(self.partner)

    def __repr__(self) -> str:
        return f"PrivateLinks({len(self)} records x {self.partner.shape[1]} partners)"


def link_encoded_tables(  # noqa: PLR0913
    queries: EncodedTable,
    candidates: EncodedTable,
    counted: NDArray[np.bool_],
    linking: LinkageConfig,
    secret: bytes,
    list_name: str,
    *,
    threads: int | None = None,
    progress: SearchProgress | None = None,
) -> tuple[LinkageState, PrivateLinks]:
    """Link every query; scale and noise are learnt from the ``counted`` ones, the primary's training records.

    Equal arguments give equal results, so a coordinator that lost all but its secret delivers the same again. Other
    settings or other training records change the scale, and noise under another scale is drawn anew: the same noise
    twice as large would give the distance away. Each such delivery is one more sample of the same distances, so answer
    later questions with :func:`link_again`.
    """
    _check_training_mask(counted, len(queries))
    for table, side in ((queries, "primary"), (candidates, "secondary")):
        _check_filters(table, side)
    order = secret_permutation(secret, json.dumps([list_name, encoded_table_digest(candidates)]), len(candidates))
    shuffled, options = _reorder(candidates, order), BackendOptions(threads=threads, progress=progress)
    allowed = _allowed_pseudonyms(_reorder(queries, np.flatnonzero(counted)), shuffled, linking, options)
    pairs = _nearest_pairs(queries, shuffled, allowed, linking, options)
    scale, sigma, tau = _fit_noise(linking, pairs.distance[counted])
    linked = LinkageState(candidates, order.astype(np.int32), allowed, scale, sigma, tau, linking.metric)
    return linked, _to_private_links(pairs, linked, linking, secret, list_name)


def link_new_records(
    queries: EncodedTable,
    linked: LinkageState,
    linking: LinkageConfig,
    secret: bytes,
    list_name: str,
    threads: int | None = None,
) -> PrivateLinks:
    """Partners of other records under the scale, noise and pseudonyms of before; a record of before gets the same."""
    _check_filters(queries, "primary")
    if linking.metric != linked.metric:
        raise SettingError(f"metric '{linking.metric}', but the list was linked by '{linked.metric}'; use that again")
    shuffled = _reorder(linked.candidates, linked.order)
    pairs = _nearest_pairs(queries, shuffled, linked.allowed, linking, BackendOptions(threads=threads))
    return _to_private_links(pairs, linked, linking, secret, list_name)


@dataclass(frozen=True, eq=False)
class _NearestPairs:
    """The nearest pairs before noise; partners are rows of ``shuffled``, that is pseudonyms."""

    queries: EncodedTable
    shuffled: EncodedTable
    partner: Integers  # (n, K)
    distance: NDArray[Any]  # (n, K)


def _allowed_pseudonyms(
    training: EncodedTable, shuffled: EncodedTable, linking: LinkageConfig, options: BackendOptions
) -> NDArray[np.int32]:
    """Pseudonyms that enough training records name, once the others have made room."""
    everyone = np.arange(len(shuffled), dtype=np.int32)
    if linking.min_degree == 1:
        return everyone
    spare = min(len(shuffled), SPARE_FACTOR * linking.k)
    lists = topk(training, shuffled, metric=linking.metric, k=spare, threads=options.threads)[0]
    kept = MinimumDegree(linking.min_degree, linking.k).apply(lists, np.random.default_rng(0))  # draws nothing
    named = np.unique(kept[kept >= 0]).astype(np.int32)
    if len(named) < linking.k:
        raise SettingError(
            f"min_degree={linking.min_degree} leaves {len(named)} candidates for k={linking.k}; lower one of them"
        )
    return named


def _nearest_pairs(
    queries: EncodedTable,
    shuffled: EncodedTable,
    allowed: NDArray[np.int32],
    linking: LinkageConfig,
    options: BackendOptions,
) -> _NearestPairs:
    among = shuffled if len(allowed) == len(shuffled) else _reorder(shuffled, allowed)
    partner, distance = topk(
        queries, among, metric=linking.metric, k=linking.k, threads=options.threads, progress=options.progress
    )
    return _NearestPairs(queries, shuffled, allowed[partner].astype(np.int64), distance)


def _check_training_mask(counted: NDArray[np.bool_], n: int) -> None:
    if not isinstance(counted, np.ndarray) or counted.dtype != np.bool_ or counted.shape != (n,):
        raise InputError(f"the mark of training records must be one flag for each of the {n} primary records")
    if not counted.any():
        raise InputError(f"none of the {n} primary records is a training record; the scale is learnt from those")


def _check_filters(table: EncodedTable, side: str) -> None:
    """A table from another organisation need not be one: bits outside the filter would count as differences."""
    spare = (1 << (-table.n_bits % 8)) - 1
    width = -(-table.n_bits // 8)
    if table.bits.ndim != 2 or table.bits.shape[1] != width or (table.bits[:, -1:] & spare).any():
        raise InputError(f"the {side} table's rows are no filters of {table.n_bits} bits; encode it again")


def _reorder(table: EncodedTable, order: NDArray[Any]) -> EncodedTable:
    return EncodedTable(table.bits[order], table.n_bits, table.fingerprint)


def _fit_noise(linking: LinkageConfig, distance: NDArray[Any]) -> tuple[Scale, float, float | None]:
    """Scale, sigma and the bound reached, from the training records' distances."""
    scale, flat = fit_scale(distance), distance.min() == distance.max()
    if linking.tau is None:
        sigma = float(linking.sigma or 0.0)
    elif flat:
        raise SettingError(
            f"tau={linking.tau} cannot be promised: all partners of the training records are equally far away; "
            "give sigma"
        )
    else:
        sigma = sigma_for_bound(linking.tau, scale.deviation)
    bounded = get_metric(linking.metric).whole and sigma > 0 and not flat
    return scale, sigma, success_bound(sigma, scale.deviation) if bounded else None


def _to_private_links(
    pairs: _NearestPairs, linked: LinkageState, linking: LinkageConfig, secret: bytes, list_name: str
) -> PrivateLinks:
    """Partners by descending similarity as the primary will see it, ties by pseudonym."""
    similarity = similarities(pairs.distance, linked.scale)
    if linked.sigma > 0:
        similarity += _similarity_noise(pairs, linked, secret, list_name)
    shown, pseudonym = similarity.astype(np.float32), _add_dummies(pairs, linked, linking, secret).astype(np.int32)
    order = np.lexsort((pseudonym, -shown), axis=1)
    return PrivateLinks(np.take_along_axis(pseudonym, order, axis=1), np.take_along_axis(shown, order, axis=1))


def _add_dummies(pairs: _NearestPairs, linked: LinkageState, linking: LinkageConfig, secret: bytes) -> Integers:
    """Some links point elsewhere; a filter gets the same dummies whenever it comes, and in whatever company."""
    if linking.dummies == 0:
        return pairs.partner
    key, mechanism = derive_subkey(secret, "dummies", 32), DummyLinks(linking.dummies, len(linked.allowed))
    _, first, of_record = np.unique(pairs.queries.bits, axis=0, return_index=True, return_inverse=True)
    places = np.searchsorted(linked.allowed, pairs.partner[first])
    drawn = np.empty_like(places)
    for row, record in enumerate(first):
        digest = blake2b(pairs.queries.bits[record].tobytes(), key=key, digest_size=16).digest()
        drawn[row] = mechanism.apply(places[row : row + 1], np.random.default_rng(int.from_bytes(digest, "big")))[0]
    return np.asarray(linked.allowed[drawn[of_record.reshape(-1)]], dtype=np.int64)


def _similarity_noise(pairs: _NearestPairs, linked: LinkageState, secret: bytes, list_name: str) -> Floats:
    """The pairs' own noise, which depends on all that it is scaled by and added to."""
    # Nine digits: a rounding error on another machine draws no second sample, and is lost in float32.
    rule = [f"{number:.9g}" for number in (linked.sigma, linked.scale.mean, linked.scale.deviation)]
    purpose = json.dumps([list_name, linked.metric, *rule])
    noise = pair_noise(secret, pairs.queries.bits, pairs.shuffled.bits, pairs.partner, purpose=purpose)
    noise *= linked.sigma
    return noise


# Files of the coordinator. Only its owner may read them: the order of a list is the secret that makes row numbers
# pseudonyms.

STATE_FORMAT, PRIVATE_LINKS_FORMAT = "fedsim linked list 1", "fedsim delivery 1"


def save_linkage_state(state: LinkageState, path: Path | str) -> None:
    """Write the state of a linked list, atomically."""
    tensors: Tensors = {"filters": state.candidates.bits, "order": state.order, "allowed": state.allowed}
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
    """Read the state that :func:`save_linkage_state` wrote; a ``FileError`` if the file is another or has changed."""
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
        )
    except (ValueError, LookupError):
        raise damaged_file(path, STATE_FORMAT) from None


def save_private_links(links: PrivateLinks, path: Path | str) -> None:
    """Write the links that the primary receives, atomically."""
    save_tensors(path, PRIVATE_LINKS_FORMAT, {"partner": links.partner, "similarity": links.similarity}, {})


def load_private_links(path: Path | str) -> PrivateLinks:
    """Read the links that :func:`save_private_links` wrote; a ``FileError`` if the file is another or has changed."""
    tensors, _ = load_tensors(path, PRIVATE_LINKS_FORMAT)
    if set(tensors) != {"partner", "similarity"}:
        raise damaged_file(path, PRIVATE_LINKS_FORMAT)
    return PrivateLinks(**tensors)
