"""Whatever is wrong with a connection has its own sentence, and no sentence shows a key."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from error_fixtures import raises
from fedsim.errors import FileError
from fedsim.protocol.certificates import certificate_pem, key_pem, server_name
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.tls import Credentials
from fedsim_ops.authority import Authority, CertificateKeyPair
from fedsim_ops.tls_probe import TlsProbe, probe_tls
from session_fixtures import PATIENCE

DAY = timedelta(days=1)
NOW = datetime.now(UTC)
PAST, FUTURE = NOW - 30 * DAY, NOW + 30 * DAY
OURS, FOREIGN = Authority.create(NOW - 100 * DAY), Authority.create(NOW - 100 * DAY)
CITY, RENTALS, SCHOOLS = Party(Role.PRIMARY, "city"), Party(Role.SECONDARY, "rentals"), Party(Role.SECONDARY, "schools")
COORDINATOR = Party(Role.COORDINATOR, "rentals")
Talk = Callable[[socket.socket], None]


def trusting(pair: CertificateKeyPair, authority: Authority = OURS) -> Credentials:
    return Credentials(authority.pair.certificate, pair.certificate, pair.key)


def own_signature(party: Party, key: ec.EllipticCurvePrivateKey, signer: Authority | None = None) -> CertificateKeyPair:
    """A certificate that signs itself, or one for a key of any kind."""
    name = x509.Name.from_rfc4514_string(f"CN={party.name}")
    issuer, by = (signer.certificate.subject, signer.key) if signer else (name, key)
    builder = x509.CertificateBuilder(issuer, name, key.public_key(), 7, PAST, FUTURE).add_extension(
        x509.SubjectAlternativeName([x509.DNSName(server_name(party))]), critical=False
    )
    return CertificateKeyPair(certificate_pem(builder.sign(by, SHA256())), key_pem(key))


CLIENT = trusting(OURS.issue(CITY, NOW))
SERVER = trusting(OURS.issue(RENTALS, NOW))


# --- servers to call ---------------------------------------------------------------------------------------------


@contextmanager
def served(talk: Talk) -> Iterator[str]:
    """An address on this machine where callers are talked to, one after the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=answer, args=(listener, talk))
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread from accept
            thread.join()


def answer(listener: socket.socket, talk: Talk) -> None:
    with suppress(OSError):
        while True:
            caller, _ = listener.accept()
            caller.settimeout(PATIENCE)
            with caller, suppress(OSError):
                talk(caller)


def context_of(credentials: Credentials, verify: ssl.VerifyMode = ssl.CERT_REQUIRED) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = verify
    context.load_verify_locations(cadata=credentials.authority.decode())
    context.set_alpn_protocols(["h2"])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "own.pem"
        path.write_bytes(credentials.certificate + credentials.key)
        context.load_cert_chain(path)
    return context


def greeting(context: ssl.SSLContext, words: bytes = b"!") -> Talk:
    """Check who calls, greet and wait for the end."""

    def talk(caller: socket.socket) -> None:
        with context.wrap_socket(caller, server_side=True) as channel:
            channel.sendall(words)
            channel.recv(1)

    return talk


def secure(credentials: Credentials) -> Talk:
    return greeting(context_of(credentials))


def verdict(talk: Talk, client: Credentials = CLIENT, peer: Party = RENTALS, seconds: float = PATIENCE) -> TlsProbe:
    with served(talk) as address:
        probe = probe_tls(address, client, peer, seconds)
    assert "PRIVATE" not in probe.reason
    assert "\n" not in probe.reason
    assert bool(probe.reason) == bool(probe.code)
    assert address in probe.reason or probe.code in ("", "authority-out-of-date")
    return probe


# --- the handshake works -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verify", [ssl.CERT_REQUIRED, ssl.CERT_OPTIONAL, ssl.CERT_NONE])
def test_a_good_server_is_found_good_whether_or_not_it_asks_for_our_certificate(verify: ssl.VerifyMode) -> None:
    assert verdict(greeting(context_of(SERVER, verify))).code == ""


def test_a_server_that_accepts_us_in_silence_is_good() -> None:
    assert verdict(greeting(context_of(SERVER), b""), seconds=0.3).code == ""


def test_an_authority_file_may_hold_the_old_and_the_new_one() -> None:
    both = FOREIGN.pair.certificate + OURS.pair.certificate
    assert verdict(secure(SERVER), Credentials(both, CLIENT.certificate, CLIENT.key)).code == ""


