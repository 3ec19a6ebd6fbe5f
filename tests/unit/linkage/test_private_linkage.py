"""The coordinator's linkage, what it keeps and what it gives away."""

from __future__ import annotations

import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import reference_distances
from error_fixtures import raises
from fedsim.errors import FileError, FingerprintError, InputError, SettingError
from fedsim.linkage.private_linkage import (
    LinkageConfig,
    link_encoded_tables,
    link_new_records,
    load_linkage_state,
    load_private_links,
    save_linkage_state,
    save_private_links,
)
from fedsim.privacy.bounds import sigma_for_bound, success_bound
from fedsim.privacy.keyed_prng import pair_noise
from fedsim.types import EncodedTable, Links

SECRET = bytes(range(32))
DISTANCES = {"hamming": reference_distances.hamming, "dice": reference_distances.dice}
NOISY, PLAIN = LinkageConfig("hamming", 6, sigma=0.5), LinkageConfig("hamming", 6)


def table(n: int, seed: int, n_bits: int = 61, fingerprint: str = "ab" * 32) -> EncodedTable:
    ones = np.random.default_rng(seed).integers(0, 2, (n, n_bits), dtype=np.uint8)
    return EncodedTable(np.packbits(ones, axis=1), n_bits, fingerprint)


QUERIES, CANDIDATES = table(30, 0), table(40, 1)
COUNTED = np.arange(30) % 3 > 0


def linked_with(linking: LinkageConfig, **changes):
    given = {"queries": QUERIES, "candidates": CANDIDATES, "counted": COUNTED, "secret": SECRET, "list_name": "rents"}
    return link_encoded_tables(**{**given, **changes}, linking=linking)


def assert_same_links(left: Links, right: Links) -> None:
    np.testing.assert_array_equal(left.partner, right.partner)
    np.testing.assert_array_equal(left.overall, right.overall)


def purpose_of(linked) -> str:
    rule = ", ".join(f'"{number:.9g}"' for number in (linked.sigma, linked.scale.mean, linked.scale.deviation))
    return f'["rents", "{linked.metric}", {rule}]'


@pytest.mark.parametrize("metric", ["hamming", "dice"])
@pytest.mark.parametrize("sigma", [None, 0.5])
def test_a_delivery_equals_brute_force(metric, sigma):
    linked, delivery = linked_with(LinkageConfig(metric, 6, sigma=sigma))
    shuffled = CANDIDATES.bits[linked.order]
    partner, distance = reference_distances.nearest(QUERIES.bits, shuffled, DISTANCES[metric], 6)
    mean, deviation = -distance[COUNTED].mean(), distance[COUNTED].std()
    noise = pair_noise(SECRET, QUERIES.bits, shuffled, partner, purpose=purpose_of(linked))
    expected = (-distance - mean) / deviation + (sigma or 0) * noise
    for row in range(30):
        ranked = sorted(zip(-expected[row].astype(np.float32), partner[row], strict=True))
        assert delivery.partner[row].tolist() == [there for _, there in ranked]
        np.testing.assert_allclose(delivery.overall[row], [-value for value, _ in ranked], rtol=1e-6, atol=1e-6)


def test_a_delivery_is_small_and_finite():
    _, delivery = linked_with(NOISY)
    assert (delivery.partner.dtype, delivery.overall.dtype) == (np.int32, np.float32)
    assert delivery.partner.shape == delivery.overall.shape == (30, 6)
    assert np.isfinite(delivery.overall).all()


def test_the_scale_comes_from_the_training_records_alone():
    linked, _ = linked_with(PLAIN)
    far = replace(QUERIES, bits=np.where(COUNTED[:, None], QUERIES.bits, 0).astype(np.uint8))
    assert linked_with(PLAIN, queries=far)[0].scale == linked.scale
    assert linked_with(PLAIN, counted=~COUNTED)[0].scale != linked.scale


def test_partners_come_in_the_order_of_what_the_primary_sees():
    _, plain = linked_with(replace(PLAIN, k=40))
    _, noisy = linked_with(replace(NOISY, k=40))
    assert (np.diff(plain.similarity) <= 0).all()
    assert (np.diff(noisy.similarity) <= 0).all()
    assert (plain.partner != noisy.partner).any()


