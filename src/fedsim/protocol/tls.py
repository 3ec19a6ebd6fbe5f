"""Read TLS credentials, restrict plaintext to this machine, and explain why a TLS handshake fails."""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509

from fedsim.errors import FileError, SettingError
from fedsim.protocol import certificates as certs
from fedsim.protocol.certificates import certificate_pem, date_fault, issued_by
from fedsim.protocol.messages import Party

RENEWAL_DAYS = 30  # with fewer days left, commands warn
_ALERT = re.compile(r"(?:SSLV3|TLSV1|TLSV13)_(?:ALERT_)?(\w+)")
_ADDRESS = re.compile(r"(\[[^\[\]]+\]|[^:\[\]]+):([0-9]{1,5})")


@dataclass(frozen=True, repr=False)
class Credentials:
    """A party's certificate, key and authority as PEM; no ``repr`` or message shows the key.

    >>> Credentials(authority=b"", certificate=b"", key=b"")
    Credentials(secret)
    """

    authority: bytes
    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Credentials(secret)"

    def days_left(self, now: datetime) -> int:
        """Return the days until the certificate expires, negative afterwards."""
        return (x509.load_pem_x509_certificate(self.certificate).not_valid_after_utc - now).days


def read_credentials(
    authority: Path, certificate: Path, key: Path, party: Party, now: datetime | None = None
) -> Credentials:
    """Read the three files of a party; raise ``FileError`` unless its peers will accept them ``now``."""
    issuers, own = certs.read_certificates(authority), certs.read_certificates(certificate)[0]
    private, moment = certs.read_key(key), now or datetime.now(UTC)
    issuer = next((each for each in issuers if issued_by(own, each)), None)
    if not certs.key_matches(private, own):
        fault = f"{key} is not the key of {certificate}; give the two files that `fedsim certs` wrote together"
        raise FileError(fault, code="wrong-key")
    if issuer is None:
        fault = f"{certificate} was not issued by the authority in {authority}; {_ONE_FOLDER}"
        raise FileError(fault, code="other-authority")
    if fault := date_fault(issuer, moment):
        raise FileError(f"the authority {authority} {fault}; {certs.NEW_AUTHORITY_HINT}", code="authority-out-of-date")
    if fault := date_fault(own, moment):
        raise FileError(f"{certificate} {fault}; {_RENEW}", code="certificate-out-of-date")
    certs.check_party(own, certificate, party)
    return Credentials(b"".join(map(certificate_pem, issuers)), certificate_pem(own), certs.key_pem(private))


def split_address(address: str) -> tuple[str, int]:
    """Split an address into host and port.

    >>> split_address("rentals.example.org:7411"), split_address("[::1]:0")
    (('rentals.example.org', 7411), ('::1', 0))
    """
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > 65535:
        hint = "write host:port, as in rentals.example.org:7411"
        raise SettingError(f"invalid address {address[:60]!a}; {hint}", code="bad-address")
    return found[1].strip("[]"), int(found[2])


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
    if not is_loopback(address):
        raise SettingError(
            f"plaintext is for tests on one machine, but {address} is open to others; create certificates with "
            "`fedsim certs`, or use an address such as 127.0.0.1:7411",
            code="plaintext-to-others",
        )


def tls_failure_reason(address: str, credentials: Credentials, peer: Party, seconds: float = 3.0) -> str:
    """Return why a TLS handshake with a peer fails; empty if it succeeds."""
    return probe_tls(address, credentials, peer, seconds).reason


@dataclass(frozen=True)
class TlsProbe:
    """Why a handshake fails, empty if it succeeds; ``lasting`` if the peer itself refused: do not retry."""

    reason: str
    lasting: bool = False


def probe_tls(address: str, credentials: Credentials, peer: Party, seconds: float = 3.0) -> TlsProbe:
    """Try a TLS handshake with a peer, without sending a message.

    gRPC reports every failure as "failed to connect to all addresses"; a plain handshake knows the reason. ``seconds``
    limits each step; a server that accepts us silently takes that long.
    """
    call, context = _TlsAttempt(address, peer, seconds), _client_context(credentials)
    try:
        plain = call.connect()
    except (OSError, UnicodeError) as error:
        return TlsProbe(_connect_failure(call, error))
    try:
        with call.greet(plain, context) as channel:
            return _read_verdict(call, credentials, channel)
    except ssl.SSLCertVerificationError as error:
        return TlsProbe(_untrusted_reason(call, credentials, error), lasting=True)
    except OSError as error:
        reason = _reason(error)
        return TlsProbe(_handshake_failure(call, error), lasting=reason in _HANDSHAKE_FAILURES or bool(_alert(reason)))


