"""Exact searches on CUDA devices.

The kernels in ``gpu_search.cu`` compute distances without ever storing them: every query has a list with room for a few
times K entries and a limit, the K-th best entry so far. A range of candidates is compared, entries that beat the limit
are appended, and the list is cut to K, which lowers the limit. Candidates are visited in random order, so a range that
is a multiple of those seen before appends about that multiple of K entries, whatever the order of the table. If a list
still overflows, its new entries are dropped and the range is compared in smaller parts.

Letters: T queries of a tile, n candidates of a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import Queue
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fedsim.errors import DeviceError
from fedsim.linkage.search.runner import number_characters, to_text_array
from fedsim.types import Floats, Integers, Words
from fedsim_ops import nvrtc

GROWTH = 2.5  # of the candidates seen, by one range: more ranges cost launches, fewer cost longer lists to sort
PAIRS_PER_TILE = 10**12  # about a second on a fast device, after which progress is reported
QUERY_PADDING = 256  # a multiple of every block of queries
STEP = 128  # candidates per tile of the kernel for filters; ranges of candidates are multiples
BLOCKS = 2048  # per launch, several for each multiprocessor
SHARED_MEMORY = 227 * 1024
HOPPER = 9  # the generation whose tensor cores multiply bits
TABLE_BYTES = 2**30  # of the match tables for one tile of texts
LIST_BYTES = 2**30
MAX_QUERIES = 2**20  # of a tile


def devices() -> list[torch.device]:
    """Return the CUDA devices on which the kernels run."""
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return []
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


@cache
def _source() -> str:
    return Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")


@cache
def _machine_code(architecture: str, settings: tuple[tuple[str, int], ...]) -> bytes:
    options = [f"--gpu-architecture={architecture}", *(f"-D{name}={value}" for name, value in settings)]
    return nvrtc.compile_source(nvrtc.load_compiler(str(torch.version.cuda)), _source(), options)


@cache
def _module(device: torch.device, settings: tuple[tuple[str, int], ...]) -> nvrtc.Module:
    major, minor = torch.cuda.get_device_capability(device)
    suffix = "a" if major == HOPPER else ""  # for its own instructions
    return nvrtc.Module(_machine_code(f"sm_{major}{minor}{suffix}", settings))


@dataclass(frozen=True)
class Kernel:
    """A kernel of ``gpu_search.cu``, compiled with some settings, and how it is launched."""

    name: str
    settings: tuple[tuple[str, int], ...]
    block: tuple[int, int]
    shared: int = 0

    def launch(self, device: torch.device, grid: tuple[int, int], *structures: Sequence[Any]) -> None:
        """Start the kernel with structures of tensors and integers."""
        stream = torch.cuda.current_stream(device).cuda_stream
        module = _module(device, self.settings)
        module.launch(self.name, grid, self.block, structures, shared=self.shared, stream=stream)


def list_room(k: int) -> int:
    """Return the capacity of a list: a power of two with room for what a range is expected to add and for a STEP."""
    return 1 << (int(max(GROWTH * _expected(k), k + STEP)) - 1).bit_length()


def _expected(k: int) -> float:
    """Return how many entries beat the limit per multiple of the candidates seen: K and six standard deviations."""
    return float(k + 6 * k**0.5 + 8)


class Lists:
    """The best candidates of every query of a tile so far."""

    def __init__(self, n_queries: int, k: int, device: torch.device) -> None:
        self.n_queries, self.k, self.kept, self.seen, self.device = n_queries, k, 0, 0, device
        self.room = list_room(k)
        padded = -(-n_queries // QUERY_PADDING) * QUERY_PADDING
        self.distance = torch.empty((padded, self.room), dtype=torch.float64, device=device)
        self.row = torch.empty((padded, self.room), dtype=torch.int32, device=device)
        self.count = torch.zeros(padded, dtype=torch.int32, device=device)
        self.limit = torch.full((padded,), torch.inf, dtype=torch.float64, device=device)
        self.limit[n_queries:] = -1.0  # padding accepts nothing
        self.limit_row = torch.full((padded,), 2**31 - 1, dtype=torch.int32, device=device)
        self.kernel = Kernel("select_best", (), (min(512, self.room // 4), 1), 12 * self.room)

    def structure(self) -> Sequence[Any]:
        return (self.distance, self.row, self.count, self.limit, self.limit_row, self.room)

    def add_range(self, search: Callable[[], None], size: int) -> bool:
        """Compare a range of candidates and keep the best; return false, and keep nothing, if a list overflows."""
        search()
        if int(self.count.max()) > self.room:
            self.count.fill_(self.kept)
            return False
        self.kernel.launch(self.device, (self.n_queries, 1), self.structure(), (self.k,))
        self.seen += size
        self.kept = min(self.k, self.seen)
        return True

    def next_size(self) -> int:
        """Return how many candidates to compare next."""
        growth = self.room / _expected(self.k) - 1
        return max(STEP, int(self.seen * growth) // STEP * STEP) if self.seen else self.room // STEP * STEP

    def copy_best(self, partner: Integers, distance: Floats) -> None:
        """Write the K best to arrays in host memory."""
        for found, out in ((self.row, partner), (self.distance, distance)):
            values = found[: self.n_queries, : self.k]
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)  # copied at full speed
            torch.from_numpy(out).copy_(host.copy_(values))


@dataclass(frozen=True)
class Part:
    """Candidates in device memory, in random order."""

    n: int
    tensors: tuple[Tensor, ...]


class DeviceTable(Protocol):
    """The queries and candidates of one metric, and how to copy them to a device and compare them there."""

    n_candidates: int
    bytes_per_candidate: int

    def tiles(self) -> list[Integers]: ...

    def load_queries(self, tile: Integers, device: torch.device) -> tuple[Any, ...]: ...

    def load_candidates(self, first: int, order: Tensor) -> Part: ...

    def search(self, queries: tuple[Any, ...], part: Part, first: int, last: int, lists: Lists) -> None: ...


class DeviceSearch:
    """Search all candidates, range by range, on every device; a table too large for device memory is sent in parts."""

    def __init__(self, table: DeviceTable, chosen: Sequence[torch.device] | None = None) -> None:
        chosen = devices() if chosen is None else chosen
        if not chosen:
            raise DeviceError("torch finds no CUDA device; choose device cpu or auto", code="no-cuda-device")
        self.table, self.parts = table, dict[torch.device, Part]()
        self.free: Queue[torch.device] = Queue()  # one tile at a time per device: it keeps the device busy
        for device in chosen:
            self.free.put(device)

    def tiles(self) -> list[Integers]:
        return self.table.tiles()

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]:
        partner, distance = np.empty((len(tile), k), np.int64), np.empty((len(tile), k))
        size = max(QUERY_PADDING, LIST_BYTES // (12 * list_room(k)))
        device = self.free.get()
        try:
            with torch.inference_mode(), _current(device):
                for first in range(0, len(tile), size):
                    some = slice(first, first + size)
                    self.search(tile[some], k, device).copy_best(partner[some], distance[some])
        except torch.OutOfMemoryError:
            message = f"{device} has too little free memory for this search; choose device cpu"
            raise DeviceError(message, code="gpu-memory") from None
        finally:
            self.free.put(device)
        return partner, distance

    def search(self, tile: Integers, k: int, device: torch.device) -> Lists:
        """Return the lists of a tile, still on the device."""
        lists, queries = Lists(len(tile), k, device), self.table.load_queries(tile, device)
        for part in self._load_parts(device):
            first, size = 0, lists.next_size()
            while first < part.n:
                last = min(first + size, part.n)

                def compare(part: Part = part, first: int = first, last: int = last) -> None:
                    self.table.search(queries, part, first, last, lists)

                if lists.add_range(compare, last - first):
                    first, size = last, lists.next_size()
                else:
                    size = max(STEP, size // 2 // STEP * STEP)
        return lists

    def _load_parts(self, device: torch.device) -> Iterator[Part]:
        if device in self.parts:
            yield self.parts[device]
            return
        fitting = max(STEP, candidates_fitting(device, self.table.bytes_per_candidate))
        n = self.table.n_candidates
        generator = torch.Generator(device).manual_seed(0)
        for first in range(0, n, fitting):
            order = torch.randperm(min(fitting, n - first), generator=generator, device=device)
            part = self.table.load_candidates(first, order)
            if fitting >= n:
                self.parts[device] = part
            yield part


def candidates_fitting(device: torch.device, bytes_per_candidate: int) -> int:
    """Return how many candidates to hold on a device at once, leaving room for lists and for copies during loading."""
    return int(torch.cuda.mem_get_info(device)[0] // (6 * bytes_per_candidate))


def _current(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _split(n_queries: int, queries_per_block: int, n_steps: int) -> tuple[int, int]:
    """Return the grid of a launch: blocks of queries, and ranges of candidates that fill the device."""
    blocks = -(-n_queries // queries_per_block)
    return blocks, min(n_steps, 65_535, max(1, BLOCKS // blocks))


class FilterTable:
    """Filters of 64-bit words, compared by Hamming or (``by_ones``) Dice distance."""

    def __init__(self, queries: Words, candidates: Words, *, by_ones: bool) -> None:
        self.queries, self.candidates, self.by_ones = queries, candidates, by_ones
        self.n_candidates, self.slabs = len(candidates), -(-candidates.shape[1] // 16)
        self.bytes_per_candidate = 128 * self.slabs + 8

    def tiles(self) -> list[Integers]:
        return _tiles(np.arange(len(self.queries)), self.n_candidates)

    def kernel(self, device: torch.device) -> tuple[Kernel, int]:
        """Return the kernel and its number of groups of 64 queries: tensor cores of Hopper, or popcounts."""
        common = (("SLABS", self.slabs), ("DICE", int(self.by_ones)))
        if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == HOPPER and self.slabs <= 20:
            groups = 4 if self.slabs <= 2 else 2 if self.slabs <= 8 else 1
            fixed = 2048 + groups * (self.slabs * 8192 + 4 * 576 * 8)  # alignment, barriers; queries, queues
            stages = min(8, (SHARED_MEMORY - fixed) // 16_384)
            settings = (*common, ("TENSOR", 1), ("GROUPS", groups), ("STAGES", stages))
            return Kernel("search_filters", settings, (128 * groups + 32, 1), fixed + stages * 16_384), groups
        return Kernel("search_filters", (*common, ("TENSOR", 0), ("GROUPS", 1)), (256, 1)), 1

    def load_queries(self, tile: Integers, device: torch.device) -> tuple[Any, ...]:
        kernel, groups = self.kernel(device)
        words = torch.from_numpy(self.queries[tile].view(np.int64)).to(device)
        padding = (0, -len(tile) % QUERY_PADDING)
        return kernel, 64 * groups, pack_filters(words, 64 * groups), pad(count_ones(words), padding)

    def load_candidates(self, first: int, order: Tensor) -> Part:
        words = torch.from_numpy(self.candidates[first : first + len(order)].view(np.int64)).to(order.device)[order]
        ones = pad(count_ones(words), (0, -len(order) % STEP), value=2**29)  # more than any limit allows
        return Part(len(order), (pack_filters(words, STEP), ones, (first + order).to(torch.int32)))

    def search(self, queries: tuple[Any, ...], part: Part, first: int, last: int, lists: Lists) -> None:
        kernel, rows, words, ones = queries
        begin, end = first // STEP, -(-last // STEP)
        grid = _split(lists.n_queries, rows, end - begin)
        kernel.launch(lists.device, grid, (words, ones, *part.tensors, part.n, begin, end), lists.structure())


def count_ones(words: Tensor) -> Tensor:
    """Return the number of ones in every row of 64-bit words."""
    pairs = words - ((words >> 1) & 0x5555555555555555)
    fours = (pairs & 0x3333333333333333) + ((pairs >> 2) & 0x3333333333333333)
    eights = (fours + (fours >> 4)) & 0x0F0F0F0F0F0F0F0F
    return (((eights * 0x0101010101010101) >> 56) & 0x7F).sum(dim=1).to(torch.int32)


def pack_filters(words: Tensor, rows: int) -> Tensor:
    """Return filters in the layout that the kernel copies: swizzled slabs of 128 bytes for ``rows`` filters at a time.

    Chunk c of 16 bytes of row r is stored as chunk ``c ^ (r % 8)``, so that the tensor cores read shared memory without
    conflicts.
    """
    n, width = words.shape
    slabs = -(-width // 16)
    padded = torch.zeros((-(-n // QUERY_PADDING) * QUERY_PADDING, 16 * slabs), dtype=torch.int64, device=words.device)
    padded[:n, :width] = words
    tiles = padded.view(-1, rows, slabs, 8, 2).permute(0, 2, 1, 3, 4)  # (tiles, slabs, rows, chunks, 2)
    row = torch.arange(rows, device=words.device)[:, None]
    chunk = torch.arange(8, device=words.device) ^ (row & 7)  # (rows, 8)
    return tiles[:, :, row, chunk].contiguous()


class PointTable:
    """Points, compared by Euclidean distance in float64."""

    def __init__(self, queries: Floats, candidates: Floats) -> None:
        self.queries, self.candidates = queries, candidates
        self.n_candidates, dimensions = candidates.shape
        self.bytes_per_candidate = 8 * dimensions + 4
        self.kernel = Kernel("search_points", (("DIMENSIONS", dimensions),), (128, 1))

    def tiles(self) -> list[Integers]:
        return _tiles(np.arange(len(self.queries)), self.n_candidates)

    def load_queries(self, tile: Integers, device: torch.device) -> tuple[Any, ...]:
        padding = np.zeros((-len(tile) % QUERY_PADDING, self.queries.shape[1]))
        return (torch.from_numpy(np.concatenate([self.queries[tile], padding])).to(device),)

    def load_candidates(self, first: int, order: Tensor) -> Part:
        points = torch.from_numpy(self.candidates[first : first + len(order)]).to(order.device)
        return Part(len(order), (points[order], (first + order).to(torch.int32)))

    def search(self, queries: tuple[Any, ...], part: Part, first: int, last: int, lists: Lists) -> None:
        grid = _split(lists.n_queries, self.kernel.block[0], -(-(last - first) // STEP))
        self.kernel.launch(lists.device, grid, (*queries, *part.tensors, first, last), lists.structure())


class TextTable:
    """Strings, compared by edit distance, plain or divided by the longer length."""

    def __init__(self, queries: list[str], candidates: list[str], *, normalised: bool) -> None:
        texts = number_characters(to_text_array(queries), to_text_array(candidates))
        self.queries, self.candidates, self.characters = texts
        self.normalised, self.n_candidates = normalised, len(candidates)
        self.bytes_per_candidate = 12 + 4 * (4 + len(self.candidates.chars) // self.n_candidates)
        # Words of 32 bits per query: a power of two, because every number needs a separate kernel.
        self.words = 1 << np.ceil(np.log2(np.maximum(self.queries.lengths / 32, 1))).astype(np.int64)

    def tiles(self) -> list[Integers]:
        """Return queries with the same number of words, by length: a warp skips a length that none can match."""
        order = np.lexsort((self.queries.lengths, self.words))
        tiles = []
        for words in np.unique(self.words):
            most = max(QUERY_PADDING, TABLE_BYTES // (4 * max(1, self.characters) * int(words)))
            tiles += _tiles(order[self.words[order] == words], self.n_candidates, most)
        return tiles

    def load_queries(self, tile: Integers, device: torch.device) -> tuple[Any, ...]:
        words = int(self.words[tile].max())
        settings = ("WORDS", words), ("NORMALISED", int(self.normalised))
        lengths = torch.from_numpy(self.queries.lengths[tile]).to(device)
        starts = torch.from_numpy(self.queries.starts[tile]).to(device)
        chars, places, owners = _take_texts(self.queries.chars, starts, lengths)
        known = chars < self.characters
        chars, places, owners = chars[known], places[known], owners[known]
        shape = -(-len(tile) // QUERY_PADDING) * (QUERY_PADDING // 128), max(1, self.characters), words, 128
        equal = torch.zeros(shape, dtype=torch.int32, device=device)
        bits = torch.from_numpy((np.uint32(1) << np.arange(32, dtype=np.uint32)).view(np.int32)).to(device)
        equal.index_put_((owners // 128, chars, places // 32, owners % 128), bits[places % 32], accumulate=True)
        kernel = Kernel("search_texts", settings, (128, 4))
        return kernel, equal, pad(lengths.to(torch.int32), (0, -len(tile) % QUERY_PADDING))

    def load_candidates(self, first: int, order: Tensor) -> Part:
        some = self.candidates.starts[first : first + len(order) + 1]
        all_starts = torch.from_numpy(some - some[0]).to(order.device)
        lengths = all_starts.diff()[order]
        chars, places, owners = _take_texts(self.candidates.chars[some[0] : some[-1]], all_starts[order], lengths)
        fours = (lengths + 3) // 4
        starts = fours.cumsum(0) - fours
        aligned = torch.zeros(4 * max(1, int(fours.sum())), dtype=torch.int32, device=order.device)
        aligned[4 * starts[owners] + places] = chars.to(torch.int32)
        return Part(len(order), (aligned, *(values.to(torch.int32) for values in (starts, lengths, first + order))))

    def search(self, queries: tuple[Any, ...], part: Part, first: int, last: int, lists: Lists) -> None:
        kernel, equal, lengths = queries
        texts = (equal, lengths, *part.tensors, max(1, self.characters), first, last)
        grid = _split(lists.n_queries, kernel.block[0], -(-(last - first) // STEP))
        kernel.launch(lists.device, grid, texts, lists.structure())


def _tiles(rows: Integers, n_candidates: int, most: int = MAX_QUERIES) -> list[Integers]:
    """Split rows into parts of about one second of work each, at least one per device."""
    share = -(-len(rows) // max(1, len(devices())))
    size = min(share, max(QUERY_PADDING, min(most, PAIRS_PER_TILE // n_candidates)))
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def _take_texts(chars: Any, starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the characters of some texts, the place of each in its text, and the index of the text."""
    owners = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    places = torch.arange(len(owners), device=lengths.device) - (lengths.cumsum(0) - lengths)[owners]
    everything = torch.from_numpy(chars.view(np.int32)).to(lengths.device)
    return everything[starts[owners] + places].to(torch.int64), places, owners
