"""The planner uses a card where it is faster, and says why."""

from __future__ import annotations

import numpy as np
import pytest

import fedsim
from fedsim.errors import DeviceError
from fedsim.linkage import soft_linkage
from fedsim.types import LinkageResult
from fedsim_ops import gpu_planner
from gpu_emulator import emulate_card


def tables() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(30, 2)), rng.normal(size=(50, 2))


def some_links() -> LinkageResult:
    return fedsim.link(*tables(), metric="euclidean", k=4)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A card that is worth a look even for few pairs."""
    emulate_card(monkeypatch)
    monkeypatch.setattr(soft_linkage, "MIN_PAIRS_FOR_GPU", 1)
    monkeypatch.setattr(gpu_planner, "START_SECONDS", 0.0)
    return monkeypatch


def test_a_card_slower_than_the_cpu_is_not_used_and_the_plan_says_so(card: pytest.MonkeyPatch) -> None:
    backend, _, reason = some_links().plan.partition(": ")
    assert backend == "tree"
    assert "on the GPU" in reason


def test_a_card_faster_than_the_cpu_finds_the_same_links(card: pytest.MonkeyPatch) -> None:
    card.setattr(gpu_planner, "_estimate_on_cpu", lambda *given: 1e9)
    links = some_links()
    assert links.plan.startswith("gpu: ")
    np.testing.assert_array_equal(links.partner, fedsim.link(*tables(), metric="euclidean", k=4, device="cpu").partner)


def test_a_search_that_ends_before_a_card_has_started_runs_on_the_cpu(card: pytest.MonkeyPatch) -> None:
    card.setattr(gpu_planner, "START_SECONDS", 1e9)
    assert "starting the GPU" in some_links().plan


def test_a_card_that_cannot_run_the_search_is_left_out(card: pytest.MonkeyPatch) -> None:
    def fail(*given: object) -> None:
        raise DeviceError("no compiler", code="no-nvrtc")

    card.setattr("fedsim_ops.gpu_search.Kernel.launch", fail)
    assert some_links().plan.startswith("tree: ")
    with pytest.raises(DeviceError) as caught:
        fedsim.link(*tables(), metric="euclidean", k=4, device="cuda")
    assert caught.value.code == "no-nvrtc"


@pytest.mark.parametrize(("records", "metric"), [(["ab" * 2000, "b"], "levenshtein"), (np.ones((2, 99)), "euclidean")])
def test_records_that_do_not_fit_the_kernels_are_refused_on_a_card(
    card: pytest.MonkeyPatch, records: object, metric: str
) -> None:
    with pytest.raises(DeviceError) as caught:
        fedsim.link(records, records, metric=metric, k=1, device="cuda")
    assert caught.value.code == "no-gpu-search"


def test_a_small_search_asks_no_card(card: pytest.MonkeyPatch) -> None:
    card.setattr(soft_linkage, "MIN_PAIRS_FOR_GPU", 10**9)
    assert "estimated" not in some_links().plan
