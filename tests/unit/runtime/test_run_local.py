"""All parties in one process: a job that was trained before is told, not trained again; Ctrl-C stops them all."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedsim.errors import DeviceError
from fedsim.protocol import handshake
from fedsim.runtime.run_local import _PartyThread, run_local
from fedsim.training import Hook
from job_fixtures import lay_out, read_all
from session_fixtures import PATIENCE


def test_a_job_that_was_trained_before_is_told_at_once(tmp_path, caplog, monkeypatch):
    lay_out(tmp_path)
    job, files = read_all(tmp_path)
    files["city"] = files["city"].model_copy(update={"tracking": "tensorboard"})
    written = []
    writer = SimpleNamespace(add_scalar=lambda *given: None, flush=lambda: None, close=lambda: None)
    tracker = SimpleNamespace(SummaryWriter=lambda folder: written.append(Path(folder)) or writer)
    monkeypatch.setitem(sys.modules, "tensorboardX", tracker)
    first = run_local(job, list(files.values()))
    leftover = [thread for thread in threading.enumerate() if thread.name.startswith("serving ")]
    for thread in leftover:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in leftover)  # nobody waits for a party that has left
    monkeypatch.setattr(handshake, "WAIT_LOG_AFTER", -1.0)  # whoever waits says so
    with caplog.at_level("INFO"):
        again = run_local(job, list(files.values()))
    assert again.outcome == first.outcome
    assert again.ledger == []
    assert [(folder.name, folder.parents[1]) for folder in written] == [("tensorboard", tmp_path / "city-run")]
    assert "already trained" in caplog.text
    assert "waiting for" not in caplog.text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["city", "rentals"])
def test_a_party_without_the_gpu_that_its_file_names_fails_before_it_trains(tmp_path, name):
    lay_out(tmp_path)
    job, files = read_all(tmp_path)
    files[name] = files[name].model_copy(update={"device": "cuda"})
    with pytest.raises(DeviceError) as caught:
        run_local(job, list(files.values()))
    assert caught.value.code == "no-gpu"


class CtrlC(Hook):
    """Pressed after the first step."""

    def stepped(self, step: int) -> None:
        if not step:
            _thread.interrupt_main()


@pytest.fixture
def _ctrl_c_raises():
    """A command that ran in this process before may have left its own handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_raises")
def test_ctrl_c_stops_those_who_compute_before_it_ends_the_process(tmp_path):
    lay_out(tmp_path, {"job": {"epochs = 2": "epochs = 500"}})
    job, files = read_all(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_local(job, list(files.values()), [CtrlC()])
    assert not any(isinstance(thread, _PartyThread) for thread in threading.enumerate())