@dataclass(frozen=True)
class _TlsAttempt:
    """One connection attempt."""

    address: str
    peer: Party
    seconds: float

    def connect(self) -> socket.socket:
        return socket.create_connection(split_address(self.address), timeout=self.seconds)

    @contextmanager
    def greet(self, plain: socket.socket, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
        name = certs.server_name(self.peer)
        # An explicit handshake: wrap_socket silently skips it if the peer has hung up.
        with plain, context.wrap_socket(plain, server_hostname=name, do_handshake_on_connect=False) as channel:
            channel.do_handshake()
            yield channel


def _client_context(credentials: Credentials) -> ssl.SSLContext:
    """Return the TLS settings of our client; ``ssl`` reads a key only from a file, so a temporary one is written."""
    context = _tls13_context()
    try:
        context.load_verify_locations(cadata=credentials.authority.decode("ascii", "ignore"))
        with TemporaryDirectory(prefix="fedsim-") as folder:  # readable by this user only
            both = Path(folder) / "own.pem"
            both.touch(mode=0o600)
            both.write_bytes(credentials.certificate + b"\n" + credentials.key)
            context.load_cert_chain(both, password="")  # a locked key is an error, not a prompt
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "unreadable"
        fault = f"the certificate and its key cannot be used for TLS ({reason}); create new ones"
        raise FileError(fault, code="unusable-certificate") from None
    return context


def _tls13_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    return context


def _connect_failure(call: _TlsAttempt, error: Exception) -> str:
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"the host of {call.address} is unknown; check the name and the DNS of this machine"
    if isinstance(error, ConnectionRefusedError):
        return f"no program listens at {call.address}; start {call.peer} there, or check host and port"
    if isinstance(error, TimeoutError):
        return f"{call.address} did not answer within {call.seconds:g} s; check host, port and firewalls"
    if isinstance(error, ConnectionResetError):
        return _handshake_failure(call, error)
    reason = getattr(error, "strerror", None) or "no reason given"
    return f"{call.address} cannot be reached ({reason}); check host, port and network"


def _handshake_failure(call: _TlsAttempt, error: OSError) -> str:
    if isinstance(error, TimeoutError):
        silent = f"did not answer the TLS handshake within {call.seconds:g} s"
        return f"{call.address} {silent}; another service listens there, or {call.peer} hangs"
    reason = _reason(error)
    if template := _HANDSHAKE_FAILURES.get(reason):
        return f"{call.address} {template.format(peer=call.peer)}"
    alert = _alert(reason)
    outcome = f"refused the TLS handshake ({alert})" if alert else "closed the connection during the TLS handshake"
    return f"{call.address} {outcome}; another service listens there, or a proxy in front of {call.peer}"


def _read_verdict(call: _TlsAttempt, credentials: Credentials, channel: ssl.SSLSocket) -> TlsProbe:
    """Read whether the server accepts our certificate: in TLS 1.3 that arrives after the handshake."""
    if channel.selected_alpn_protocol() != "h2":
        return TlsProbe(f"{call.address} {_NO_HTTP2}", lasting=True)
    try:
        said = channel.recv(1)
    except TimeoutError:
        return TlsProbe("")
    except OSError as error:
        return _refusal(call, credentials, _reason(error))
    return TlsProbe("") if said else _refusal(call, credentials, "")


def _refusal(call: _TlsAttempt, credentials: Credentials, reason: str) -> TlsProbe:
    """Explain a refusal; gRPC servers close the connection silently, and then our certificate may explain it.

    If it does not, the peer may just have been killed.
    """
    if known := _REFUSALS.get(reason) or _own_certificate_fault(credentials):
        return TlsProbe(f"{call.address} refuses our certificate: {known}", lasting=True)
    alert = _alert(reason)
    return TlsProbe(
        f"{call.address} closed the connection ({alert or 'no reason given'}) after it received our certificate; "
        f"compare ca.pem and the clocks of both sides, and read the log of {call.peer}",
        lasting=bool(alert),
    )


def _own_certificate_fault(credentials: Credentials) -> str:
    own = x509.load_pem_x509_certificate(credentials.certificate)
    if fault := date_fault(own, datetime.now(UTC)):
        return f"it {fault}; {_RENEW}"
    if not any(issued_by(own, each) for each in x509.load_pem_x509_certificates(credentials.authority)):
        return f"it is of another authority; {_ONE_FOLDER}"
    return ""


def _untrusted_reason(call: _TlsAttempt, credentials: Credentials, error: ssl.SSLCertVerificationError) -> str:
    """Explain why a server's certificate is not trusted, from the certificate that it shows without verification."""
    explain, context, seen = _DISTRUST.get(error.verify_code), _tls13_context(), None
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError, *certs.PARSE_ERRORS), call.greet(call.connect(), context) as channel:
        seen = certs.decode_fully(x509.load_der_x509_certificate(channel.getpeercert(binary_form=True) or b""))
    if seen is None or explain is None:
        return (
            f"the certificate at {call.address} cannot be trusted ({error.verify_message}); {call.peer} needs one made "
            "by `fedsim certs` with our authority"
        )
    return explain(call, credentials, seen)


