"""Faulty networks between the parties of a job: a proxy for any user, network namespaces for root on Linux."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fedsim_lab.faults.local_job import CITY, NOTARY, RELAY, LocalJob, free_ports
from fedsim_lab.faults.processes import Before

PIECE = 4096  # shorter than a frame of activations, so that a cut leaves half of one
RESET = struct.pack("ii", 1, 0)
CLONE_NEWNET = 0x40000000
ADDRESS, PORT = "10.77.0.{}", 7411


class Network(Protocol):
    """Faults that the campaign applies to the links of a party; ``restore`` ends all of them."""

    parties: Sequence[str]  # whose links can be disturbed

    def partition(self, party: str, peer: str | None) -> None:
        """Silently block all traffic between a party and one peer, or all peers."""

    def slow_down(self, party: str) -> None:
        """Make the links of a party slow."""

    def lose(self, party: str) -> None:
        """Drop some of what the party sends and receives."""

    def restore(self, party: str) -> None:
        """Let everything pass again."""

    def close(self) -> None:
        """Remove everything that was set up."""


class FaultyProxy:
    """Listens on ``port`` and forwards bytes to the port ``target``: late, in pieces, or not at all."""

    def __init__(self, port: int, target: int) -> None:
        self.delay, self.loss, self.closed, self.cuts = 0.0, 0.0, False, 0
        self._target, self._passing = target, threading.Event()
        self._passing.set()
        self._ends: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection, in the middle of whatever is being sent."""
        self.cuts += 1
        for end in list(self._ends):
            self._break(end)

    def stall(self) -> None:
        """Silently stop forwarding."""
        self._passing.clear()

    def resume(self) -> None:
        """Forward what has been waiting."""
        self._passing.set()

    def close(self) -> None:
        """Stop listening and break all connections."""
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for callers
        self._listener.close()
        self.resume()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(caller,), daemon=True).start()

    def _connect(self, caller: socket.socket) -> None:
        self._ends.add(caller)
        try:
            if self.closed:
                raise ConnectionRefusedError
            peer = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            self._break(caller)
            return
        self._ends.add(peer)
        for here, there in ((caller, peer), (peer, caller)):
            threading.Thread(target=self._pass, args=(here, there), daemon=True).start()

    def _pass(self, here: socket.socket, there: socket.socket) -> None:
        with suppress(OSError):
            while piece := here.recv(PIECE):
                time.sleep(self.delay)
                self._passing.wait()
                if random.random() < self.loss:  # noqa: S311 - a broken network needs no secret
                    there.sendall(piece[: len(piece) // 2])
                    break
                there.sendall(piece)
        self._break(here)
        self._break(there)

    def _break(self, end: socket.socket) -> None:
        self._ends.discard(end)
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            end.shutdown(socket.SHUT_RDWR)
        end.close()


class ProxyNetwork:
    """Proxies in front of the coordinator and primary, or of the relay of the job, which then listen elsewhere.

    The job itself does not change, so no new approval is needed.
    """

    parties: Sequence[str] = (NOTARY, CITY)

    def __init__(self, job: LocalJob) -> None:
        self.proxies: dict[str, FaultyProxy] = {}
        ports, relay = free_ports(), job.relay_address
        addressed = {job.job.hub, *(party for party in job.job.parties if party.name == CITY)}
        addresses = {RELAY: relay} if relay else {one.name: job.job.address_of(one) for one in addressed}
        for name, address in addresses.items():
            port = next(ports)
            if name == RELAY:
                job.relay_listen.write_text(f"127.0.0.1:{port}")
            else:
                job.change_party(name, network={"listen": f"127.0.0.1:{port}"})
            self.proxies[name] = FaultyProxy(int(address.split(":")[1]), port)

    def partition(self, party: str, peer: str | None) -> None:
        """Stall, or refuse connections and break those that exist."""
        proxy = self.proxies[party]
        if peer is None:
            proxy.stall()
        else:
            proxy.closed = True
            proxy.cut()

    def slow_down(self, party: str) -> None:
        """Delay every piece."""
        self.proxies[party].delay = 0.05

    def lose(self, party: str) -> None:
        """Cut a connection after half a piece, at random."""
        self.proxies[party].loss = 0.02

    def restore(self, party: str) -> None:
        """Pass everything at once again."""
        proxy = self.proxies[party]
        proxy.delay, proxy.loss, proxy.closed = 0.0, 0.0, False
        proxy.resume()

    def close(self) -> None:
        """Close the proxies."""
        for proxy in self.proxies.values():
            proxy.close()


class NamespaceNetwork:
    """A network namespace per party, joined by a bridge in one more; needs root and iproute2."""

    def __init__(self, label: str, parties: Sequence[str]) -> None:
        self.parties, self._label, self._peers = parties, label, dict[str, list[str]]()
        self.addresses = {name: ADDRESS.format(number) for number, name in enumerate(parties, start=1)}
        self._switch = self.namespace("switch")
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for name, address in self.addresses.items():
            own = self.namespace(name)
            _ip("netns", "add", own)
            _ip("link", "add", name, "netns", self._switch, "type", "veth", "peer", "name", "eth0", "netns", own)
            _ip("-n", self._switch, "link", "set", name, "master", "bridge", "up")
            _ip("-n", own, "address", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", own, "link", "set", "eth0", "up")
            _ip("-n", own, "link", "set", "lo", "up")

    @staticmethod
    def available() -> bool:
        """Whether this process may create namespaces."""
        return os.name == "posix" and os.geteuid() == 0 and bool(shutil.which("ip") and shutil.which("tc"))

    def namespace(self, party: str) -> str:
        """Return the name of a party's namespace."""
        return f"fedsim-{self._label}-{party}"

    def enter(self, party: str) -> Before:
        """Return what a process does to move into the namespace of a party."""
        return partial(_enter_namespace, self.namespace(party))

    def listen_addresses(self) -> dict[str, Any]:
        """Return the settings of the job that name the addresses."""
        roles = {"coordinator": NOTARY, "primary": CITY}
        return {role: {"address": f"{self.addresses[name]}:{PORT}"} for role, name in roles.items()}

    def partition(self, party: str, peer: str | None) -> None:
        """Disconnect the party, or drop what goes to one peer."""
        if peer is None:
            _ip("-n", self._switch, "link", "set", party, "down")
        elif peer not in self._peers.setdefault(party, []):
            self._peers[party].append(peer)
            _ip("-n", self.namespace(party), "route", "add", "blackhole", f"{self.addresses[peer]}/32")

    def slow_down(self, party: str) -> None:
        """Let through a few kilobytes per second, with a long queue."""
        self._shape(party, "256kbit", "2s")

    def lose(self, party: str) -> None:
        """Drop what a short queue cannot hold."""
        self._shape(party, "512kbit", "5ms")

    def restore(self, party: str) -> None:
        """Undo everything."""
        _ip("-n", self._switch, "link", "set", party, "up")
        for peer in self._peers.pop(party, []):
            _ip("-n", self.namespace(party), "route", "del", "blackhole", f"{self.addresses[peer]}/32")
        for namespace, device in ((self._switch, party), (self.namespace(party), "eth0")):
            _run("tc", "-n", namespace, "qdisc", "del", "dev", device, "root", check=False)

    def close(self) -> None:
        """Delete the namespaces, and with them everything inside."""
        for name in (*self.parties, "switch"):
            _run("ip", "netns", "del", self.namespace(name), check=False)

    def _shape(self, party: str, rate: str, latency: str) -> None:
        for namespace, device in ((self._switch, party), (self.namespace(party), "eth0")):
            shape = ("tbf", "rate", rate, "burst", "3kb", "latency", latency)
            _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *shape)


class OutboundNetwork:
    """Parties that can only reach a gateway, each in its own namespace, and a relay behind the gateway.

    There are no routes: passing the gateway requires a proxy there. Needs root and iproute2.
    """

    gateway, relay = "gate", RELAY

    def __init__(self, label: str, parties: Sequence[str]) -> None:
        self._label, self._names = label, (self.gateway, self.relay, *parties)
        self.relay_address = f"10.78.1.2:{PORT}"
        for name in self._names:
            _ip("netns", "add", self._namespace(name))
            _ip("-n", self._namespace(name), "link", "set", "lo", "up")
        for number, name in enumerate((self.relay, *parties), start=1):
            gate, own = self._namespace(self.gateway), self._namespace(name)
            _ip("link", "add", name, "netns", gate, "type", "veth", "peer", "name", "eth0", "netns", own)
            for namespace, device, end in ((gate, name, 1), (own, "eth0", 2)):
                _ip("-n", namespace, "address", "add", f"10.78.{number}.{end}/24", "dev", device)
                _ip("-n", namespace, "link", "set", device, "up")
        self.gates = {name: f"10.78.{number}.1" for number, name in enumerate(parties, start=2)}

    def enter(self, name: str) -> Before:
        """Return what a process or thread does to move into a namespace."""
        return partial(_enter_namespace, self._namespace(name))

    def listening(self, name: str) -> str:
        """Return the listening TCP ports in a namespace."""
        command = ["ip", "netns", "exec", self._namespace(name), "ss", "-Hltn"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - our own words

    def close(self) -> None:
        """Delete the namespaces."""
        for name in self._names:
            _run("ip", "netns", "del", self._namespace(name), check=False)

    def _namespace(self, name: str) -> str:
        return f"fedsim-{self._label}-{name}"


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str, check: bool = True) -> None:
    subprocess.run(command, check=check, capture_output=True)  # noqa: S603 - our own words


def _enter_namespace(name: str) -> None:
    with Path("/run/netns", name).open("rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")
