"""Read TLS credentials, and restrict plaintext to this machine."""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509

from fedsim.errors import FileError, SettingError
from fedsim.protocol import certificates as certs
from fedsim.protocol.addresses import Proxy, open_connection, split_address
from fedsim.protocol.messages import Party
from fedsim.protocol.transport import ConnectionLost
from fedsim.storage.files import SecretSource

RENEWAL_DAYS = 30  # with fewer days left, commands warn
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
RENEW_HINT = "renew it with `fedsim certs --renew`, or correct the clock"
ONE_FOLDER_HINT = "all parties of a job need certificates from the same `fedsim certs` folder"


@dataclass(frozen=True)
class Credentials:
    """A party's certificate, key and authority as PEM; ``repr`` shows none of them.

    >>> Credentials(authority=b"", certificate=b"", key=b"")
    Credentials(revocations=(), proxy=None)

    They last as long as a connection: new connections use the :meth:`current` ones.
    """

    authority: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)
    revocations: tuple[Path, ...] = ()  # files with the authorities' lists of revoked certificates
    proxy: Proxy | None = None  # for outgoing connections
    relay_authority: bytes | None = field(default=None, repr=False)  # of a relay, if it is another one
    _renewed: list[Credentials] = field(default_factory=list, repr=False, compare=False)

    def current(self) -> Credentials:
        """Return the credentials that replaced these last."""
        return self._renewed[0] if self._renewed else self

    def renew(self, newest: Credentials) -> None:
        """Replace these credentials for all their users."""
        self._renewed[:] = [newest]

    def refuses(self, certificate: bytes) -> bool:
        """Return whether its authority revoked a peer's certificate (PEM); the lists are read anew every time."""
        return bool(self.revocations) and certs.is_revoked(certificate, self.revocations, self.authority)

    def days_left(self, now: datetime) -> int:
        """Return the days until the certificate expires, negative afterwards."""
        return (x509.load_pem_x509_certificate(self.certificate).not_valid_after_utc - now).days


def read_credentials(
    authority: SecretSource,
    certificate: SecretSource,
    key: SecretSource,
    party: Party,
    now: datetime | None = None,
    revocations: Path | None = None,
) -> Credentials:
    """Read the certificate and key of a party; raise ``FileError`` unless its peers will accept them ``now``."""
    issuers, own = certs.read_certificates(authority), certs.read_certificates(certificate)[0]
    private, moment = certs.read_key(key), now or datetime.now(UTC)
    issuer = next((each for each in issuers if certs.issued_by(own, each)), None)
    if not certs.key_matches(private, own):
        fault = f"{key} is not the key of {certificate}; give the two files that `fedsim certs` wrote together"
        raise FileError(fault, code="wrong-key")
    if issuer is None:
        fault = f"{certificate} was not issued by the authority in {authority}; {ONE_FOLDER_HINT}"
        raise FileError(fault, code="other-authority")
    if fault := certs.date_fault(issuer, moment):
        raise FileError(f"the authority {authority} {fault}; {certs.NEW_AUTHORITY_HINT}", code="authority-out-of-date")
    if fault := certs.date_fault(own, moment):
        raise FileError(f"{certificate} {fault}; {RENEW_HINT}", code="certificate-out-of-date")
    certs.check_party(own, certificate, party)
    authorities = b"".join(map(certs.certificate_pem, issuers))
    found = Credentials(
        authorities, certs.certificate_pem(own), certs.key_pem(private), tuple(filter(None, [revocations]))
    )
    if found.refuses(found.certificate):
        fault = f"{certificate} was revoked; make a new key with `fedsim certs request` and have it signed"
        raise FileError(fault, code="certificate-revoked")
    return found


def is_loopback(address: str) -> bool:
    """Return whether an address is reachable from this machine only.

    >>> is_loopback("127.0.0.1:7411"), is_loopback("[::1]:7411"), is_loopback("0.0.0.0:7411")
    (True, True, False)
    """
    host, _ = split_address(address)
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    return found == ipaddress.IPv6Address("::1") or found in ipaddress.IPv4Network("127.0.0.0/8")


def check_plaintext(address: str) -> None:
    """Raise ``SettingError`` unless plaintext at this address stays on this machine."""
    if address.startswith("relay://") or not is_loopback(address):
        fault = f"plaintext is for tests on one machine, but {address} is open to others"
        hint = "create certificates with `fedsim certs`, or use an address such as 127.0.0.1:7411"
        raise SettingError(f"{fault}; {hint}", code="plaintext-to-others")


@contextmanager
def tls_channel(plain: socket.socket, context: ssl.SSLContext, peer: Party) -> Iterator[ssl.SSLSocket]:
    """Open TLS with a peer on a connection, which is closed at the end."""
    # An explicit handshake: wrap_socket silently skips it if the peer has hung up.
    name = certs.server_name(peer)
    with plain, context.wrap_socket(plain, server_hostname=name, do_handshake_on_connect=False) as channel:
        channel.do_handshake()
        yield channel


def is_peer_revoked(address: str, credentials: Credentials, peer: Party, seconds: float = 3.0) -> bool:
    """Return whether the certificate at an address was revoked; gRPC does not show a client what it accepted.

    A peer that does not answer is not: whoever connects to it next learns why.
    """
    context, shown, lost = client_context(credentials), None, (OSError, UnicodeError, ConnectionLost)
    with suppress(*lost), tls_channel(open_connection(address, credentials, peer, seconds), context, peer) as channel:
        shown = channel.getpeercert(binary_form=True)
    return shown is not None and credentials.refuses(ssl.DER_cert_to_PEM_cert(shown).encode())


def client_context(credentials: Credentials, authority: bytes | None = None) -> ssl.SSLContext:
    """Return the TLS settings of our client, which trusts our own authority or another one."""
    context = tls13_context()
    context.set_alpn_protocols(["h2"])
    return _load_credentials(context, credentials, authority)


def server_context(credentials: Credentials) -> ssl.SSLContext:
    """Return the TLS settings of a server that requires a certificate of its authorities."""
    context = tls13_context(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode, context.num_tickets = ssl.CERT_REQUIRED, 0
    return _load_credentials(context, credentials)


def _load_credentials(
    context: ssl.SSLContext, credentials: Credentials, authority: bytes | None = None
) -> ssl.SSLContext:
    """Add certificate and key; ``ssl`` reads a key only from a file, so a temporary one is written."""
    try:
        context.load_verify_locations(cadata=(authority or credentials.authority).decode("ascii", "ignore"))
        with TemporaryDirectory(prefix="fedsim-") as folder:  # readable by this user only
            both = Path(folder) / "own.pem"
            both.touch(mode=0o600)
            both.write_bytes(credentials.certificate + b"\n" + credentials.key)
            context.load_cert_chain(both, password="")  # a locked key is an error, not a prompt
    except (OSError, ValueError) as error:
        if not isinstance(error, ssl.SSLError) and getattr(error, "errno", None) in OUT_OF_DESCRIPTORS:
            raise  # the certificate is not to blame
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "unreadable"
        fault = f"the certificate and its key cannot be used for TLS ({reason}); create new ones"
        raise FileError(fault, code="unusable-certificate") from None
    return context


def tls13_context(protocol: ssl._SSLMethod = ssl.PROTOCOL_TLS_CLIENT) -> ssl.SSLContext:
    """Return TLS settings without versions before 1.3."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