def test_the_key_is_gone_from_the_disk_after_a_diagnosis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert verdict(lambda caller: None).code
    assert list(tmp_path.iterdir()) == []


# --- the server's certificate ------------------------------------------------------------------------------------


def test_a_server_of_another_authority_is_named_with_both_authorities() -> None:
    probe = verdict(secure(trusting(FOREIGN.issue(RENTALS, NOW), FOREIGN)))
    assert probe.code == "other-authority"
    assert OURS.certificate.subject.rfc4514_string() in probe.reason
    assert FOREIGN.certificate.subject.rfc4514_string() in probe.reason


def test_a_self_signed_server_is_said_to_be_one() -> None:
    pair = own_signature(RENTALS, ec.generate_private_key(ec.SECP256R1()))
    assert verdict(secure(trusting(pair))).code == "self-signed"


def test_an_expired_server_is_named_with_its_date_and_the_clock() -> None:
    probe = verdict(secure(trusting(OURS.issue(RENTALS, PAST, days=1))))
    assert probe.code == "certificate-out-of-date"
    assert all(part in probe.reason for part in (str(RENTALS), f"{PAST + DAY:%Y-%m-%d}", f"{datetime.now(UTC):%Y-%m-}"))


def test_a_server_not_yet_valid_is_named_with_its_date_and_the_clock() -> None:
    probe = verdict(secure(trusting(OURS.issue(RENTALS, FUTURE))))
    assert probe.code == "certificate-out-of-date"
    assert f"{FUTURE - timedelta(minutes=5):%Y-%m-%d}" in probe.reason


def test_an_authority_of_ours_that_expired_is_blamed_and_not_the_server() -> None:
    old = Authority.create(PAST, days=20)
    key = ec.generate_private_key(ec.SECP256R1())
    probe = verdict(secure(trusting(own_signature(RENTALS, key, old), old)), trusting(old.issue(CITY, PAST, 1), old))
    assert probe.code == "authority-out-of-date"
    assert f"{PAST + 20 * DAY:%Y-%m-%d}" in probe.reason


@pytest.mark.parametrize("actual", [SCHOOLS, COORDINATOR, CITY], ids=str)
def test_a_server_of_another_role_or_name_is_named(actual: Party) -> None:
    probe = verdict(secure(trusting(OURS.issue(actual, NOW))))
    assert probe.code == "other-party"
    assert str(actual) in probe.reason


def test_a_certificate_of_ours_that_names_no_party_is_refused() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    assert verdict(secure(trusting(own_signature(SCHOOLS, key, OURS)))).code == "other-party"


def test_a_name_from_the_wire_cannot_write_on_the_terminal() -> None:
    evil = Party(Role.SECONDARY, "rentals")
    object.__setattr__(evil, "name", "\x1b[31mred")
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = Authority(x509.load_pem_x509_certificate(own_signature(evil, key).certificate), key)
    probe = verdict(secure(trusting(own_signature(RENTALS, ec.generate_private_key(ec.SECP256R1()), issuer))))
    assert probe.code == "other-authority"
    assert probe.reason.isprintable()


# --- our certificate, as a server with OpenSSL sees it -----------------------------------------------------------


def test_our_certificate_of_an_authority_unknown_there_is_refused() -> None:
    assert verdict(secure(SERVER), trusting(FOREIGN.issue(CITY, NOW))).code == "authority-not-trusted"


def test_our_expired_certificate_is_refused() -> None:
    probe = verdict(secure(SERVER), trusting(OURS.issue(CITY, PAST, days=1)))
    assert probe.code == "own-certificate-out-of-date"


def test_our_certificate_that_is_not_valid_yet_is_refused() -> None:
    assert verdict(secure(SERVER), trusting(OURS.issue(CITY, FUTURE))).code == "own-certificate-invalid"


def test_a_server_that_gets_no_certificate_it_can_use_says_that_it_wants_one() -> None:
    bitcoin = ec.generate_private_key(ec.SECP256K1())  # a curve that TLS 1.3 cannot use: nothing is sent
    assert verdict(secure(SERVER), trusting(own_signature(CITY, bitcoin, OURS))).code == "certificate-required"


def test_a_server_that_hangs_up_after_the_handshake_is_said_to_have_seen_our_certificate() -> None:
    probe = verdict(lambda caller: context_of(SERVER).wrap_socket(caller, server_side=True).close())
    assert probe.code == "closed-after-certificate"
    assert str(RENTALS) in probe.reason


