"""TLS credentials of a party, where plaintext is allowed, and why a TLS handshake fails."""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509

from fedsim.errors import FileError, SettingError
from fedsim.protocol.certificates import (
    NEW_AUTHORITY_HINT,
    PARSE_ERRORS,
    certificate_party,
    certificate_pem,
    check_party,
    date_fault,
    decode_fully,
    issued_by,
    key_matches,
    key_pem,
    read_certificates,
    read_key,
    server_name,
)
from fedsim.protocol.messages import Party

RENEWAL_DAYS = 30  # with fewer days left, a person should be told to renew
_ALERT = re.compile(r"(?:SSLV3|TLSV1|TLSV13)_(?:ALERT_)?(\w+)")
_ADDRESS = re.compile(r"(\[[^\[\]]+\]|[^:\[\]]+):([0-9]{1,5})")


@dataclass(frozen=True, repr=False)
class Credentials:
    """What a party shows to its peers and how it checks theirs, as PEM; no ``repr`` or message ever shows the key.

    >>> Credentials(authority=b"", certificate=b"", key=b"")
    Credentials(secret)
    """

    authority: bytes
    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Credentials(secret)"

    def days_left(self, now: datetime) -> int:
        """Whole days until the certificate expires, negative afterwards; below ``SOON_DAYS`` tell a person."""
        return (x509.load_pem_x509_certificate(self.certificate).not_valid_after_utc - now).days


def read_credentials(
    authority: Path, certificate: Path, key: Path, party: Party, now: datetime | None = None
) -> Credentials:
    """The three files of ``party``, if its peers will accept them ``now``."""
    issuers, own, private = read_certificates(authority), read_certificates(certificate)[0], read_key(key)
    if not key_matches(private, own):
        raise FileError(f"{key} is not the key of {certificate}; give the two files that `fedsim certs` wrote together")
    issuer = next((each for each in issuers if issued_by(own, each)), None)
    if issuer is None:
        raise FileError(f"{certificate} was not issued by the authority in {authority}; {_ONE_FOLDER}")
    moment = now or datetime.now(UTC)
    if fault := date_fault(issuer, moment):
        raise FileError(f"the authority {authority} {fault}; {NEW_AUTHORITY_HINT}")
    if fault := date_fault(own, moment):
        raise FileError(f"{certificate} {fault}; {_RENEW}")
    check_party(own, certificate, party)
    return Credentials(b"".join(map(certificate_pem, issuers)), certificate_pem(own), key_pem(private))


def split_address(address: str) -> tuple[str, int]:
    """Host and port.

    >>> split_address("rentals.example.org:7411"), split_address("[::1]:0")
    (('rentals.example.org', 7411), ('::1', 0))
    """
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > 65535:
        raise SettingError(f"address {address[:60]!a}; write host:port, as in rentals.example.org:7411")
    return found[1].strip("[]"), int(found[2])


def is_loopback(address: str) -> bool:
    """Whether nobody outside this machine can be meant.

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
    """Refuse to speak without TLS where others could listen."""
    if not is_loopback(address):
        raise SettingError(
            f"plaintext is for tests on one machine, and {address} is open to others; "
            "use certificates made by `fedsim certs`, or an address such as 127.0.0.1:7411"
        )


def tls_failure_reason(address: str, credentials: Credentials, peer: Party, seconds: float = 3.0) -> str:
    """One sentence on why ``peer`` cannot be spoken to at ``address``; empty where a handshake works."""
    return probe_tls(address, credentials, peer, seconds).words


@dataclass(frozen=True)
class TlsProbe:
    """Why a peer cannot be spoken to; ``lasting`` where it said so itself: silence may pass."""

    words: str
    lasting: bool = False


def probe_tls(address: str, credentials: Credentials, peer: Party, seconds: float = 3.0) -> TlsProbe:
    """What a handshake with a peer comes to; no words where it works.

    gRPC answers every fault with "failed to connect to all addresses"; a plain handshake knows which one it is. No
    message is sent. ``seconds`` is the patience with each step: a server that accepts us in silence takes as long.
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
        return TlsProbe(_handshake_failure(call, error), lasting=reason in _GREETINGS or bool(_alert(reason)))


