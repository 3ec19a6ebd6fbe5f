"""The exact searches on a GPU with torch; the only linkage module that imports torch.

Hamming distances come from a matrix product of the bits, ``|a| + |b| - 2ab``, exact in float32 below 2**24 bits.
Euclidean distances are computed in float32 from centred coordinates; candidates that the rounding could hide are
computed again in float64, one dimension after the other as on the CPU, so the results are the same to the last bit.

Letters: T queries of a tile, C candidates of a chunk, d dimensions or bits.
"""

from __future__ import annotations

from threading import Lock

import numpy as np
import torch
from torch import Tensor

from fedsim.errors import DeviceError
from fedsim.linkage.search.runner import row_tiles
from fedsim.types import Floats, Integers, Words

QUERIES_PER_TILE = 4096
FIRST_CHUNK = 2048  # small, because no candidate of the first chunk can be excluded
LARGEST_CHUNK = 65_536


def available() -> bool:
    """Return whether torch finds a CUDA device."""
    return torch.cuda.is_available()


def _cuda() -> torch.device:
    if not available():
        raise DeviceError("torch finds no CUDA device; choose device cpu or auto", code="no-cuda-device")
    return torch.device("cuda")


class DeviceSearch:
    """Search all candidates, chunk by chunk, in the memory of one device.

    ``rough`` gives cheap distances that never exclude a near candidate, and the exact ones of chosen pairs.
    """

    def __init__(self, rough: HammingBits | EuclideanPoints) -> None:
        self.rough, self.device = rough, rough.queries.device
        self.n_queries, self.n_candidates = len(rough.queries), len(rough.candidates)
        self.lock = Lock()  # one tile at a time: it keeps the device busy

    def tiles(self) -> list[Integers]:
        return row_tiles(self.n_queries, QUERIES_PER_TILE)

    def best(self, tile: Integers, k: int) -> tuple[Integers, Floats]:
        with self.lock, torch.inference_mode():
            queries = torch.from_numpy(tile).to(self.device)
            partner = torch.zeros((len(tile), 0), dtype=torch.int64, device=self.device)
            distance = torch.zeros((len(tile), 0), dtype=torch.float64, device=self.device)
            first, size = 0, max(FIRST_CHUNK, k)
            while first < self.n_candidates:
                last = min(first + size, self.n_candidates)
                rough = self.rough.block(queries, first, last)  # (T, C)
                limit = self.rough.limit(distance[:, -1])[:, None] if partner.shape[1] == k else torch.inf
                query, place = (rough <= limit).nonzero(as_tuple=True)  # ordered by query, then by candidate
                exact = self.rough.exact(queries[query], place + first)
                partner, distance = _merge(partner, distance, query, place + first, exact, k)
                first, size = last, min(2 * size, LARGEST_CHUNK)
            return partner.cpu().numpy(), distance.cpu().numpy()


def _merge(
    partner: Tensor, distance: Tensor, query: Tensor, candidate: Tensor, exact: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Return the K best of the lists so far and of new candidates with higher rows; stable sorts keep the tie rule."""
    old = torch.arange(len(partner), device=partner.device).repeat_interleave(partner.shape[1])
    owners = torch.cat([old, query])
    rows, values = torch.cat([partner.flatten(), candidate]), torch.cat([distance.flatten(), exact])
    by_value = values.sort(stable=True).indices
    order = by_value[owners[by_value].sort(stable=True).indices]
    counts = torch.bincount(owners, minlength=len(partner))
    kept = min(k, int(counts.min()))
    starts = counts.cumsum(0) - counts
    chosen = order[starts[:, None] + torch.arange(kept, device=partner.device)]  # (T, K)
    return rows[chosen], values[chosen]


class HammingBits:
    """Bits as float32 matrices; the rough distances are already exact."""

    def __init__(self, queries: Words, candidates: Words, device: torch.device) -> None:
        self.queries, self.candidates = _bits(queries, device), _bits(candidates, device)
        self.query_ones, self.candidate_ones = self.queries.float().sum(1), self.candidates.float().sum(1)

    def block(self, tile: Tensor, first: int, last: int) -> Tensor:
        # TF32 is exact for products of zeros and ones, and twice as fast.
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            common = self.queries[tile].float() @ self.candidates[first:last].float().T  # (T, C)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
        either = self.query_ones[tile][:, None] + self.candidate_ones[first:last]
        return either.sub(common, alpha=2)

    def limit(self, worst: Tensor) -> Tensor:
        return worst.float() - 1  # later rows lose ties

    def exact(self, queries: Tensor, candidates: Tensor) -> Tensor:
        size = max(1, 2**28 // self.queries.shape[1])
        pairs = zip(queries.split(size), candidates.split(size), strict=True)
        return torch.cat([(self.queries[left] != self.candidates[right]).sum(1) for left, right in pairs]).double()


class EuclideanPoints:
    """Coordinates twice: centred and scaled float32 to select, the original float64 to decide."""

    def __init__(self, queries: Floats, candidates: Floats, device: torch.device) -> None:
        self.queries, self.candidates = torch.from_numpy(queries).to(device), torch.from_numpy(candidates).to(device)
        centre = self.candidates.mean(0)
        reach = max(float((self.candidates - centre).abs().max()), float((self.queries - centre).abs().max()))
        self.scale = 2.0 ** np.ceil(np.log2(reach)) if reach > 0 else 1.0
        self.near_queries = ((self.queries - centre) / self.scale).float()
        self.near_candidates = ((self.candidates - centre) / self.scale).float()
        # each coordinate is off by at most 2**-24 of one, each operation by 2**-24 of its result; doubled for safety
        self.absolute = 2.0**-22 * np.sqrt(queries.shape[1])
        self.relative = (queries.shape[1] + 4) * 2.0**-23

    def block(self, tile: Tensor, first: int, last: int) -> Tensor:
        total = torch.zeros((len(tile), last - first), dtype=torch.float32, device=tile.device)
        for axis in range(self.near_queries.shape[1]):
            step = self.near_queries[tile, axis][:, None] - self.near_candidates[first:last, axis]
            total += step.square_()
        return total

    def limit(self, worst: Tensor) -> Tensor:
        reach = worst.mul((1 + self.relative) / self.scale).add(self.absolute)
        return reach.square().mul(1 + 1e-6).float()

    def exact(self, queries: Tensor, candidates: Tensor) -> Tensor:
        total = torch.zeros(len(queries), dtype=torch.float64, device=queries.device)
        for axis in range(self.queries.shape[1]):
            step = self.queries[queries, axis] - self.candidates[candidates, axis]
            total += step * step
        # torch on a CPU, unlike CUDA, can be off in the last bit of a root.
        return total.sqrt() if total.is_cuda else torch.from_numpy(np.sqrt(total.numpy()))


def hamming_search(queries: Words, candidates: Words, device: torch.device | None = None) -> DeviceSearch:
    """Return a search of filters of 64-bit words on the device (default: CUDA)."""
    return DeviceSearch(HammingBits(queries, candidates, device or _cuda()))


def euclidean_search(queries: Floats, candidates: Floats, device: torch.device | None = None) -> DeviceSearch:
    """Return a search of points of any dimension on the device (default: CUDA)."""
    return DeviceSearch(EuclideanPoints(queries, candidates, device or _cuda()))


def _bits(words: Words, device: torch.device) -> Tensor:
    return torch.from_numpy(np.unpackbits(words.view(np.uint8), axis=1)).to(device)
