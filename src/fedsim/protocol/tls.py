"""Read TLS credentials, restrict plaintext to this machine, and explain why a TLS handshake fails."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
import ssl
from collections.abc import Callable, Iterator
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
from fedsim.storage.key_source import SecretSource

RENEWAL_DAYS = 30  # with fewer days left, commands warn
_ALERT = re.compile(r"(?:SSLV3|TLSV1|TLSV13)_(?:ALERT_)?(\w+)")


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
        fault = f"{certificate} was not issued by the authority in {authority}; {_ONE_FOLDER}"
        raise FileError(fault, code="other-authority")
    if fault := certs.date_fault(issuer, moment):
        raise FileError(f"the authority {authority} {fault}; {certs.NEW_AUTHORITY_HINT}", code="authority-out-of-date")
    if fault := certs.date_fault(own, moment):
        raise FileError(f"{certificate} {fault}; {_RENEW}", code="certificate-out-of-date")
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


# Opens a connection to a peer at an address within some seconds.
Connector = Callable[[str, Credentials, Party, float], socket.socket]


@dataclass(frozen=True)
class TlsProbe:
    """Why a handshake fails, empty if it succeeds; ``lasting`` if the peer itself refused: do not retry."""

    code: str
    reason: str
    lasting: bool = False


def probe_tls(
    address: str, credentials: Credentials, peer: Party, seconds: float = 3.0, connect: Connector = open_connection
) -> TlsProbe:
    """Try a TLS handshake with a peer, without sending a message.

    gRPC reports every failure as "failed to connect to all addresses"; a plain handshake knows the reason. ``seconds``
    limits each step; a server that accepts us silently takes that long. ``connect`` opens the connection.
    """
    call = _TlsAttempt(address, credentials, peer, seconds, connect)
    try:
        context = client_context(credentials)
        plain = call.connect()
    except (OSError, UnicodeError, ConnectionLost) as error:
        return call.connect_failure(error)
    try:
        with call.greet(plain, context) as channel:
            return call.read_verdict(channel)
    except ssl.SSLCertVerificationError as error:
        return call.untrusted(error)
    except OSError as error:
        return call.handshake_failure(error)


def check_revocation(address: str, credentials: Credentials, peer: Party, seconds: float = 3.0) -> TlsProbe:
    """Return a failure if the certificate at an address was revoked; gRPC does not show a client what it accepted."""
    call, seen, failures = _TlsAttempt(address, credentials, peer, seconds), b"", (OSError, UnicodeError)
    with suppress(*failures, ConnectionLost), call.greet(call.connect(), client_context(credentials)) as channel:
        seen = ssl.DER_cert_to_PEM_cert(channel.getpeercert(binary_form=True) or b"").encode()
    if seen and credentials.refuses(seen):
        return TlsProbe("certificate-revoked", f"the certificate of {peer} at {address} was revoked", lasting=True)
    return TlsProbe("", "")


@dataclass(frozen=True)
class _TlsAttempt:
    """One connection attempt, and the explanation of its failure."""

    address: str
    credentials: Credentials
    peer: Party
    seconds: float
    open: Connector = open_connection

    @property
    def authorities(self) -> list[x509.Certificate]:
        return x509.load_pem_x509_certificates(self.credentials.authority)

    def connect(self) -> socket.socket:
        return self.open(self.address, self.credentials, self.peer, self.seconds)

    def connect_failure(self, error: Exception) -> TlsProbe:
        if isinstance(error, ConnectionLost):  # a proxy or a relay reported why
            return TlsProbe(error.code, str(error), lasting=error.lasting)
        if isinstance(error, ConnectionResetError):
            return self.handshake_failure(error)
        if getattr(error, "errno", None) in _OUT_OF_DESCRIPTORS:
            return TlsProbe("out-of-descriptors", _NO_DESCRIPTOR)
        code, template = next(failure for kind, *failure in _CONNECT_FAILURES if isinstance(error, kind))
        return TlsProbe(code, template.format(self, reason=getattr(error, "strerror", None) or "no reason given"))

    @contextmanager
    def greet(self, plain: socket.socket, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
        name = certs.server_name(self.peer)
        # An explicit handshake: wrap_socket silently skips it if the peer has hung up.
        with plain, context.wrap_socket(plain, server_hostname=name, do_handshake_on_connect=False) as channel:
            channel.do_handshake()
            yield channel

    def handshake_failure(self, error: OSError) -> TlsProbe:
        if isinstance(error, TimeoutError):
            fault = f"did not answer the TLS handshake within {self.seconds:g} s"
            hint = f"another service listens there, or {self.peer} hangs"
            return TlsProbe("handshake-timeout", f"{self.address} {fault}; {hint}")
        reason = _reason(error)
        if reason in _HANDSHAKE_FAILURES:
            code, template = _HANDSHAKE_FAILURES[reason]
            return TlsProbe(code, f"{self.address} {template.format(peer=self.peer)}", lasting=True)
        alert = _alert(reason)
        fault = f"refused the TLS handshake ({alert})" if alert else "closed the connection during the TLS handshake"
        hint = f"another service listens there, or a proxy in front of {self.peer}"
        code = "handshake-refused" if alert else "handshake-closed"
        return TlsProbe(code, f"{self.address} {fault}; {hint}", lasting=bool(alert))

    def read_verdict(self, channel: ssl.SSLSocket) -> TlsProbe:
        """Read whether the server accepts our certificate: in TLS 1.3 that arrives after the handshake.

        gRPC servers close the connection silently, and then our certificate may explain it. If it does not, the peer
        may just have been killed.
        """
        if channel.selected_alpn_protocol() != "h2":
            return TlsProbe(_NO_HTTP2[0], f"{self.address} {_NO_HTTP2[1]}", lasting=True)
        reason = ""
        try:
            if channel.recv(1):
                return TlsProbe("", "")
        except TimeoutError:
            return TlsProbe("", "")
        except OSError as error:
            reason = _reason(error)
        own = x509.load_pem_x509_certificate(self.credentials.certificate)
        known = _REFUSALS.get(reason)
        if known is None and (fault := certs.date_fault(own, datetime.now(UTC))):
            known = "own-certificate-out-of-date", f"it {fault}; {_RENEW}"
        elif known is None and not any(certs.issued_by(own, each) for each in self.authorities):
            known = "own-certificate-of-other-authority", f"it was issued by another authority; {_ONE_FOLDER}"
        if known:
            return TlsProbe(known[0], f"{self.address} refuses our certificate: {known[1]}", lasting=True)
        alert = _alert(reason)
        fault = f"closed the connection ({alert or 'no reason given'}) after it received our certificate"
        hint = f"compare ca.pem and the clocks of both sides, and read the log of {self.peer}"
        return TlsProbe("closed-after-certificate", f"{self.address} {fault}; {hint}", lasting=bool(alert))

    def untrusted(self, error: ssl.SSLCertVerificationError) -> TlsProbe:
        """Explain why a certificate is not trusted, from the one that the server shows without verification."""
        context, seen, now = _tls13_context(), None, datetime.now(UTC)
        context.set_alpn_protocols(["h2"])
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with suppress(OSError, *certs.PARSE_ERRORS), self.greet(self.connect(), context) as channel:
            seen = certs.decode_fully(x509.load_der_x509_certificate(channel.getpeercert(binary_form=True) or b""))
        number, found = error.verify_code, f"the certificate at {self.address}"
        if seen and number in _OTHER_AUTHORITY:
            theirs, ours = (ascii(name.rfc4514_string()[:60]) for name in (seen.issuer, self.authorities[0].subject))
            origin = "is self-signed" if seen.issuer == seen.subject else f"comes from another authority, {theirs}"
            code = "self-signed" if seen.issuer == seen.subject else "other-authority"
            return TlsProbe(code, f"{found} {origin}, and ours is {ours}; {_ONE_FOLDER}", lasting=True)
        if seen and number in _OUT_OF_DATE:
            if fault := certs.date_fault(seen, now):
                reason = f"the certificate of {self.peer} at {self.address} {fault}; {_RENEW}"
                return TlsProbe("certificate-out-of-date", reason, lasting=True)
            fault = next(filter(None, (certs.date_fault(each, now) for each in self.authorities)), "is out of date")
            reason = f"our authority {fault}; {certs.NEW_AUTHORITY_HINT}"
            return TlsProbe("authority-out-of-date", reason, lasting=True)
        if seen and number == _OTHER_NAME:
            try:
                owner = f"belongs to {certs.certificate_party(certs.certificate_pem(seen))}"
            except FileError:
                owner = "names no party"
            reason = f"{found} {owner} instead of {self.peer}; check the address, and who runs there"
            return TlsProbe("other-party", reason, lasting=True)
        hint = f"{self.peer} needs one made by `fedsim certs` with our authority"
        return TlsProbe("not-trusted", f"{found} cannot be trusted ({error.verify_message}); {hint}", lasting=True)


def client_context(credentials: Credentials, authority: bytes | None = None) -> ssl.SSLContext:
    """Return the TLS settings of our client, which trusts our own authority or another one."""
    context = _tls13_context()
    context.set_alpn_protocols(["h2"])
    return _load_credentials(context, credentials, authority)


def server_context(credentials: Credentials) -> ssl.SSLContext:
    """Return the TLS settings of a server that requires a certificate of its authorities."""
    context = _tls13_context(ssl.PROTOCOL_TLS_SERVER)
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
        if not isinstance(error, ssl.SSLError) and getattr(error, "errno", None) in _OUT_OF_DESCRIPTORS:
            raise  # the certificate is not to blame
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "unreadable"
        fault = f"the certificate and its key cannot be used for TLS ({reason}); create new ones"
        raise FileError(fault, code="unusable-certificate") from None
    return context


def _tls13_context(protocol: ssl._SSLMethod = ssl.PROTOCOL_TLS_CLIENT) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _reason(error: OSError) -> str:
    """Return OpenSSL's name of an error; empty for network errors."""
    return str(getattr(error, "reason", None) or "")