def test_equal_similarities_stand_by_pseudonym():
    same = replace(CANDIDATES, bits=np.repeat(CANDIDATES.bits[:1], 40, axis=0))
    for linking in (PLAIN, NOISY):
        _, delivery = linked_with(linking, candidates=same)
        assert (delivery.partner == np.arange(6)).all()
        assert (delivery.overall == delivery.overall[:, :1]).all()


def test_which_of_equally_near_candidates_is_taken_says_nothing_of_their_rows():
    same = replace(CANDIDATES, bits=np.repeat(CANDIDATES.bits[:1], 40, axis=0))
    taken = [set(linked_with(PLAIN, candidates=same, secret=bytes([n]) * 32)[0].order[:6]) for n in range(40)]
    times = np.bincount([row for rows in taken for row in rows], minlength=40)
    assert abs(times[:20].sum() - 120) < 30
    assert times.max() < 16


def test_a_coordinator_with_the_same_secret_delivers_the_same_again():
    (linked, delivery), (again, repeated) = linked_with(NOISY), linked_with(NOISY)
    assert_same_links(delivery, repeated)
    assert (linked.order == again.order).all()


CHANGES = [{"secret": bytes(32)}, {"list_name": "sales"}, {"candidates": table(40, 7)}]


@pytest.mark.parametrize("change", CHANGES)
def test_another_secret_list_or_table_is_another_permutation(change):
    (linked, _), (other, _) = linked_with(NOISY), linked_with(NOISY, **change)
    assert sorted(other.order) == list(range(40))
    assert (linked.order != other.order).any()


def by_row(linked, delivery: Links) -> np.ndarray:
    """Similarity of every query and every row of the secondary."""
    table = np.full((len(delivery), len(linked.candidates)), np.nan, np.float32)
    np.put_along_axis(table, linked.order[delivery.partner], delivery.overall, axis=1)
    return table


def test_noise_of_another_scale_does_not_cancel():
    queries, counted = table(500, 3), np.ones(500, bool)
    rho, low, high = (
        by_row(*linked_with(LinkageConfig("hamming", 40, sigma=sigma), queries=queries, counted=counted))
        for sigma in (0.0, 0.5, 1.0)
    )
    assert abs(np.corrcoef((low - rho).ravel(), (high - rho).ravel())[0, 1]) < 0.03
    assert (low - rho).std() == pytest.approx(0.5, rel=0.02)
    assert (high - rho).std() == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("linking", [NOISY, PLAIN, LinkageConfig("dice", 6, sigma=0.1)])
def test_asking_again_gives_the_same_answer(linking):
    linked, delivery = linked_with(linking)
    some = [4, 4, 29, 0]
    again = link_new_records(replace(QUERIES, bits=QUERIES.bits[some]), linked, linking, SECRET, "rents")
    assert_same_links(again, Links(delivery.partner[some], delivery.overall[some]))


def test_asking_again_by_another_metric_or_with_another_key_is_refused():
    linked, _ = linked_with(NOISY)
    with pytest.raises(SettingError) as caught:
        link_new_records(QUERIES, linked, LinkageConfig("dice", 6), SECRET, "rents")
    assert caught.value.code == "other-metric"
    with pytest.raises(FingerprintError):
        link_new_records(table(3, 0, fingerprint="cd" * 32), linked, NOISY, SECRET, "rents")


def test_tau_sets_the_noise_from_the_training_distances():
    linked, _ = linked_with(LinkageConfig("hamming", 6, tau=0.5))
    assert linked.sigma == sigma_for_bound(0.5, linked.scale.deviation)
    assert linked.tau == success_bound(linked.sigma, linked.scale.deviation) == pytest.approx(0.5)
    assert linked_with(NOISY)[0].tau == success_bound(0.5, linked.scale.deviation)


