"""``fedsim serve`` as a process: where it listens, over which TLS, and with which token."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
from http.client import RemoteDisconnected
from pathlib import Path
from urllib.request import urlopen

import pytest

from fedsim.config.job import read_job
from fedsim.config.party_file import read_party_file
from fedsim.protocol.certificates import server_name
from fedsim.protocol.messages import Party, Role
from fedsim.runtime.run_local import run_local
from job_fixtures import PARTIES, approve_now, change, fill

FEDSIM = [sys.executable, "-m", "fedsim"]
PARTY = ["job.toml", "city.toml", "--insecure", "--wait", "0.1"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A trained job."""
    fill(tmp_path)
    change(tmp_path / "job.toml", "epochs = 8", "epochs = 1")
    for name in PARTIES:
        approve_now(tmp_path, name)
    run_local(read_job(tmp_path / "job.toml"), [read_party_file(tmp_path / f"{name}.toml") for name in PARTIES])
    return tmp_path


def health_over_tls(folder: Path, port: int, version: ssl.TLSVersion) -> int:
    """The status of a request to the service, from a client that speaks TLS up to a version."""
    context = ssl.create_default_context(cafile=folder / "certs" / "ca.pem")
    context.maximum_version = version
    name = server_name(Party(Role.PRIMARY, "city"))
    plain = socket.create_connection(("127.0.0.1", port), 20)
    with plain, context.wrap_socket(plain, server_hostname=name) as line:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return int(line.recv(100).split()[1])


def test_programs_hear_where_a_service_listens_and_reach_it_over_tls(folder):
    secured = ["--tls-certificate", "certs/primary-city.pem", "--tls-key", "certs/primary-city.key"]
    command = [*FEDSIM, "serve", *PARTY, "--port", "0", "--json", *secured]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as service:
        result = json.loads(service.stdout.readline())
        scheme, _, taken = result["address"].rstrip("/").rpartition(":")
        assert (scheme, health_over_tls(folder, int(taken), ssl.TLSVersion.TLSv1_3)) == ("https://127.0.0.1", 200)
        with pytest.raises(ssl.SSLError):
            health_over_tls(folder, int(taken), ssl.TLSVersion.TLSv1_2)
        with pytest.raises(RemoteDisconnected):
            urlopen(f"http://127.0.0.1:{taken}/health", timeout=300)
        second = [*FEDSIM, "serve", *PARTY, "--port", taken, "--quiet"]
        other = subprocess.run(second, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        service.send_signal(signal.SIGINT)
        rest = service.stdout.read()
    assert result["columns"] == ["lat", "lon", "area", "storey", "age"]
    assert (folder / result["token"]).stat().st_mode & 0o777 == 0o600
    assert (service.returncode, rest) == (0, "")
    assert (other.returncode, taken in other.stderr) == (2, True)
