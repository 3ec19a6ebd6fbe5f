"""A network that misbehaves: passes bytes to a port, late, in pieces, or not at all."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress

PIECE = 4096  # shorter than a frame of activations, so that a cut leaves half of one
RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Listens at ``port`` for those who want to speak to ``target``."""

    def __init__(self, port: int, target: int) -> None:
        self.delay, self.closed, self.cuts = 0.0, False, 0
        self._target, self._passing = target, threading.Event()
        self._passing.set()
        self._ends: set[socket.socket] = set()
        self._door = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Every connection breaks, in the middle of whatever was passing."""
        self.cuts += 1
        for end in list(self._ends):
            self._break(end)

    def stall(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self._passing.clear()

    def go_on(self) -> None:
        self._passing.set()

    def close(self) -> None:
        self._door.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for callers
        self._door.close()
        self.go_on()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._door.accept()
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
                there.sendall(piece)
        self._break(here)
        self._break(there)

    def _break(self, end: socket.socket) -> None:
        self._ends.discard(end)
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            end.shutdown(socket.SHUT_RDWR)
        end.close()