def test_tau_of_dice_bounds_how_often_the_common_ones_of_a_link_are_guessed():
    queries, candidates = table(400, 2, n_bits=256), table(500, 3, n_bits=256)
    counted = np.ones(400, np.bool_)
    state, links = linked_with(
        LinkageConfig("dice", 20, tau=0.25), queries=queries, candidates=candidates, counted=counted
    )
    ones, theirs = (np.bitwise_count(side.bits).sum(axis=1).astype(float) for side in (queries, candidates))
    row = state.order[links.partner]
    total = ones[:, np.newaxis] + theirs[row]
    common = np.bitwise_count(queries.bits[:, np.newaxis] & candidates.bits[row]).sum(axis=2)
    distance = -state.scale.mean - state.scale.deviation * links.overall / (1 + state.sigma**2)
    # The attacker knows the ones of both filters and the scale.
    guessed = np.rint((1 - distance) * total / 2) == common
    assert state.tau == pytest.approx(0.25, rel=1e-3)
    assert guessed.mean() == pytest.approx(0.25, abs=4 * np.sqrt(0.25 * 0.75 / guessed.size))


@pytest.mark.parametrize("linking", [PLAIN, LinkageConfig("hamming", 6, tau=1.0), LinkageConfig("dice", 6)])
def test_no_bound_is_claimed_where_none_holds(linking):
    assert linked_with(linking)[0].tau is None


def test_a_bound_is_neither_promised_nor_claimed_on_flat_distances():
    same = replace(CANDIDATES, bits=np.repeat(CANDIDATES.bits[:1], 40, axis=0))
    flat = {"candidates": same, "queries": replace(QUERIES, bits=np.repeat(QUERIES.bits[:1], 30, axis=0))}
    with pytest.raises(SettingError) as caught:
        linked_with(LinkageConfig("hamming", 6, tau=0.9), **flat)
    assert caught.value.code == "flat-distances"
    assert linked_with(NOISY, **flat)[0].tau is None


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"tau": 0.1, "sigma": 0.1}, "two-noises"),
        ({"metric": "euclidean"}, "not-for-filters"),
        ({"metric": "haming"}, "unknown-metric"),
        ({"sigma": -0.1}, "out-of-range"),
        ({"sigma": float("nan")}, "out-of-range"),
        ({"sigma": 1e39}, "sigma-too-large"),
    ],
)
def test_impossible_settings_are_refused_before_any_search(settings, code):
    with pytest.raises(SettingError) as caught:
        LinkageConfig(**{"metric": "hamming", "k": 6, **settings})
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("linking", "code"),
    [
        (LinkageConfig("hamming", 6, tau=1e-6), "tau-too-small"),
        (LinkageConfig("hamming", 6, tau=2.0), "bad-tau"),
    ],
)
def test_settings_that_the_tables_do_not_allow_are_refused(linking, code):
    with pytest.raises(SettingError) as caught:
        linked_with(linking)
    assert caught.value.code == code


@pytest.mark.parametrize("k", [0, 41])
def test_k_must_fit_the_number_of_candidates(k):
    with pytest.raises(SettingError):
        linked_with(LinkageConfig("hamming", k))


@pytest.mark.parametrize("counted", [np.zeros(30, bool), np.ones(29, bool), np.ones(30, np.uint8), [True] * 30])
def test_training_records_must_be_marked(counted):
    with pytest.raises(InputError) as caught:
        linked_with(NOISY, counted=counted)
    assert caught.value.code == "bad-training-mask"


def test_tables_of_different_keys_or_schemas_are_not_linked():
    with raises(FingerprintError, "fingerprints-differ"):
        linked_with(NOISY, candidates=table(40, 1, fingerprint="cd" * 32))
    with raises(FingerprintError, "filter-sizes-differ"):
        linked_with(NOISY, candidates=table(40, 1, n_bits=64))


@pytest.mark.parametrize("bits", [QUERIES.bits | 1, QUERIES.bits[:, :7], QUERIES.bits[0]])
def test_rows_that_are_no_filters_are_refused(bits):
    broken = replace(QUERIES, bits=bits)
    with pytest.raises(InputError) as caught:
        linked_with(NOISY, queries=broken, counted=np.ones(len(broken), bool))
    assert caught.value.code == "not-filters"


