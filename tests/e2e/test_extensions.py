"""One choice of every kind, registered from outside the package, runs a job over gRPC."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

import numpy as np
import pytest
import torch

from e2e.party_threads import run_in_threads
from fedsim.config.settings_schema import load_schema
from fedsim.errors import SettingError
from fedsim.linkage.encoding.column_encodings import NumericFilter
from fedsim.linkage.metrics import Hamming
from fedsim.preflight.check import check_job
from fedsim.preflight.estimate import NetworkLink
from fedsim.protocol.cut_layer import WireFormat
from fedsim.protocol.grpc_transport import GrpcTransport
from fedsim.registry import ENCODINGS, METHODS, METRICS, PRESETS, SPLITS, TRANSPORTS, WIRE_FORMATS
from fedsim.runtime.party_context import open_transport
from fedsim.runtime.run_local import run_local
from fedsim.splitnn.methods import AvgSim
from fedsim.splitnn.secondary_model import Preset
from fedsim.types import Split
from fedsim_lab.faults.local_job import RENTALS, create_local_job
from fedsim_lab.paper_networks import paper_preset
from fedsim_lab.paper_preset import PAPER


@dataclass(frozen=True)
class CoarseFilter(NumericFilter):
    """Filters of numbers as somebody else's class."""

    KIND: ClassVar[str] = "coarse"


@dataclass(frozen=True)
class MismatchMetric(Hamming):
    """The Hamming distance under another name."""

    name: str = "mismatch"


@dataclass(frozen=True)
class MeanOfPartners(AvgSim):
    """AvgSim as somebody else's class."""


def draw_in_order(records, rng):
    """Split by the order of the table."""
    rows = np.arange(records.n_records)
    return Split(*np.split(rows, [7 * len(rows) // 10, 8 * len(rows) // 10]))


EIGHTHS = WireFormat("int16", lambda x: (8 * x).round().clamp(-9999, 9999).to(torch.int16), lambda x: x.float() / 8)


class CountingTransport(GrpcTransport):
    """gRPC that counts how often it dials."""

    dials: ClassVar[list[str]] = []

    def dial(self, address, peer):
        self.dials.append(address)
        return super().dial(address, peer)


@pytest.fixture
def extensions():
    with ExitStack() as stack:
        stack.enter_context(ENCODINGS.temporarily("coarse", CoarseFilter, summary="Rounded numbers."))
        stack.enter_context(METRICS.temporarily("mismatch", MismatchMetric(), summary="Differing bits."))
        stack.enter_context(METHODS.temporarily("mean", MeanOfPartners, summary="The mean over the partners."))
        small = Preset(PAPER.local, PAPER.optimiser, paper_preset)
        stack.enter_context(PRESETS.temporarily("small", small, summary="The paper's sizes."))
        stack.enter_context(SPLITS.temporarily("in-order", draw_in_order, summary="As in the table."))
        sizes = {"dtype": EIGHTHS.dtype, "value_bytes": 2, "row_bytes": 0}
        stack.enter_context(WIRE_FORMATS.temporarily("eighths", EIGHTHS, summary="Multiples of an eighth.", **sizes))
        stack.enter_context(TRANSPORTS.temporarily("counting", CountingTransport, summary="gRPC, counted."))
        yield


def lay_out_extended(folder):
    fields = [
        {"column": column, "encoding": {"kind": "coarse", "low": low, "high": high, "threshold": 0.05}}
        for column, low, high in (("lat", 0.9, 1.8), ("lon", 103.3, 104.4))
    ]
    terms = {"tau": None, "sigma": 0.4, "metric": "mismatch", "schema": {"version": 1, "fields": fields}}
    training = {"method": "mean", "preset": "small", "epochs": 2, "wire": "eighths"}
    return create_local_job(folder, training=training, task={"split": "in-order"}, secondaries={RENTALS: terms})


@pytest.mark.usefixtures("extensions")
def test_choices_from_outside_train_the_same_weights_over_grpc_as_in_process(tmp_path):
    here, there = (lay_out_extended(tmp_path / name) for name in ("here", "there"))
    run_local(here.job, [here.own(name) for name in here.names])
    run_in_threads(there, lambda own: open_transport(own, name="counting"))
    assert there.hashes() == here.hashes()
    assert CountingTransport.dials


@pytest.mark.usefixtures("extensions")
def test_choices_from_outside_pass_the_preflight_and_are_in_the_schema(tmp_path):
    place = lay_out_extended(tmp_path / "job")
    report = check_job(
        place.job_path,
        [place.path(name) for name in place.names],
        link=NetworkLink(),
        now=datetime.now(UTC),
        call_peers=False,
    )
    assert report.passed, [finding for section in report.sections for finding in section.findings]
    schema = str(load_schema("job"))
    assert all(f"'{name}'" in schema for name in ("coarse", "mismatch", "mean", "small", "in-order", "eighths"))


def test_choices_that_nobody_registered_are_refused(tmp_path):
    with pytest.raises(SettingError):
        create_local_job(tmp_path / "job", training={"method": "mean"})
