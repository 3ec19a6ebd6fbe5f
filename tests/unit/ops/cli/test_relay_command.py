"""``fedsim relay`` runs until it is stopped."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from relay_fixtures import HUB
from tls_fixtures import credentials_of

COMMAND = [sys.executable, "-m", "fedsim", "relay", "--listen", "127.0.0.1:0"]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_relay_prints_its_address_and_ends_without_an_error(tmp_path: Path, stop: signal.Signals) -> None:
    own = credentials_of(HUB)
    for name, content in (("hub.pem", own.certificate), ("hub.key", own.key), ("ca.pem", own.authority)):
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    files = ["--certificate", str(tmp_path / "hub.pem"), "--ca", str(tmp_path / "ca.pem")]
    with subprocess.Popen([*COMMAND, *files, "--json"], stdout=subprocess.PIPE, text=True) as relay:
        assert re.fullmatch(r"127\.0\.0\.1:[1-9][0-9]*", json.loads(relay.stdout.readline())["address"])
        relay.send_signal(stop)
        relay.communicate(timeout=300)
    assert relay.returncode == 0
