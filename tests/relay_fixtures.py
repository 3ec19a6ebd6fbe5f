"""A relay in a thread, and real proxies (HTTP CONNECT and SOCKS5) with users and passwords."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress

from fedsim.protocol.messages import Party, Role
from fedsim_lab.faults.network import OutboundNetwork
from fedsim_ops.outbound import join_sockets, receive_exactly
from fedsim_ops.relay import Relay, open_listener
from session_fixtures import PATIENCE
from tls_fixtures import OURS, credentials_of

HUB = Party(Role.RELAY, "hub")


@contextmanager
def relay_in_thread(relay=None, address="127.0.0.1:0"):
    """The address of a relay that runs in this process."""
    listener, loop = open_listener(address), asyncio.new_event_loop()
    relay = relay or Relay(credentials_of(HUB), [[OURS.certificate]])
    task = loop.create_task(relay.serve(listener))

    def run():
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.run_until_complete(asyncio.sleep(0.05))  # ends the connections
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"relay://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(PATIENCE)
        listener.close()


@contextmanager
def proxy_in_thread(kind, login="ada:secret", host="127.0.0.1"):
    """The URL of a proxy, and the list of the targets that it was asked for."""
    listener, targets = socket.create_server((host, 0)), []
    answer = {"http": _answer_connect, "socks5": _answer_socks5}[kind]

    def serve(link):
        with suppress(OSError), closing(link):
            target = answer(link, login)
            if target:
                targets.append(f"{target[0]}:{target[1]}")
                join_sockets(link, socket.create_connection(target))

    def accept():
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"{kind}://{host}:{listener.getsockname()[1]}", targets
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@contextmanager
def outbound_only(place, login="ada:secret"):
    """Namespaces in which the parties of a job reach a proxy only, each of another kind, and the relay is behind it."""
    network = OutboundNetwork(f"out{os.getpid()}", place.names)
    (place.folder / "login").write_text(login)
    (place.folder / "login").chmod(0o600)
    place.relay_listen.write_text(network.relay_address)
    with ExitStack() as stack, ThreadPoolExecutor(1, initializer=network.enter(network.gateway)) as gate:
        stack.callback(network.close)
        for name, kind in zip(place.names, ("http", "socks5", "http"), strict=True):
            proxy = proxy_in_thread(kind, login, network.gates[name])
            url, _ = gate.submit(proxy.__enter__).result()
            stack.callback(proxy.__exit__, None, None, None)
            place.change_party(name, network={"proxy": url, "proxy_login": "login"})
        yield network


def _answer_connect(link, login):
    request = b""
    while not request.endswith(b"\r\n\r\n"):
        request += receive_exactly(link, 1)
    if login and f"Proxy-Authorization: Basic {base64.b64encode(login.encode()).decode()}".encode() not in request:
        link.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
        return None
    host, _, port = request.split(b" ")[1].decode().rpartition(":")
    link.sendall(b"HTTP/1.1 200 OK\r\nVia: test\r\n\r\n")
    return host, int(port)


def _answer_socks5(link, login):
    methods = receive_exactly(link, receive_exactly(link, 2)[1])
    wanted = 2 if login else 0
    if wanted not in methods:
        link.sendall(b"\x05\xff")
        return None
    link.sendall(bytes((5, wanted)))
    if login:
        user = receive_exactly(link, receive_exactly(link, 2)[1]).decode()
        password = receive_exactly(link, receive_exactly(link, 1)[0]).decode()
        link.sendall(b"\x01" + bytes((f"{user}:{password}" != login,)))
        if f"{user}:{password}" != login:
            return None
    kind = receive_exactly(link, 4)[3]
    if kind == 3:
        host = receive_exactly(link, receive_exactly(link, 1)[0]).decode()
    else:
        host = socket.inet_ntop(*{1: (socket.AF_INET, receive_exactly(link, 4))}[kind])
    (port,) = struct.unpack(">H", receive_exactly(link, 2))
    link.sendall(b"\x05\x00\x00\x01" + bytes(6))
    return host, port
