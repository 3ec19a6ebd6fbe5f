"""Link tables that do not fit into memory, and write the links as a folder of Parquet files.

Candidates are read in chunks and queries in tiles; one chunk and a few tiles are in memory at a time. The results for a
tile so far are kept in a file next to the output, so a killed run resumes where it stopped. After the last chunk, the
scale is fitted and the links are written, one file per tile; the folder then appears all at once.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl

from fedsim.data.sql import TableSource
from fedsim.errors import FileError
from fedsim.linkage.identifiers import check_compatible
from fedsim.linkage.link_files import part_name, save_links
from fedsim.linkage.metrics import Metric
from fedsim.linkage.soft_linkage import (
    BackendOptions,
    check_noise,
    link_warnings,
    prepare_tables,
    similarities,
)
from fedsim.storage.files import atomic_write, ensure_folder, resumable_folder
from fedsim.storage.tensor_file import load_tensors, save_tensors
from fedsim.types import EncodedTable, Floats, Integers, LinkageResult, Scale
from fedsim.validation import validate_k
from fedsim.version import VERSION
from fedsim_ops.search_tiles import (
    RECORDS_PER_TASK,
    CandidateChunk,
    LocalEngine,
    QueryTile,
    TileBest,
    TileEngine,
    records_per_chunk,
)

BEST_FORMAT, MANIFEST = "fedsim best candidates 1", "manifest.json"
SAMPLED_RECORDS = 1024
NUMBERS_PER_SUM = 2**18
DEFAULT_OPTIONS = BackendOptions()


PartReader = Callable[[TableSource], Any]


class TableInParts(Protocol):
    """A table that is read repeatedly, in parts."""

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str:
        """A digest of the content, which lets a resumed run detect that the table has changed."""
        ...

    def __len__(self) -> int: ...

    def chunks(self, size: int) -> Iterator[Any]:
        """Yield the identifiers of ``size`` records at a time, in a form that :func:`fedsim.linkage.link` accepts."""
        ...


@dataclass(frozen=True, eq=False)
class LinkedParts:
    """What was written: the figures of all links, and how often each candidate is a partner."""

    records: int
    candidates: int
    k: int
    plan: str
    scale: Scale
    nearest_median: float
    kth_median: float
    tie_share: float
    hubness: Integers  # by candidate
    warnings: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Work:
    """The folder of unfinished work: which chunks are done, and the best candidates of every tile."""

    folder: Path
    key: str

    def completed(self) -> tuple[int, str]:
        """Return how many chunks an earlier run has searched, and its plan; remove work on other tables."""
        try:
            found = json.loads((self.folder / MANIFEST).read_bytes())
            if found["key"] == self.key:
                return int(found["chunks"]), str(found["plan"])
        except (OSError, ValueError, LookupError, TypeError):
            pass
        for path in self.folder.glob("chunk-*"):
            shutil.rmtree(path, ignore_errors=True)
        self.complete(0, "")
        return 0, ""

    def complete(self, chunks: int, plan: str) -> None:
        """Record that this many chunks are searched; the results up to the previous chunk are no longer needed."""
        with atomic_write(self.folder / MANIFEST) as part:
            part.write_text(json.dumps({"key": self.key, "chunks": chunks, "plan": plan}))
        if chunks > 1:
            shutil.rmtree(self._path(chunks - 2, 0).parent, ignore_errors=True)
        ensure_folder(self._path(chunks, 0).parent)

    def save(self, chunk: int, tile: int, best: TileBest) -> None:
        save_tensors(self._path(chunk, tile), BEST_FORMAT, best.arrays(), {})

    def load(self, chunk: int, tile: int) -> TileBest:
        return TileBest(**load_tensors(self._path(chunk, tile), BEST_FORMAT)[0])

    def has(self, chunk: int, tile: int) -> bool:
        """Return whether a tile was searched before; a tile with a damaged file is searched again."""
        try:
            self.load(chunk, tile)
        except FileError:
            return False
        return True

    def _path(self, chunk: int, tile: int) -> Path:
        return self.folder / f"chunk-{chunk:05}" / f"{tile:06}.safetensors"


def link_in_parts(  # noqa: PLR0913
    primary: TableInParts,
    secondary: TableInParts,
    out: Path,
    *,
    metric: Metric,
    k: int,
    engine: TileEngine | None = None,
    sigma: float = 0.0,
    rng: np.random.Generator | None = None,
    options: BackendOptions = DEFAULT_OPTIONS,
    ids: Sequence[Any] = (None, None),
    records_per_file: int = RECORDS_PER_TASK,
) -> LinkedParts:
    """Link every primary record to its K most similar secondary records and write a folder of Parquet files.

    The files contain exactly what :func:`fedsim.linkage.link` and :func:`save_links` would produce, whatever the
    engine; :func:`load_links` reads the folder.

    Parameters
    ----------
    primary, secondary
        The tables.
    out
        The folder; it must not exist.
    metric, k, sigma, rng, options
        As in :func:`fedsim.linkage.link`.
    engine
        Where to search; it must have been entered. By default, this process.
    ids
        Keys of the records of both tables, or None.
    records_per_file
        Number of records per tile; a tile is one task and one file of the result.
    """
    engine = engine or LocalEngine()
    k = validate_k(k, len(secondary), f"the {secondary.name} table")
    check_noise(sigma, rng)
    ours, theirs = (next(table.chunks(SAMPLED_RECORDS)) for table in (primary, secondary))
    _, sample = prepare_tables(metric, ours, theirs, (primary.name, secondary.name))
    rows, wanted = min(records_per_chunk(metric, sample), len(secondary)), min(k + 1, len(secondary))
    terms = [BEST_FORMAT, VERSION, repr(metric), k, rows, records_per_file, primary.digest, secondary.digest]
    with resumable_folder(out) as (folder, result):
        work = _Work(folder, hashlib.sha256(json.dumps(terms).encode()).hexdigest())
        chunks, plan = work.completed()
        n_tiles, n_chunks = -(-len(primary) // records_per_file), -(-len(secondary) // rows)
        total = len(primary) * n_chunks

        def progress(done_tiles: int) -> None:
            if options.progress is not None:
                options.progress(min(done_tiles * records_per_file, total), total)

        progress(chunks * n_tiles)
        for number, raw in enumerate(secondary.chunks(rows)):
            if number < chunks:
                continue
            search = replace(options, progress=None, engine=None)
            chunk = CandidateChunk(metric, metric.prepare(raw, secondary.name), number * rows, wanted, search)
            ready = [tile for tile in range(n_tiles) if work.has(number, tile)]
            tiles = _tiles(primary, metric, work, number, records_per_file, frozenset(ready))
            progress(number * n_tiles + len(ready))
            for done, (tile, best, plan) in enumerate(engine.search_tiles(chunk, tiles), len(ready) + 1):  # noqa: B007
                work.save(number, tile, best)
                progress(number * n_tiles + done)
            work.complete(number + 1, plan)
        nothing: Any = np.empty((0, k))
        about = LinkageResult(
            nothing, nothing, nothing, Scale(0, 1), sigma, metric.name, len(secondary), nothing, plan=plan
        )
        found = _write_parts(result, lambda tile: work.load(n_chunks - 1, tile), n_tiles, about, rng, ids)
        return replace(found, plan=f"{plan}; {engine.describe()}")


def _tiles(
    primary: TableInParts, metric: Metric, work: _Work, chunk: int, size: int, ready: frozenset[int]
) -> Iterator[QueryTile]:
    for tile, raw in enumerate(primary.chunks(size)):
        if tile not in ready:
            yield QueryTile(tile, metric.prepare(raw, primary.name), work.load(chunk - 1, tile) if chunk else None)


def _write_parts(
    folder: Path,
    best_of: Callable[[int], TileBest],
    n_tiles: int,
    about: LinkageResult,
    rng: np.random.Generator | None,
    ids: Sequence[Any],
) -> LinkedParts:
    """Fit the scale, write one file per tile, and return the figures of all links."""
    k = about.k
    saturated, n_records = 0, 0
    for tile in range(n_tiles):
        best = best_of(tile)
        n_records += len(best.partner)
        saturated += 0 if best.disjoint is None else int(best.disjoint[:, k - 1].sum())
    share = None if best.disjoint is None else saturated / n_records

    def distances() -> Iterator[Floats]:
        for tile in range(n_tiles):
            yield best_of(tile).distance[:, :k]

    scale, flat = fit_scale_in_parts(distances, n_records * k)
    about = replace(about, scale=scale, saturated=share)
    hubness = np.zeros(about.n_candidates, np.int64)
    ends, ties, first = np.empty((2, n_records)), 0, 0  # distances of the nearest and the last partner
    for tile in range(n_tiles):
        best = best_of(tile)
        after = best.distance[:, k] if best.distance.shape[1] > k else np.full(len(best.distance), np.inf)
        partner, distance = np.ascontiguousarray(best.partner[:, :k]), np.ascontiguousarray(best.distance[:, :k])
        similarity = similarities(distance, scale, sigma=about.sigma, noise=rng)
        links = replace(about, partner=partner, distance=distance, similarity=similarity, next_distance=after.copy())
        rows = slice(first, first + len(links))
        own = None if ids[0] is None else ids[0][rows]
        save_links(links, folder / part_name(tile), own, ids[1], part=(tile, n_tiles, first))
        np.add.at(hubness, partner.ravel(), 1)  # a bincount would touch every candidate for every tile
        ends[:, rows] = distance[:, 0], distance[:, -1]
        ties, first = ties + int((distance[:, -1] == after).sum()), rows.stop
    return LinkedParts(
        records=n_records,
        candidates=about.n_candidates,
        k=k,
        plan=about.plan,
        scale=scale,
        nearest_median=float(np.median(ends[0])),
        kth_median=float(np.median(ends[1])),
        tie_share=ties / n_records,
        hubness=hubness,
        warnings=link_warnings(ties / n_records, hubness, k, flat=flat, saturated=share),
    )


# A table in several files


class PartedTable:
    """A table in parts, which are read one at a time; the last one read stays in memory.

    Parameters
    ----------
    source, parts
        The table as the user named it, and its parts, all of which are read once, so that a fault shows before the
        search.
    read
        Reads one part.
    terms
        What is compared, as JSON values; part of the digest.
    """

    def __init__(
        self, source: TableSource, parts: Sequence[TableSource], read: PartReader, terms: Sequence[Any]
    ) -> None:
        self.name, self._parts, self._read = str(source), parts, lru_cache(1)(read)
        digest, self._length = hashlib.sha256(json.dumps(terms).encode()), 0
        first = self._read(parts[0])
        for part in parts:
            table = self._read(part)
            if isinstance(table, EncodedTable):
                check_compatible(first, table, (str(parts[0]), str(part)))
                digest.update(table.digest.encode())
            else:
                digest.update(table.hash_rows(seed=0).to_numpy().tobytes())
            self._length += len(table)
        self.digest = digest.hexdigest()

    def __len__(self) -> int:
        return self._length

    def chunks(self, size: int) -> Iterator[Any]:
        """Yield the identifiers of ``size`` records at a time."""
        pieces: list[Any] = []
        for part in self._parts:
            table, start = self._read(part), 0
            while start < len(table):
                stop = min(start + size - sum(map(len, pieces)), len(table))
                pieces, start = [*pieces, _take_rows(table, start, stop)], stop
                if sum(map(len, pieces)) == size:
                    yield _join_rows(pieces)
                    pieces = []
        if pieces:
            yield _join_rows(pieces)


def _take_rows(table: Any, start: int, stop: int) -> Any:
    if isinstance(table, EncodedTable):
        return replace(table, bits=table.bits[start:stop])
    return table[start:stop]


def _join_rows(pieces: Sequence[Any]) -> Any:
    if isinstance(pieces[0], EncodedTable):
        return replace(pieces[0], bits=np.concatenate([piece.bits for piece in pieces]))
    return pl.concat(pieces)


def fit_scale_in_parts(parts: Callable[[], Iterable[Floats]], n: int) -> tuple[Scale, bool]:
    """Return the result of :func:`fit_scale` for ``n`` distances in parts, and whether all are equal.

    ``parts`` must return all of them again on every call.

    >>> fit_scale_in_parts(lambda: [np.array([1.0]), np.array([3.0])], 2)
    (Scale(mean=-2.0, deviation=1.0), False)
    """
    least, most = np.inf, -np.inf
    for part in parts():
        least, most = min(least, float(part.min())), max(most, float(part.max()))
    if least == most:
        return Scale(-least, 1.0), True
    mean = _sum_in_parts(parts(), n) / n
    square = _sum_in_parts((np.square(part - mean) for part in parts()), n) / n
    return Scale(-float(mean), float(np.sqrt(square))), False


def _sum_in_parts(parts: Iterable[Floats], n: int) -> Floats:
    """Return the sum of ``n`` numbers in the order of ``numpy.sum``, which halves the numbers recursively."""
    remaining, rest = iter(parts), np.empty(0)

    def take(count: int) -> Floats:
        nonlocal rest
        pieces = [rest]
        while sum(map(len, pieces)) < count:
            pieces.append(next(remaining).ravel())
        joined = np.concatenate(pieces)
        rest = joined[count:]
        return joined[:count]

    def add(count: int) -> Floats:
        if count <= NUMBERS_PER_SUM:
            return np.asarray(np.add.reduce(take(count)))
        half = count // 2 // 8 * 8
        return add(half) + add(count - half)

    return add(n)