@dataclass(frozen=True)
class _TlsAttempt:
    """One attempt to speak to a peer."""

    address: str
    peer: Party
    seconds: float

    def connect(self) -> socket.socket:
        return socket.create_connection(split_address(self.address), timeout=self.seconds)

    @contextmanager
    def greet(self, plain: socket.socket, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
        name = server_name(self.peer)
        # The handshake is asked for by itself: wrap_socket leaves it out without a word where the peer has hung up.
        with plain, context.wrap_socket(plain, server_hostname=name, do_handshake_on_connect=False) as channel:
            channel.do_handshake()
            yield channel


def _client_context(credentials: Credentials) -> ssl.SSLContext:
    """What our client shows and demands; ``ssl`` takes a key only from a file, so one lives for a moment."""
    context = _tls13_context()
    try:
        context.load_verify_locations(cadata=credentials.authority.decode("ascii", "ignore"))
        with TemporaryDirectory(prefix="fedsim-") as folder:  # closed to everybody else
            both = Path(folder) / "own.pem"
            both.touch(mode=0o600)
            both.write_bytes(credentials.certificate + b"\n" + credentials.key)
            context.load_cert_chain(both, password="")  # a locked key is an error, no question at the terminal
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "unreadable"
        raise FileError(f"the certificate and its key are of no use for TLS ({reason}); make new ones") from None
    return context


def _tls13_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    return context


def _connect_failure(call: _TlsAttempt, error: Exception) -> str:
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"the host of {call.address} is unknown; check the name, and the name service of this machine"
    if isinstance(error, ConnectionRefusedError):
        return f"nobody listens at {call.address}; start {call.peer} there, or check host and port"
    if isinstance(error, TimeoutError):
        return f"{call.address} did not answer within {call.seconds:g} s; check host, port and firewalls"
    if isinstance(error, ConnectionResetError):
        return _handshake_failure(call, error)
    reason = getattr(error, "strerror", None) or "no reason given"
    return f"{call.address} cannot be reached ({reason}); check host, port and network"


def _handshake_failure(call: _TlsAttempt, error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return (
            f"{call.address} did not answer a TLS greeting within {call.seconds:g} s; "
            f"another service listens there, or {call.peer} hangs"
        )
    reason = _reason(error)
    if tell := _GREETINGS.get(reason):
        return f"{call.address} {tell.format(peer=call.peer)}"
    alert = _alert(reason)
    said = f"refused our TLS greeting ({alert})" if alert else "hung up during the TLS greeting"
    return f"{call.address} {said}; another service listens there, or a proxy stands before {call.peer}"


def _read_verdict(call: _TlsAttempt, credentials: Credentials, channel: ssl.SSLSocket) -> TlsProbe:
    """What the server says to our certificate: in TLS 1.3 that comes after the handshake, with the first read."""
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
    """Why we are not welcome; gRPC's servers hang up without a word, and then our own certificate may tell.

    Where it does not, the peer may just have been killed.
    """
    if known := _REFUSALS.get(reason) or _own_certificate_fault(credentials):
        return TlsProbe(f"{call.address} refuses our certificate: {known}", lasting=True)
    alert = _alert(reason)
    return TlsProbe(
        f"{call.address} hung up ({alert or 'no reason given'}) when it had seen our certificate; "
        f"compare ca.pem and the clock at both ends, and read the log of {call.peer}",
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
    seen, tell = _peer_certificate(call), _DISTRUST.get(error.verify_code)
    if seen is None or tell is None:
        return (
            f"the certificate at {call.address} cannot be trusted ({error.verify_message}); "
            f"{call.peer} needs one made by `fedsim certs` with our authority"
        )
    return tell(call, credentials, seen)


def _peer_certificate(call: _TlsAttempt) -> x509.Certificate | None:
    """What the server shows, to tell a person whose it is; nothing is believed, and nothing of ours is shown."""
    context = _tls13_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with call.greet(call.connect(), context) as channel:
            return decode_fully(x509.load_der_x509_certificate(channel.getpeercert(binary_form=True) or b""))
    except (OSError, *PARSE_ERRORS):
        return None


def _other_authority(call: _TlsAttempt, credentials: Credentials, seen: x509.Certificate) -> str:
    ours = x509.load_pem_x509_certificate(credentials.authority)
    origin = "is self-signed" if seen.issuer == seen.subject else f"comes from another authority, {_name(seen.issuer)}"
    return f"the certificate at {call.address} {origin}, and ours is {_name(ours.subject)}; {_ONE_FOLDER}"


def _other_party(call: _TlsAttempt, _: Credentials, seen: x509.Certificate) -> str:
    try:
        whose = f"but of {certificate_party(certificate_pem(seen))}"
    except FileError:
        whose = "and names no party"
    return (
        f"the certificate at {call.address} is not that of {call.peer} {whose}; check the address, and who runs there"
    )


def _out_of_date(call: _TlsAttempt, credentials: Credentials, seen: x509.Certificate) -> str:
    now = datetime.now(UTC)
    if fault := date_fault(seen, now):
        return f"the certificate of {call.peer} at {call.address} {fault}; {_RENEW}"
    ours = (date_fault(each, now) for each in x509.load_pem_x509_certificates(credentials.authority))
    return f"our authority {next(filter(None, ours), 'is out of date')}; {NEW_AUTHORITY_HINT}"


def _name(name: x509.Name) -> str:
    """A name from the wire, harmless on a terminal."""
    return ascii(name.rfc4514_string()[:60])


def _reason(error: OSError) -> str:
    """OpenSSL's word for a fault; empty for faults of the network."""
    return str(getattr(error, "reason", None) or "")


def _alert(reason: str) -> str:
    """What the other side said by an alert, in words; empty where it said nothing.

    >>> _alert("TLSV1_ALERT_ACCESS_DENIED"), _alert("TLSV1_UNRECOGNIZED_NAME"), _alert("UNEXPECTED_EOF_WHILE_READING")
    ('access denied', 'unrecognized name', '')
    """
    found = _ALERT.fullmatch(reason)
    return found[1].replace("_", " ").lower() if found else ""


_RENEW = "renew it with `fedsim certs --renew`, or set the clock if it is wrong"
_ONE_FOLDER = "all parties of a job need files of one folder of `fedsim certs`"
_NO_HTTP2 = "speaks TLS but not HTTP/2; another service listens there, or a proxy that cannot pass gRPC"
_NO_TLS = "does not speak TLS; another service listens there, or {peer} runs with --insecure"
_OLD_TLS = "speaks only TLS older than 1.3; update the software there, or what stands before it"
_GREETINGS = {
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "PACKET_LENGTH_TOO_LONG": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
    "UNSUPPORTED_PROTOCOL": _OLD_TLS,
    "TLSV1_ALERT_PROTOCOL_VERSION": _OLD_TLS,
    "TLSV1_ALERT_NO_APPLICATION_PROTOCOL": _NO_HTTP2,
}
_REFUSALS = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server asks for one and cannot use it; make a new one",
    "TLSV1_ALERT_UNKNOWN_CA": f"the server knows another authority; {_ONE_FOLDER}",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": f"it is expired by the clock there; {_RENEW}",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it is not valid there, perhaps not yet; compare the clocks of both ends",
}
# OpenSSL's X509_V_ERR numbers; which one means "another authority" depends on what is in the chain.
_DISTRUST: Mapping[int, Callable[[_TlsAttempt, Credentials, x509.Certificate], str]] = {
    **dict.fromkeys((2, 7, 18, 19, 20, 21), _other_authority),
    **dict.fromkeys((9, 10), _out_of_date),
    62: _other_party,
}