def _alert(reason: str) -> str:
    """Return the text of a TLS alert; empty if there is none.

    >>> _alert("TLSV1_ALERT_ACCESS_DENIED"), _alert("TLSV1_UNRECOGNIZED_NAME"), _alert("UNEXPECTED_EOF_WHILE_READING")
    ('access denied', 'unrecognized name', '')
    """
    found = _ALERT.fullmatch(reason)
    return found[1].replace("_", " ").lower() if found else ""


_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_NO_DESCRIPTOR = "this process has no free file descriptor for a connection; raise the limit (ulimit -n, LimitNOFILE)"
_RENEW = "renew it with `fedsim certs --renew`, or correct the clock"
_ONE_FOLDER = "all parties of a job need certificates from the same `fedsim certs` folder"
_NO_HTTP2 = "no-http2", "speaks TLS but not HTTP/2; another service listens there, or a proxy without gRPC support"
_NO_TLS = "no-tls", "does not speak TLS; another service listens there, or {peer} runs with --insecure"
_UNKNOWN_HOST = "the host of {0.address} is unknown; check the name and the DNS of this machine"
_OLD_TLS = "old-tls", "only supports TLS versions before 1.3; update the software there, or the proxy in front of it"
_HANDSHAKE_FAILURES = {
    **dict.fromkeys(("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"), _NO_TLS),
    **dict.fromkeys(("UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION"), _OLD_TLS),
    "TLSV1_ALERT_NO_APPLICATION_PROTOCOL": _NO_HTTP2,
}
_REFUSALS = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": ("certificate-required", "the server cannot use it; create a new one"),
    "TLSV1_ALERT_UNKNOWN_CA": ("authority-not-trusted", f"the server trusts another authority; {_ONE_FOLDER}"),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": ("own-certificate-out-of-date", f"it has expired by the clock there; {_RENEW}"),
    "SSLV3_ALERT_BAD_CERTIFICATE": ("own-certificate-invalid", "it is not valid there; compare both clocks"),
}
# OpenSSL's X509_V_ERR numbers; which one means "another authority" depends on what is in the chain.
_OTHER_AUTHORITY, _OUT_OF_DATE, _OTHER_NAME = (2, 7, 18, 19, 20, 21), (9, 10), 62
_CONNECT_FAILURES: tuple[tuple[type[Exception], str, str], ...] = (
    (socket.gaierror, "unknown-host", _UNKNOWN_HOST),
    (UnicodeError, "unknown-host", _UNKNOWN_HOST),
    (ConnectionRefusedError, "not-listening", "no program listens at {0.address}; start {0.peer} there"),
    (TimeoutError, "no-answer", "{0.address} did not answer within {0.seconds:g} s; check host, port and firewalls"),
    (OSError, "not-reachable", "{0.address} cannot be reached ({reason}); check host, port and network"),
)
