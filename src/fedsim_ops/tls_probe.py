"""Explain why a TLS handshake with a peer fails, which gRPC does not say."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509

from fedsim.errors import FileError
from fedsim.protocol import certificates as certs
from fedsim.protocol.addresses import open_connection
from fedsim.protocol.messages import Party
from fedsim.protocol.tls import (
    ONE_FOLDER_HINT,
    OUT_OF_DESCRIPTORS,
    RENEW_HINT,
    Credentials,
    client_context,
    tls13_context,
    tls_channel,
)
from fedsim.protocol.transport import ConnectionLost

_ALERT = re.compile(r"(?:SSLV3|TLSV1|TLSV13)_(?:ALERT_)?(\w+)")
_NO_DESCRIPTOR = "this process has no free file descriptor for a connection; raise the limit (ulimit -n, LimitNOFILE)"
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
    "TLSV1_ALERT_UNKNOWN_CA": ("authority-not-trusted", f"the server trusts another authority; {ONE_FOLDER_HINT}"),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": (
        "own-certificate-out-of-date",
        f"it has expired by the clock there; {RENEW_HINT}",
    ),
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
        if getattr(error, "errno", None) in OUT_OF_DESCRIPTORS:
            return TlsProbe("out-of-descriptors", _NO_DESCRIPTOR)
        code, template = next(failure for kind, *failure in _CONNECT_FAILURES if isinstance(error, kind))
        return TlsProbe(code, template.format(self, reason=getattr(error, "strerror", None) or "no reason given"))

    def greet(self, plain: socket.socket, context: ssl.SSLContext) -> AbstractContextManager[ssl.SSLSocket]:
        return tls_channel(plain, context, self.peer)

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
            known = "own-certificate-out-of-date", f"it {fault}; {RENEW_HINT}"
        elif known is None and not any(certs.issued_by(own, each) for each in self.authorities):
            known = "own-certificate-of-other-authority", f"it was issued by another authority; {ONE_FOLDER_HINT}"
        if known:
            return TlsProbe(known[0], f"{self.address} refuses our certificate: {known[1]}", lasting=True)
        alert = _alert(reason)
        fault = f"closed the connection ({alert or 'no reason given'}) after it received our certificate"
        hint = f"compare ca.pem and the clocks of both sides, and read the log of {self.peer}"
        return TlsProbe("closed-after-certificate", f"{self.address} {fault}; {hint}", lasting=bool(alert))

    def untrusted(self, error: ssl.SSLCertVerificationError) -> TlsProbe:
        """Explain why a certificate is not trusted, from the one that the server shows without verification."""
        context, seen, now = tls13_context(), None, datetime.now(UTC)
        context.set_alpn_protocols(["h2"])
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with suppress(OSError, *certs.PARSE_ERRORS), self.greet(self.connect(), context) as channel:
            seen = certs.decode_fully(x509.load_der_x509_certificate(channel.getpeercert(binary_form=True) or b""))
        number, found = error.verify_code, f"the certificate at {self.address}"
        if seen and number in _OTHER_AUTHORITY:
            theirs, ours = (ascii(name.rfc4514_string()[:60]) for name in (seen.issuer, self.authorities[0].subject))
            origin = "is self-signed" if seen.issuer == seen.subject else f"comes from another authority, {theirs}"
            code = "self-signed" if seen.issuer == seen.subject else "other-authority"
            return TlsProbe(code, f"{found} {origin}, and ours is {ours}; {ONE_FOLDER_HINT}", lasting=True)
        if seen and number in _OUT_OF_DATE:
            if fault := certs.date_fault(seen, now):
                reason = f"the certificate of {self.peer} at {self.address} {fault}; {RENEW_HINT}"
                return TlsProbe("certificate-out-of-date", reason, lasting=True)
            fault = next(filter(None, (certs.date_fault(each, now) for each in self.authorities)), "is out of date")
            reason = f"our authority {fault}; {certs.NEW_AUTHORITY_HINT}"
            return TlsProbe("authority-out-of-date", reason, lasting=True)
        if seen and number == _OTHER_NAME:
            try:
                owner = f"belongs to {certs.named_party(seen)}"
            except FileError:
                owner = "names no party"
            reason = f"{found} {owner} instead of {self.peer}; check the address, and who runs there"
            return TlsProbe("other-party", reason, lasting=True)
        hint = f"{self.peer} needs one made by `fedsim certs` with our authority"
        return TlsProbe("not-trusted", f"{found} cannot be trusted ({error.verify_message}); {hint}", lasting=True)


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
