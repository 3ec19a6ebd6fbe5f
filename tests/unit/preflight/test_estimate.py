"""The estimate agrees with the messages, the networks and the presets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from fedsim.config.job import Job
from fedsim.data.splits import PAPER_PROPORTIONS
from fedsim.hyperparameters import TrainingSettings
from fedsim.preflight.estimate import (
    PRESET_SIZES,
    TEST_SHARE,
    TRAIN_SHARE,
    VALIDATION_SHARE,
    WEIGHT_BYTES,
    LinkListSizes,
    NetworkLink,
    Span,
    Workload,
    build_workload,
    disk_bytes,
    distinct_rows,
    epoch_bytes,
    expected_distinct_rows,
    linkage_bytes,
    step_bytes,
    training_bytes,
)
from fedsim.protocol.cut_layer import pack_tensor, wire_format
from fedsim.protocol.messages import (
    Activations,
    Ask,
    Candidates,
    Gradients,
    Partners,
    Queries,
    RowOrder,
)
from fedsim.protocol.transport import NO_BYTES, Envelope, encode
from fedsim.registry import PRESETS, WIRE_FORMATS
from fedsim.splitnn.gates import BranchShape, Regression
from fedsim.splitnn.layers import Piecewise
from fedsim.splitnn.secondary_model import secondary_config, start_secondary
from fedsim.training.loop import build_primary_model
from fedsim.types import Features

RENTALS = LinkListSizes("rentals", records=400, candidates=300, k=20, n_bits=2048, asked=20)
FIELD = {"column": "lat", "encoding": {"kind": "numeric", "low": 0, "high": 9, "threshold": 1}}
JOB = {
    "name": "flats",
    "coordinator": {"name": "notary", "address": "127.0.0.1:50051"},
    "primary": {"name": "city", "address": "127.0.0.1:50052"},
    "task": {"kind": "regression"},
    "secondaries": {"rentals": {"k": 20, "schema": {"version": 1, "fields": [FIELD]}}},
}


def job_with(**training: object) -> Job:
    return Job.from_dict({**JOB, "training": training})


def work_with(preset: str = "modern", **changes: object) -> Workload:
    usual = {"epochs": 8, "batch": 64, "wire": "float32", "checkpoint_steps": 200}
    return Workload((RENTALS,), PRESET_SIZES[preset], **{**usual, **changes})


# --- the tables of sizes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS.names(in_jobs=True))
def test_the_sizes_of_presets_are_right(preset):
    sizes, config, local = PRESET_SIZES[preset], PRESETS[preset].build(), PRESETS[preset].local
    assert (sizes.cut, sizes.sent, sizes.hidden) == (local.cut, local.sent or local.cut, *local.hidden)
    by_size = (None, None)
    assert (sizes.epochs, sizes.batch) == (by_size if PRESETS[preset].by_size else (config.epochs, config.batch))
    assert sizes.members == config.members
    if isinstance(local.encoding, Piecewise):
        assert sizes.column_width == local.encoding.bins + 1


def test_the_sizes_of_wire_formats_and_splits_are_right():
    for name in WIRE_FORMATS:
        form, width = wire_format(name), pack_tensor(torch.ones(3, 2), wire_format(name)).shape[1]
        item = np.dtype(form.dtype).itemsize
        assert form.dtype == WIRE_FORMATS.detail(name, "dtype")
        assert WIRE_FORMATS.detail(name, "value_bytes") == item
        assert WIRE_FORMATS.detail(name, "row_bytes") == (width - 2) * item
    assert tuple(part / sum(PAPER_PROPORTIONS) for part in PAPER_PROPORTIONS) == (
        TRAIN_SHARE,
        VALIDATION_SHARE,
        TEST_SHARE,
    )


@pytest.mark.parametrize("preset", PRESETS.names(in_jobs=True))
@pytest.mark.parametrize("k", [5, 50])
def test_networks_are_at_most_as_large_as_estimated(preset, k):
    rng, config, sizes = np.random.default_rng(0), replace(PRESETS[preset].build(), members=1), PRESET_SIZES[preset]
    features = Features(rng.normal(size=(90, 6)).astype(np.float32), np.zeros((90, 0), np.int64), ())
    branch = BranchShape(k, (sizes.sent,), rng.normal(size=(90, k)).astype(np.float32))
    above = build_primary_model(features, (branch,), Regression(), config, "city").network
    found = sum(weights.numel() for weights in above.parameters())
    estimated = sizes.list_weights + k * sizes.partner_weights + 6 * sizes.column_width * sizes.hidden
    assert found <= estimated <= 1.5 * found
    below = start_secondary(
        "rentals", features, secondary_config("fedsim", TrainingSettings(preset=preset), seed=0), total_steps=1
    ).model
    kept = sum(tensor.nbytes for tensor in below.tensors().values())
    assert kept <= WEIGHT_BYTES * (6 * sizes.column_width + sizes.sent) * sizes.hidden <= 3 * kept


# --- distinct rows -------------------------------------------------------------------------------------------------

sizes_of_batches = st.integers(1, 2000), st.integers(1, 60), st.integers(60, 5000)


@given(*sizes_of_batches)
def test_the_expected_value_is_between_the_bounds(records, partners, candidates):
    rows = distinct_rows(records, partners, candidates)
    assert rows.least <= rows.expected + 1e-3
    assert rows.expected <= rows.most + 1e-3


@given(*sizes_of_batches)
def test_more_records_never_need_fewer_rows(records, partners, candidates):
    more = expected_distinct_rows(records + 1, partners, candidates)
    assert more >= expected_distinct_rows(records, partners, candidates) - 1e-3


def lists(popularity: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """For each of 2,000 records k different rows, the popular ones more often."""
    return (rng.gumbel(size=(2000, len(popularity))) + np.log(popularity)).argsort(axis=1)[:, -k:]


def test_the_formula_is_right_where_all_candidates_are_alike_and_too_large_where_there_are_hubs():
    rng, expected = np.random.default_rng(0), expected_distinct_rows(128, 10, 500)
    alike, hubs = np.ones(500), rng.pareto(1.0, 500) + 0.01
    drawn = [rng.choice(2000, 128, replace=False) for _ in range(50)]
    seen = [
        np.mean([len(np.unique(partner[rows])) for rows in drawn])
        for partner in (lists(alike, 10, rng), lists(hubs, 10, rng))
    ]
    assert seen[0] == pytest.approx(expected, rel=0.02)
    assert seen[1] < 0.9 * expected


# --- bytes ---------------------------------------------------------------------------------------------------------


def frame(message: object) -> int:
    return len(encode(Envelope(message, bytes(16), 10_000, 10_000, 10_000)))


@pytest.mark.parametrize("wire", WIRE_FORMATS.names())
def test_a_step_has_the_bytes_of_its_messages(wire):
    rows, values = np.zeros(700, np.int32), pack_tensor(torch.ones(700, 32), wire_format(wire))
    real = frame(Ask(9, rows=rows)) + frame(Activations(9, values=values)) + frame(Gradients(9, values=values))
    estimated = step_bytes(Span(700, 700, 700), work_with(wire=wire).row_bytes())
    assert estimated.expected == pytest.approx(real, rel=1e-3)


def test_the_linkage_has_the_bytes_of_its_messages():
    n, m, k, width = RENTALS.records, RENTALS.candidates, RENTALS.k, RENTALS.filter_bytes
    messages = [
        Queries("rentals", "f" * 64, 2048, bits=np.zeros((n, width), np.uint8), counted=np.zeros(n, np.uint8)),
        Candidates("rentals", "f" * 64, 2048, bits=np.zeros((m, width), np.uint8)),
        Partners("rentals", m, np.zeros((n, k), np.int32), np.zeros((n, k, 1), np.float32), sealed=NO_BYTES),
        RowOrder("rentals", n, order=np.zeros(m, np.int32), seal=NO_BYTES),
    ]
    assert linkage_bytes(RENTALS) == pytest.approx(sum(map(frame, messages)), rel=1e-2)


def test_half_precision_halves_the_bytes_and_more_epochs_multiply_them():
    whole, half = epoch_bytes(work_with()).expected, epoch_bytes(work_with(wire="float16")).expected
    assert half == pytest.approx(whole / 2, rel=0.05)
    assert training_bytes(work_with(epochs=80)).most == pytest.approx(10 * training_bytes(work_with()).most, rel=0.1)


def test_a_batch_of_all_records_is_one_step():
    assert work_with(batch=10_000).steps == 1
    assert epoch_bytes(work_with(batch=10_000)).most < epoch_bytes(work_with()).most


def test_a_slow_line_and_a_long_ping_take_longer():
    assert NetworkLink(10, 20).seconds(1e6, 10) > NetworkLink(100, 20).seconds(1e6, 10)
    assert NetworkLink(100, 200).seconds(0, 10) == pytest.approx(2.0)


# --- the job -------------------------------------------------------------------------------------------------------


def test_settings_left_out_are_those_of_the_preset():
    work = build_workload(job_with(preset="paper"), {}, {})
    assert (work.epochs, work.batch, work.sizes.cut) == (100, 128, 100)
    given_otherwise = build_workload(job_with(epochs=3, batch_size=7, wire="float16"), {}, {})
    assert (given_otherwise.epochs, given_otherwise.batch, given_otherwise.wire) == (3, 7, "float16")


def test_a_missing_table_is_assumed_to_be_as_large_as_the_largest_one():
    work = build_workload(job_with(), {"city": 4000}, {})
    assert work.lists[0].candidates == 4000
    assert work.assumed == ("4,000 records at rentals",)
    assert build_workload(job_with(), {"city": 4000, "rentals": 9}, {}).assumed == ()


def test_top1sim_asks_for_one_partner_of_each():
    assert build_workload(job_with(method="top1sim"), {}, {}).lists[0].asked == 1


def test_every_party_has_its_disk():
    need = disk_bytes(job_with(), work_with())
    assert list(need) == ["notary", "city", "rentals"]
    assert need["city"] > need["rentals"] > need["notary"] > 0


def test_under_sealed_labels_every_linked_row_is_sent_once_whatever_the_epochs():
    sealed = replace(work_with(), sealed=True)
    frame = encode(Envelope(Activations(-1, values=np.zeros((300, sealed.sizes.cut), np.float32))))
    assert training_bytes(sealed).most == pytest.approx(len(frame) + 4 * 300, rel=0.01)
    assert training_bytes(replace(sealed, epochs=1000)) == training_bytes(sealed)
