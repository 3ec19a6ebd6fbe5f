"""Strangers with valid certificates, and parties that speak for others, while an honest job runs."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import numpy as np
import pytest

from e2e.process_hooks import few_descriptors
from fedsim.errors import FedSimError
from fedsim.protocol.addresses import split_address
from fedsim.protocol.grpc_transport import GrpcTransport
from fedsim.protocol.messages import Done, Hello, Party, Role, Trouble
from fedsim.protocol.tls import read_credentials
from fedsim.protocol.transport import PREFIX, ConnectionLost, Envelope, encode
from fedsim_lab.faults.local_job import CITY, MEMBERS, NOTARY, RENTALS, create_local_job
from fedsim_lab.faults.processes import party_processes
from fedsim_ops.authority import issue_certificates, party_files

STRANGER = Party(Role.SECONDARY, "stranger")
TRAINING = {"epochs": 12}
DESCRIPTORS = 400


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    with party_processes(create_local_job(tmp_path_factory.mktemp("quiet") / "job", training=TRAINING)) as parties:
        parties.start()
        return parties.finish()


def frames(rng, job, speaker):
    """What a hostile party might send: noise, absurd sizes, messages out of place, a lie about its name."""
    hello = Hello(speaker.name, speaker.role.value, job, "{}", "0" * 32, "", 0, 0.0)
    yield rng.bytes(int(rng.integers(1, 400)))
    yield PREFIX.pack(b"FSIM", 1 << 31, 1 << 62, 7) + rng.bytes(40)
    yield encode(Envelope(hello))
    yield encode(Envelope(Trouble("primary 'city'", "stop all of you", False)))
    yield encode(Envelope(Done(""), session=bytes(16), sequence=1))


class Attack(threading.Thread):
    """Dials a party again and again, as whoever the certificate names, and claims to be somebody."""

    def __init__(self, place, certified, claimed, target):
        super().__init__(daemon=True)
        certificate, key = party_files(place.folder / "certs", certified)
        credentials = read_credentials(place.folder / "certs" / "ca.pem", certificate, key, certified)
        self.transport, self.claimed, self.target = GrpcTransport(credentials), claimed, target
        self.address, self.job = place.job.address_of(target), str(place.job.to_dict())
        self.over, self.lines = threading.Event(), 0

    def run(self):
        rng = np.random.default_rng()
        while not self.over.is_set():
            for frame in frames(rng, self.job, self.claimed):
                self.speak(frame)

    def speak(self, frame):
        with suppress(ConnectionLost, FedSimError):
            line = self.transport.dial(self.address, self.target)
            line.send(frame)
            self.lines += 1
            line.close()


class Noise(threading.Thread):
    """Connections without a certificate: garbage, TLS greetings, and callers that never say a word."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.address, self.over, self.silent = split_address(address), threading.Event(), []

    def run(self):
        nobody = ssl.create_default_context()
        nobody.check_hostname, nobody.verify_mode = False, ssl.CERT_NONE
        while not self.over.is_set():
            with suppress(OSError), socket.create_connection(self.address, 1) as line:
                line.sendall(os.urandom(200))
            with suppress(OSError), socket.create_connection(self.address, 1) as line:
                nobody.wrap_socket(line, server_hostname="x").close()
            for _ in range(30 if len(self.silent) < 2 * DESCRIPTORS else 0):
                with suppress(OSError):
                    self.silent.append(socket.create_connection(self.address, 1))
            self.over.wait(0.01)
        for line in self.silent:
            line.close()


@contextmanager
def under(attacks):
    for attack in attacks:
        attack.start()
    try:
        yield
    finally:
        for attack in attacks:
            attack.over.set()
        for attack in attacks:
            attack.join()


@pytest.mark.slow
def test_an_honest_job_learns_the_same_while_strangers_shout(expected, tmp_path):
    place = create_local_job(tmp_path / "job", training=TRAINING)
    issue_certificates(place.folder / "certs", [STRANGER], datetime.now(UTC))
    notary, city, rentals = (MEMBERS[name] for name in (NOTARY, CITY, RENTALS))
    attacks = [
        Attack(place, STRANGER, STRANGER, city),  # a valid certificate that has no part in the job
        Attack(place, STRANGER, rentals, notary),  # and speaks for one that has
        Attack(place, rentals, city, notary),  # a party of the job that speaks for another
        Attack(place, notary, rentals, city),  # in another role
        *(Noise(address) for address in (place.job.primary.address, place.job.coordinator.address)),
    ]
    with party_processes(place, dict.fromkeys(place.names, few_descriptors(DESCRIPTORS))) as parties:
        parties.start()
        parties.until_step(0)
        with under(attacks):
            assert parties.finish() == expected
        assert sum(attack.lines for attack in attacks[:4]) > 20
        output = parties.output_of(NOTARY)
        assert "the certificate belongs to secondary 'rentals', but the caller claims to be primary 'city'" in output
        assert output.count("rejected ") <= 40  # a flood of strangers does not fill the disk
