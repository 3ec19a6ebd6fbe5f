"""Tunnel TCP connections between sites through NVFlare messages, for sites that can only reach NVFlare's server.

Runs in NVFlare's process at a site. Both ends of a connection are on loopback, and the parties speak mutual TLS through
it, so that NVFlare's server relays ciphertext. This module imports NVFlare only, as ``components`` does.
"""

import logging
import socket
import threading
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

log = logging.getLogger(__name__)

TOPIC = "fedsim.tunnel"
LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 1 << 20
REPLY_SECONDS = 30.0  # without a reply the connection is closed; the parties reconnect and resume
CONNECT_SECONDS = 5.0
RETRY_SECONDS = 0.1
MAX_CONNECTIONS = 64
OPEN, DATA, CLOSE = "open", "data", "close"


class Tunnel:
    """Opens a loopback port for every peer site, and forwards what peers send to the party's port.

    A chunk is sent when the previous one has been written at the other end, which preserves order and bounds memory.

    Parameters
    ----------
    engine
        The engine of NVFlare's process.
    port
        The loopback port of this site's party, or 0 if it accepts no connections.
    peers
        The sites that the party connects to.
    """

    def __init__(self, engine: Any, port: int, peers: Iterable[str]) -> None:
        self._engine, self._port = engine, port
        self._connections: dict[tuple[str, str], socket.socket] = {}
        engine.register_aux_message_handler(TOPIC, self._answer)
        self.local_ports = {peer: self._open_listener(peer) for peer in peers}

    def _open_listener(self, peer: str) -> int:
        listener = socket.create_server((LOOPBACK, 0))
        threading.Thread(target=self._accept, args=(listener, peer), name=f"fedsim-to-{peer}", daemon=True).start()
        return int(listener.getsockname()[1])

    def _accept(self, listener: socket.socket, peer: str) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:  # no free descriptor, or the caller is gone
                log.warning("cannot accept a connection to site %s: %s", peer, error.strerror)
                time.sleep(RETRY_SECONDS)
                continue
            key = (peer, uuid.uuid4().hex)
            self._connections[key] = connection
            threading.Thread(target=self._open, args=(key, connection), daemon=True).start()

    def _open(self, key: tuple[str, str], connection: socket.socket) -> None:
        if self._send(key, OPEN):
            self._forward(key, connection)
        else:
            self._close(key)

    def _forward(self, key: tuple[str, str], connection: socket.socket) -> None:
        """Send what the party writes, until one of both ends closes."""
        with suppress(OSError):  # closed at this end
            while (chunk := connection.recv(CHUNK_BYTES)) and self._send(key, DATA, chunk):
                continue
        if self._close(key):
            self._send(key, CLOSE)

    def _close(self, key: tuple[str, str]) -> bool:
        connection = self._connections.pop(key, None)
        if connection is None:
            return False
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
        return True

    def _send(self, key: tuple[str, str], what: str, chunk: bytes = b"") -> bool:
        """Send one message to a peer and return whether it was accepted."""
        peer, name = key
        request = Shareable({"what": what, "connection": name, "chunk": chunk})
        try:
            with self._engine.new_context() as fl_ctx:
                replies = self._engine.send_aux_request([peer], TOPIC, request, REPLY_SECONDS, fl_ctx, optional=True)
        except Exception as error:  # NVFlare documents no types; the party must not be left waiting
            log.warning("NVFlare could not send '%s' to site %s: %s", what, peer, error)
            return False
        reply = replies.get(peer)
        code = "no reply" if reply is None else reply.get_return_code()
        if code != ReturnCode.OK:  # to OPEN, usually a party that does not listen yet
            log.log(logging.INFO if what == OPEN else logging.WARNING, "site %s refused '%s': %s", peer, what, code)
        return bool(code == ReturnCode.OK)

    def _answer(self, topic: str, request: Any, fl_ctx: Any) -> Any:
        key = (str(fl_ctx.get_peer_context().get_identity_name()), str(request.get("connection")))
        what, connection = request.get("what"), self._connections.get(key)
        try:
            if what == OPEN and self._port and connection is None and len(self._connections) < MAX_CONNECTIONS:
                opened = socket.create_connection((LOOPBACK, self._port), timeout=CONNECT_SECONDS)
                opened.settimeout(None)
                self._connections[key] = opened
                threading.Thread(target=self._forward, args=(key, opened), daemon=True).start()
                return make_reply(ReturnCode.OK)
            if what == DATA and connection is not None:
                connection.sendall(request.get("chunk"))
                return make_reply(ReturnCode.OK)
        except OSError:  # the party does not listen yet, or has closed the connection
            self._close(key)
        if what == CLOSE:
            self._close(key)
            return make_reply(ReturnCode.OK)
        return make_reply(ReturnCode.EXECUTION_EXCEPTION)