def _other_authority(call: _TlsAttempt, credentials: Credentials, seen: x509.Certificate) -> str:
    ours = x509.load_pem_x509_certificate(credentials.authority)
    origin = "is self-signed" if seen.issuer == seen.subject else f"comes from another authority, {_name(seen.issuer)}"
    return f"the certificate at {call.address} {origin}, and ours is {_name(ours.subject)}; {_ONE_FOLDER}"


def _other_party(call: _TlsAttempt, _: Credentials, seen: x509.Certificate) -> str:
    try:
        owner = f"belongs to {certs.certificate_party(certificate_pem(seen))}"
    except FileError:
        owner = "names no party"
    return f"the certificate at {call.address} {owner} instead of {call.peer}; check the address, and who runs there"


def _out_of_date(call: _TlsAttempt, credentials: Credentials, seen: x509.Certificate) -> str:
    now = datetime.now(UTC)
    if fault := date_fault(seen, now):
        return f"the certificate of {call.peer} at {call.address} {fault}; {_RENEW}"
    ours = (date_fault(each, now) for each in x509.load_pem_x509_certificates(credentials.authority))
    return f"our authority {next(filter(None, ours), 'is out of date')}; {certs.NEW_AUTHORITY_HINT}"


def _name(name: x509.Name) -> str:
    """Return a name from the wire, safe to print."""
    return ascii(name.rfc4514_string()[:60])


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


_RENEW = "renew it with `fedsim certs --renew`, or correct the clock"
_ONE_FOLDER = "all parties of a job need certificates from the same `fedsim certs` folder"
_NO_HTTP2 = "speaks TLS but not HTTP/2; another service listens there, or a proxy without gRPC support"
_NO_TLS = "does not speak TLS; another service listens there, or {peer} runs with --insecure"
_OLD_TLS = "only supports TLS versions before 1.3; update the software there, or the proxy in front of it"
_HANDSHAKE_FAILURES = {
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "PACKET_LENGTH_TOO_LONG": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
    "UNSUPPORTED_PROTOCOL": _OLD_TLS,
    "TLSV1_ALERT_PROTOCOL_VERSION": _OLD_TLS,
    "TLSV1_ALERT_NO_APPLICATION_PROTOCOL": _NO_HTTP2,
}
_REFUSALS = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server requires one and cannot use it; create a new one",
    "TLSV1_ALERT_UNKNOWN_CA": f"the server trusts another authority; {_ONE_FOLDER}",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": f"it has expired by the clock there; {_RENEW}",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it is not valid there, perhaps not yet; compare the clocks of both sides",
}
# OpenSSL's X509_V_ERR numbers; which one means "another authority" depends on what is in the chain.
_DISTRUST: Mapping[int, Callable[[_TlsAttempt, Credentials, x509.Certificate], str]] = {
    **dict.fromkeys((2, 7, 18, 19, 20, 21), _other_authority),
    **dict.fromkeys((9, 10), _out_of_date),
    62: _other_party,
}
