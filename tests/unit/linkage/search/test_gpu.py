"""The GPU search is torch code for any device; here it runs on the CPU and must equal the other backends bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsim.errors import DeviceError
from fedsim.linkage import topk
from fedsim.linkage.search import gpu
from fedsim.linkage.search.filters import to_words
from fedsim.linkage.search.runner import run_search

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "FIRST_CHUNK", 64)
    monkeypatch.setattr(gpu, "LARGEST_CHUNK", 200)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("k", [1, 17])
def test_euclidean_equals_the_tree(ties: bool, k: int) -> None:
    rng = np.random.default_rng(0)
    queries, candidates = (rng.normal(size=(n, 2)) * 3 + [116.4, 39.9] for n in (150, 900))
    if ties:
        queries, candidates = queries.round(), candidates.round()
    partner, distance = run_search(gpu.euclidean_search(queries, candidates, CPU), len(queries), k)
    expected = topk(queries, candidates, metric="euclidean", k=k, backend="tree")
    np.testing.assert_array_equal(partner, expected[0])
    np.testing.assert_array_equal(distance, expected[1])


@pytest.mark.parametrize("k", [1, 17])
def test_hamming_equals_the_popcount_kernel(k: int) -> None:
    bits = np.random.default_rng(1).integers(0, 256, (900, 5), dtype=np.uint8)
    words = to_words(bits)
    partner, distance = run_search(gpu.hamming_search(words[:150], words, CPU), 150, k)
    expected = topk(bits[:150], bits, metric="hamming", k=k, backend="flat")
    np.testing.assert_array_equal(partner, expected[0])
    np.testing.assert_array_equal(distance, expected[1])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_asking_for_cuda_without_one_says_so() -> None:
    with pytest.raises(DeviceError) as caught:
        topk(np.eye(3), np.eye(3), metric="euclidean", k=1, device="cuda")
    assert caught.value.code == "no-cuda-device"