# --- our certificate, as a server with gRPC sees it: it hangs up without a word ----------------------------------


def grpc_verdict(client: Credentials, authority: Authority = OURS) -> TlsProbe:
    server = grpc.server(ThreadPoolExecutor(1))
    demands = grpc.ssl_server_credentials([(SERVER.key, SERVER.certificate)], authority.pair.certificate, True)
    port = server.add_secure_port("127.0.0.1:0", demands)
    server.start()
    try:
        return probe_tls(f"127.0.0.1:{port}", client, RENTALS, PATIENCE)
    finally:
        server.stop(None).wait()


def test_a_grpc_server_is_found_good() -> None:
    assert grpc_verdict(CLIENT).code == ""


@pytest.mark.parametrize(
    ("client", "code"),
    [
        (trusting(FOREIGN.issue(CITY, NOW)), "own-certificate-of-other-authority"),
        (trusting(OURS.issue(CITY, PAST, days=1)), "own-certificate-out-of-date"),
        (trusting(OURS.issue(CITY, FUTURE)), "own-certificate-out-of-date"),
    ],
    ids=["another authority", "expired", "not yet valid"],
)
def test_what_a_grpc_server_does_not_say_is_found_in_our_own_certificate(client: Credentials, code: str) -> None:
    assert grpc_verdict(client).code == code


def test_a_grpc_server_of_ours_that_trusts_others_only_is_to_be_looked_at() -> None:
    assert grpc_verdict(CLIENT, FOREIGN).code == "closed-after-certificate"


# --- not a server of ours ----------------------------------------------------------------------------------------


def test_a_server_that_knows_only_tls_1_2_is_too_old() -> None:
    context = context_of(SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert verdict(greeting(context)).code == "old-tls"


def test_a_web_server_with_the_right_certificate_is_no_grpc_server() -> None:
    context = context_of(SERVER)
    context.set_alpn_protocols(["http/1.1"])
    assert verdict(greeting(context)).code == "no-http2"


@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", bytes(64)])
def test_a_server_without_tls_is_said_to_have_none(words: bytes) -> None:
    def talk(caller: socket.socket) -> None:
        caller.recv(4096)
        caller.sendall(words)
        caller.recv(1)

    assert verdict(talk).code == "no-tls"


def test_a_server_that_never_answers_a_greeting_is_given_up() -> None:
    def talk(caller: socket.socket) -> None:
        while caller.recv(4096):
            pass

    assert verdict(talk, seconds=0.2).code == "handshake-timeout"


def hang_up(caller: socket.socket) -> None:
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no farewell


def read_and_hang_up(caller: socket.socket) -> None:
    caller.recv(4096)


@pytest.mark.parametrize("talk", [hang_up, read_and_hang_up])
def test_a_server_that_hangs_up_during_the_greeting_is_another_service_or_a_proxy(talk: Talk) -> None:
    assert verdict(talk).code == "handshake-closed"


def test_a_proxy_that_knows_no_such_name_is_quoted() -> None:
    context = context_of(SERVER)
    context.sni_callback = lambda *_: ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
    probe = verdict(greeting(context))
    assert probe.code == "handshake-refused"
    assert "unrecognized name" in probe.reason  # the name of the alert


def test_where_nobody_listens_somebody_should_be_started() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # taken, so that nobody else listens there
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        probe = probe_tls(address, CLIENT, RENTALS)
    assert probe.code == "not-listening"
    assert address in probe.reason


def test_a_host_that_does_not_answer_is_given_up() -> None:
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as listener,
        socket.socket() as first,
        socket.socket() as second,
    ):
        for waiting in (first, second):  # they fill the queue: the system drops who comes next
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        probe = probe_tls(f"127.0.0.1:{listener.getsockname()[1]}", CLIENT, RENTALS, 0.2)
    assert probe.code == "no-answer"


@pytest.mark.parametrize("host", ["no..host", "nobody.invalid"])
def test_an_unknown_host_is_said_to_be_unknown(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str, *_: object) -> None:
        name.encode("idna")
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # a real one may take its time
    assert probe_tls(f"{host}:50051", CLIENT, RENTALS).code == "unknown-host"


def test_credentials_that_do_not_fit_together_are_an_error_of_ours() -> None:
    with raises(FileError, "unusable-certificate"):
        probe_tls("127.0.0.1:1", Credentials(CLIENT.authority, CLIENT.certificate, SERVER.key), RENTALS)
