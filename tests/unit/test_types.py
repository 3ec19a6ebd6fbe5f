"""Values that several packages share: features, links, results of a linkage, lengths of a training, seeds."""

from __future__ import annotations

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import InputError
from fedsim.types import Features, LinkageResult, Links, Scale, derive_seed, training_length


def result(n_candidates: int = 9) -> LinkageResult:
    partner, distance = np.array([[4, 2], [1, 7]]), np.array([[0.0, 1.5], [0.5, 2.0]])
    return LinkageResult(partner, distance, -distance, Scale(0.0, 1.0), 0.0, "days", n_candidates, np.ones(2))


@pytest.mark.parametrize(
    ("features", "code"),
    [
        (Features(np.zeros((3, 0))), "no-features"),
        (Features(np.array([[1.0], [np.nan]])), "feature-not-finite"),
        (Features(np.zeros((2, 1)), np.array([[0], [3]]), (3,)), "code-out-of-range"),
        (Features(np.zeros((2, 1)), np.zeros((3, 1), np.int64), (3,)), "feature-shape"),
    ],
)
def test_features_that_no_network_can_learn_from_are_refused(features: Features, code: str) -> None:
    with raises(InputError, code):
        features.check("primary")


def test_columns_with_two_values_are_not_spread_unless_somebody_says_so() -> None:
    numbers = np.array([[0.0, 1.5, 2.0], [1.0, 0.5, 2.0], [0.0, -2.0, 2.0]])
    assert Features(numbers).many_valued == (1,)
    assert Features(numbers, spread=(0,)).many_valued == (0,)


def test_partners_are_ordered_by_the_fields_that_are_present() -> None:
    links = Links(np.array([[4, 2]]), np.array([[[np.nan, 1.0], [0.5, 0.25]]]))
    assert links.overall.tolist() == [[1.0, 0.375]]
    nearest = links.reorder(links.overall.argmax(axis=1)[:, None])
    assert (nearest.k, nearest.partner.tolist()) == (1, [[4]])


def test_links_as_a_table_have_a_row_per_pair_and_the_keys_of_both_tables() -> None:
    frame = result().to_polars(primary_ids=["a", "b"], secondary_ids=list("rstuvwxyz"))
    assert frame["record_id"].to_list() == ["a", "a", "b", "b"]
    assert frame["partner_id"].to_list() == ["v", "t", "s", "y"]
    assert frame["rank"].to_list() == [1, 2, 1, 2]


def test_a_key_is_needed_for_every_record() -> None:
    with raises(InputError, "id-count", limit=9):
        result().to_polars(secondary_ids=["r"])


def test_small_tables_train_for_more_epochs_with_smaller_batches() -> None:
    lengths = [training_length(n) for n in (1, 200, 2_000, 20_000, 2_000_000)]
    assert [length.epochs for length in lengths] == sorted((length.epochs for length in lengths), reverse=True)
    assert [length.batch for length in lengths] == sorted(length.batch for length in lengths)
    assert all(length.patience == length.epochs // 5 for length in lengths)


def test_a_seed_depends_on_party_purpose_and_step() -> None:
    seeds = {derive_seed(0, *given) for given in [("a", "x", 0), ("b", "x", 0), ("a", "y", 0), ("a", "x", 1)]}
    assert len(seeds) == 4
    assert all(0 <= seed < 1 << 63 for seed in seeds)