def test_nothing_kept_or_delivered_shows_its_contents():
    linked, delivery = linked_with(NOISY)
    assert repr(linked) == "LinkageState(40 candidates, hamming, sigma 0.5)"
    assert repr(delivery) == "Links(30 records x 6 partners)"


@pytest.mark.parametrize("linking", [NOISY, PLAIN])
def test_a_list_survives_its_file(tmp_path: Path, linking):
    linked, delivery = linked_with(linking)
    save_linkage_state(linked, tmp_path / "rents")
    loaded = load_linkage_state(tmp_path / "rents")
    assert (loaded.scale, loaded.sigma, loaded.tau) == (linked.scale, linked.sigma, linked.tau)
    assert loaded.candidates.digest == CANDIDATES.digest
    assert loaded.order.dtype == np.int32
    assert_same_links(link_new_records(QUERIES, loaded, linking, SECRET, "rents"), delivery)


def test_a_delivery_survives_its_file(tmp_path: Path):
    _, delivery = linked_with(NOISY)
    save_private_links(delivery, str(tmp_path / "partners"))
    loaded = load_private_links(str(tmp_path / "partners"))
    assert_same_links(loaded, delivery)
    assert loaded.partner.dtype == np.int32


def test_files_are_for_their_owner_alone(tmp_path: Path):
    linked, delivery = linked_with(NOISY)
    save_linkage_state(linked, tmp_path / "rents")
    save_private_links(delivery, tmp_path / "partners")
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def save_either(kind: str, path: Path) -> None:
    linked, delivery = linked_with(replace(NOISY, k=2), queries=table(3, 0), counted=np.ones(3, bool))
    save_linkage_state(linked, path) if kind == "linked" else save_private_links(delivery, path)


LOADERS = {"linked": load_linkage_state, "delivery": load_private_links}


@pytest.mark.parametrize("kind", LOADERS)
def test_no_file_cut_short_or_with_a_flipped_bit_is_taken_for_whole(tmp_path: Path, kind):
    path, rng = tmp_path / "kept", np.random.default_rng(1)
    save_either(kind, path)
    whole = path.read_bytes()
    flips = zip(rng.integers(len(whole), size=1500), rng.integers(8, size=1500), strict=True)
    damaged = [whole[:place] + bytes([whole[place] ^ (1 << bit)]) + whole[place + 1 :] for place, bit in flips]
    for content in [*damaged, *(whole[:length] for length in range(len(whole)))]:
        path.write_bytes(content)
        with pytest.raises(FileError) as caught:
            LOADERS[kind](path)
        assert caught.value.code == "damaged-file"


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x02" + bytes(7) + b"{}", b"\x40" + bytes(7) + b"[" * 64])
def test_a_foreign_file_is_refused(tmp_path: Path, kind, content):
    (tmp_path / "kept").write_bytes(content)
    with pytest.raises(FileError) as caught:
        LOADERS[kind](tmp_path / "kept")
    assert caught.value.code == "damaged-file"


def test_a_list_is_no_delivery_and_a_missing_file_is_named(tmp_path: Path):
    save_either("linked", tmp_path / "kept")
    with pytest.raises(FileError) as caught:
        load_private_links(tmp_path / "kept")
    assert caught.value.code == "damaged-file"
    with pytest.raises(FileError) as caught:
        load_linkage_state(tmp_path / "absent")
    assert caught.value.code == "not-readable"


FORBIDDEN = ("torch", "grpc", "fedsim.data", "fedsim.splitnn", "fedsim.linkage.encoding")
PROGRAM = "import sys, fedsim.linkage.private_linkage, fedsim.storage.files; print(*sys.modules)"


def test_the_coordinators_linkage_loads_neither_data_nor_networks_nor_encoders():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=300)
    loaded = ran.stdout.split()
    assert "fedsim.linkage.private_linkage" in loaded
    assert [name for name in loaded if name in FORBIDDEN or name.startswith(tuple(f"{n}." for n in FORBIDDEN))] == []


# One similarity per field


# Relative similarities
