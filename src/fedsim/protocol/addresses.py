"""Addresses of parties, relays and proxies, and connections to them.

A connection through a proxy or a relay is opened by the package ``fedsim_ops``.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from fedsim.errors import SettingError
from fedsim.registry import SERVICES

if TYPE_CHECKING:
    from fedsim.protocol.messages import Party
    from fedsim.protocol.tls import Credentials

RELAY_SCHEME = "relay://"
_HOST = r"\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]|[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?"
_ADDRESS = re.compile(rf"(?P<host>{_HOST}):(?P<port>[0-9]{{1,5}})")
_PROXY = re.compile(r"(http|socks5)://([^/@]+:[0-9]{1,5})/?")


def split_address(address: str) -> tuple[str, int]:
    """Split an address into host and port.

    >>> split_address("rentals.example.org:7411"), split_address("[::1]:0")
    (('rentals.example.org', 7411), ('::1', 0))
    """
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found["port"]) > 65535:
        hint = "write host:port, as in rentals.example.org:7411"
        raise SettingError(f"invalid address {address[:60]!a}; {hint}", code="invalid-address")
    return found["host"].strip("[]"), int(found["port"])


@dataclass(frozen=True)
class RelayAddress:
    """Where a relay listens, and the label that distinguishes jobs which a party runs at the same time.

    >>> RelayAddress.parse("relay://relay.example.org:7400/flats")
    RelayAddress(address='relay.example.org:7400', label='flats')
    >>> RelayAddress.parse("127.0.0.1:7411") is None
    True
    """

    address: str
    label: str = ""

    @classmethod
    def parse(cls, address: str) -> RelayAddress | None:
        """Return the relay of an address, None for an address without one."""
        if not address.startswith(RELAY_SCHEME):
            return None
        place, _, label = address.removeprefix(RELAY_SCHEME).partition("/")
        split_address(place)
        return cls(place, label)


@dataclass(frozen=True)
class Proxy:
    """A proxy for outgoing connections; ``repr`` shows neither user nor password.

    >>> Proxy.parse("socks5://proxy.example.org:1080", "ada:secret")
    Proxy(kind='socks5', address='proxy.example.org:1080')
    """

    kind: str
    address: str
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str, login: str = "") -> Proxy:
        """Return the proxy of a URL and of ``user:password``."""
        found = _PROXY.fullmatch(url)
        if found is None:
            shown = "a URL with a user" if "@" in url else f"'{url[:60]}'"
            hint = "write http://host:port or socks5://host:port, and the user in network.proxy_login"
            raise SettingError(f"{shown} is not a proxy; {hint}", code="invalid-proxy")
        split_address(found[2])
        user, _, password = login.partition(":")
        if len(user.encode()) > 255 or len(password.encode()) > 255:
            raise SettingError("user or password of the proxy is longer than 255 bytes", code="invalid-proxy-login")
        return cls(found[1], found[2], user, password)


def open_connection(address: str, credentials: Credentials, peer: Party, seconds: float) -> socket.socket:
    """Return a connection to a peer, by the proxy of our credentials and the relay of the address.

    Raises
    ------
    ConnectionLost
        If a proxy or a relay refuses.
    OSError
        If there is no answer on a direct connection.
    """
    if is_direct(address, credentials):
        return socket.create_connection(split_address(address), timeout=seconds)
    return cast(socket.socket, SERVICES["connection"](address, credentials, peer, seconds))


def is_direct(address: str, credentials: Credentials) -> bool:
    """Return whether neither a proxy nor a relay is between a party and an address."""
    return credentials.proxy is None and RelayAddress.parse(address) is None
