"""Who may use a relay, what it sees, and what strangers can take from it."""

from __future__ import annotations

import resource
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from error_fixtures import raises
from fedsim.errors import FileError, SettingError
from fedsim.protocol.addresses import RelayAddress, split_address
from fedsim.protocol.grpc_transport import GrpcTransport
from fedsim.protocol.messages import Activations, Save
from fedsim.protocol.tls import Credentials
from fedsim.protocol.transport import ConnectionLost
from fedsim_ops import outbound, relay
from fedsim_ops.authority import Authority, issue_certificates, party_files, revocation_file, revoke_certificates
from fedsim_ops.outbound import OK, ask_relay, open_control, open_data_connection, request_ticket
from fedsim_ops.tls_probe import probe_tls
from relay_fixtures import HUB, relay_in_thread
from session_fixtures import CITY, NOTARY, PATIENCE, RENTALS, frame_of, until
from tls_fixtures import CREDENTIALS, FOREIGN, NOW, OURS, credentials_of, echo


@pytest.fixture
def hub():
    with relay_in_thread() as address:
        yield address


def answers(address, caller=RENTALS, called=CITY):
    """Whether a frame comes back through the relay."""
    line = GrpcTransport(CREDENTIALS[caller]).dial(address, called)
    line.send(frame_of(Save(3)))
    found = line.receive() == frame_of(Save(3))
    line.close()
    return found


# --- who may use it -----------------------------------------------------------------------------------------------


def test_a_stranger_is_refused(hub):
    with pytest.raises(ConnectionLost) as lost:
        request_ticket(RelayAddress.parse(hub), credentials_of(RENTALS, FOREIGN), CITY, PATIENCE)
    assert lost.value.code in ("relay-untrusted", "relay-refused")
    trusting = replace(credentials_of(RENTALS, FOREIGN), relay_authority=OURS.pair.certificate)
    with pytest.raises(ConnectionLost) as lost:
        request_ticket(RelayAddress.parse(hub), trusting, CITY, PATIENCE)
    assert lost.value.code == "relay-refused"


@pytest.mark.parametrize("apart", [True, False])
def test_parties_of_two_authorities_meet_only_while_one_replaces_the_other(apart):
    own, both = credentials_of(HUB), [OURS.certificate, FOREIGN.certificate]
    own = replace(own, authority=own.authority + FOREIGN.pair.certificate)
    foreign = replace(credentials_of(RENTALS, FOREIGN), relay_authority=OURS.pair.certificate)
    with relay_in_thread(relay.Relay(own, [[each] for each in both] if apart else [both])) as hub:
        listener = GrpcTransport(CREDENTIALS[CITY]).listen(hub, echo)
        if apart:
            with pytest.raises(ConnectionLost) as lost:
                request_ticket(RelayAddress.parse(hub), foreign, CITY, PATIENCE)
            assert lost.value.code == "not-registered"
        else:
            assert request_ticket(RelayAddress.parse(hub), foreign, CITY, PATIENCE)
        assert answers(hub)
        listener.close()


def test_a_refused_certificate_is_logged_once_with_its_address(hub, caplog):
    foreign = replace(credentials_of(RENTALS, FOREIGN), relay_authority=OURS.pair.certificate)
    for _ in range(3):
        with pytest.raises(ConnectionLost):
            request_ticket(RelayAddress.parse(hub), foreign, CITY, PATIENCE)
    until(lambda: caplog.records)
    (record,) = [record for record in caplog.records if record.name == "fedsim.relay"]
    assert (record.levelname, record.args[0]) == ("WARNING", "127.0.0.1")


def test_a_socket_path_that_is_too_long_is_named(hub, tmp_path, monkeypatch):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with raises(SettingError, "socket-path-too-long"):
        GrpcTransport(CREDENTIALS[CITY]).listen(hub, echo)
    assert not list(long.iterdir())


def test_a_relay_that_is_gone_is_not_blamed_on_the_other_party():
    with relay_in_thread() as hub, open_control(RelayAddress.parse(hub), CREDENTIALS[CITY], PATIENCE) as control:
        place = RelayAddress.parse(hub)
        ask_relay(control, place, "LISTEN ", OK, CITY)
        ticket = request_ticket(place, CREDENTIALS[RENTALS], CITY, PATIENCE)
    with pytest.raises(ConnectionLost) as lost:
        open_data_connection(place, CREDENTIALS[RENTALS], ticket, PATIENCE)
    assert lost.value.code == "relay-unreachable"


def test_a_name_belongs_to_one_certificate_and_one_process(hub):
    listener = GrpcTransport(CREDENTIALS[CITY]).listen(hub, echo)
    with raises(SettingError, "address-in-use"):
        GrpcTransport(CREDENTIALS[CITY]).listen(hub, echo)
    other = GrpcTransport(CREDENTIALS[CITY]).listen(f"{hub}/second-job", echo)
    assert answers(hub)
    assert answers(f"{hub}/second-job")
    with pytest.raises(ConnectionLost) as lost:  # rentals registers under its own name, whatever it says
        GrpcTransport(CREDENTIALS[RENTALS]).dial(hub, NOTARY)
    assert lost.value.code == "not-registered"
    other.close()
    listener.close()


def test_a_party_that_is_gone_without_a_word_is_replaced(hub, monkeypatch):
    monkeypatch.setattr(relay, "PROBE_SECONDS", 0.1)
    place = RelayAddress.parse(hub)
    with open_control(place, CREDENTIALS[CITY], PATIENCE) as silent:
        ask_relay(silent, place, "LISTEN ", OK, CITY)
        listener = GrpcTransport(CREDENTIALS[CITY]).listen(hub, echo)
        assert answers(hub)
        listener.close()


def test_who_relays_must_have_the_certificate_of_a_relay():
    with (
        relay_in_thread(relay.Relay(credentials_of(NOTARY), [[OURS.certificate]])) as hub,
        pytest.raises(ConnectionLost) as lost,
    ):
        request_ticket(RelayAddress.parse(hub), CREDENTIALS[RENTALS], CITY, PATIENCE)
    assert (lost.value.code, lost.value.lasting) == ("relay-untrusted", True)


def test_a_relay_reads_only_the_certificate_of_a_relay(tmp_path):
    issue_certificates(tmp_path, [HUB, CITY], NOW)
    ca, (certificate, key), (other, _) = tmp_path / "ca.pem", party_files(tmp_path, HUB), party_files(tmp_path, CITY)
    assert isinstance(relay.read_relay([ca], certificate, key), relay.Relay)
    with raises(FileError, "other-party"):
        relay.read_relay([ca], other, key)
    with raises(FileError, "no-authority"):
        relay.read_relay([ca, certificate], certificate, key)
    with raises(FileError, "wrong-key"):
        relay.read_relay([ca], certificate, party_files(tmp_path, CITY)[1])


def test_a_revoked_certificate_is_refused(tmp_path):
    issue_certificates(tmp_path, [HUB, CITY], NOW)
    ca, (certificate, key), own = tmp_path / "ca.pem", party_files(tmp_path, HUB), party_files(tmp_path, CITY)
    city = Credentials(ca.read_bytes(), *(path.read_bytes() for path in own))
    listed = revoke_certificates(tmp_path, [own[0]], NOW)
    with (
        relay_in_thread(relay.read_relay([ca], certificate, key, [listed])) as hub,
        raises(SettingError, "revoked"),
    ):
        GrpcTransport(city).listen(hub, echo)


def tenant(folder, *parties):
    """An authority in a folder, and the credentials of its parties for a relay of authority OURS."""
    issue_certificates(folder, parties, NOW)
    ca = (folder / "ca.pem").read_bytes()
    return [
        replace(
            Credentials(ca, *(path.read_bytes() for path in party_files(folder, party))),
            relay_authority=OURS.pair.certificate,
        )
        for party in parties
    ]


def relay_of(*folders, revoked=()):
    """A relay of an authority of its own that serves the tenants in these folders."""
    (folders[0] / "hub.pem").write_bytes((own := credentials_of(HUB)).certificate)
    key = folders[0] / "hub.key"
    key.touch(mode=0o600)
    key.write_bytes(own.key)
    return relay.read_relay([folder / "ca.pem" for folder in folders], folders[0] / "hub.pem", key, revoked)


def test_every_authority_revokes_its_own_certificates_and_no_others(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    (city, rentals), (other,) = tenant(ours, CITY, RENTALS), tenant(theirs, CITY)
    lists = [revoke_certificates(ours, [party_files(ours, CITY)[0]], NOW), revoke_certificates(theirs, [], NOW)]
    sign_revocation_of(theirs, certificate_serial(rentals))  # the other tenant would like to
    with relay_in_thread(relay_of(ours, theirs, revoked=lists)) as hub:
        with raises(SettingError, "revoked"):
            GrpcTransport(city).listen(hub, echo)
        GrpcTransport(rentals).listen(hub, echo).close()
        GrpcTransport(other).listen(hub, echo).close()


def certificate_serial(credentials):
    return x509.load_pem_x509_certificate(credentials.certificate).serial_number


def sign_revocation_of(folder, serial):
    """Put any serial number on the list of an authority, which `fedsim certs revoke` would refuse."""
    authority, path = Authority.read(folder), revocation_file(folder)
    listed = x509.load_pem_x509_crl(path.read_bytes())
    builder = x509.CertificateRevocationListBuilder(listed.issuer, listed.last_update_utc, listed.next_update_utc)
    entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(NOW).build()
    signed = builder.add_revoked_certificate(entry).sign(authority.key, hashes.SHA256())
    path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def test_an_invalid_list_of_one_authority_closes_the_relay_to_its_own_parties_only(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    (city,), (other,) = tenant(ours, CITY), tenant(theirs, CITY)
    lists = [revoke_certificates(folder, [], NOW) for folder in (ours, theirs)]
    with relay_in_thread(relay_of(ours, theirs, revoked=lists)) as hub:
        lists[0].write_text("cut off")
        GrpcTransport(other).listen(hub, echo).close()
        with pytest.raises(ConnectionLost):
            request_ticket(RelayAddress.parse(hub), city, RENTALS, 2.0)
    with raises(FileError, "bad-revocation-list"):
        relay_of(ours, theirs, revoked=lists)


def test_the_parties_prove_themselves_to_each_other_and_not_only_to_the_relay(hub):
    """A relay that joins the wrong party gains nothing."""
    listener = GrpcTransport(CREDENTIALS[NOTARY]).listen(hub, echo)
    own = CREDENTIALS[RENTALS]
    probe = probe_tls(hub, own, CITY, PATIENCE, lambda *_: outbound.open_connection(hub, own, NOTARY, PATIENCE))
    assert (probe.code, probe.lasting) == ("other-party", True)
    listener.close()


def test_plaintext_does_not_go_through_a_relay(hub):
    with raises(SettingError, "plaintext-to-others"):
        GrpcTransport(None).dial(hub, CITY)


# --- what it sees -------------------------------------------------------------------------------------------------


def test_the_relay_handles_tls_records_and_finds_no_planted_value(monkeypatch):
    streams, lines = {}, []
    passed, read = relay._Pipe.buffer_updated, relay._read_line

    def recorded(pipe, size):
        streams.setdefault(pipe, bytearray()).extend(pipe.get_buffer(-1)[:size])
        passed(pipe, size)

    async def noted(reader):
        lines.append(await read(reader))
        return lines[-1]

    monkeypatch.setattr(relay._Pipe, "buffer_updated", recorded)
    monkeypatch.setattr(relay, "_read_line", noted)
    planted = np.frombuffer(b"Zaphod Beeblebrox, born 1978-03-08; " * 40, np.float32).reshape(-1, 4)
    served = relay.Relay(credentials_of(HUB), [[OURS.certificate]])
    with relay_in_thread(served) as hub:
        listener = GrpcTransport(CREDENTIALS[CITY]).listen(hub, echo)
        line = GrpcTransport(CREDENTIALS[RENTALS]).dial(hub, CITY)
        line.send(frame_of(Activations(0, values=planted)))
        assert b"Zaphod" in line.receive()
        assert {**served.figures(), "bytes_total": 0} == {
            "registered": 1,
            "pairs": 1,
            "pairs_total": 1,
            "bytes_total": 0,
        }
        line.close()
        listener.close()
    assert len(streams) == 2
    assert served.figures()["bytes_total"] == sum(map(len, streams.values()))
    for stream in streams.values():
        assert b"Zaphod" not in stream
        assert set(record_kinds(bytes(stream))) <= {20, 22, 23}  # handshake, and encrypted
    assert [line for line in lines if line not in ("", "PING", "PONG")] == ["LISTEN ", "CALL primary city "]


def record_kinds(stream):
    """The kinds of the TLS records of a stream, which must be whole."""
    while stream:
        kind, version, size = stream[0], stream[1:3], int.from_bytes(stream[3:5])
        assert version in (b"\x03\x01", b"\x03\x03")
        assert len(stream) >= 5 + size
        yield kind
        stream = stream[5 + size :]


# --- what strangers can take --------------------------------------------------------------------------------------


def test_a_thousand_silent_callers_do_not_keep_a_party_away(hub):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        with ExitStack() as stack:
            listener = GrpcTransport(CREDENTIALS[CITY]).listen(hub, echo)
            for _ in range(1000):
                with suppress(OSError):
                    stack.enter_context(
                        socket.create_connection(split_address(hub.removeprefix("relay://")), timeout=5)
                    )
            assert answers(hub)
            listener.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 4096, b"CONNECT x HTTP/1.1\r\n" * 300, b"\x16\x03\x01\xff"]
)
def test_garbage_is_cut_off(hub, first, monkeypatch):
    monkeypatch.setattr(relay, "ADMISSION_SECONDS", 0.3)
    place = split_address(hub.removeprefix("relay://"))
    with socket.create_connection(place, timeout=PATIENCE) as link, suppress(ConnectionError):
        link.sendall(first)
        while link.recv(4096):
            pass


def test_a_ticket_is_valid_once_and_for_seconds(hub, monkeypatch):
    monkeypatch.setattr(relay, "TICKET_SECONDS", 0.2)
    place = RelayAddress.parse(hub)
    with open_control(place, CREDENTIALS[CITY], PATIENCE) as silent:
        ask_relay(silent, place, "LISTEN ", OK, CITY)
        ticket = request_ticket(place, CREDENTIALS[RENTALS], CITY, PATIENCE)
        for ticket_shown in (ticket, ticket, "0" * 64):  # nobody comes; used; never given
            with pytest.raises(ConnectionLost) as lost:
                open_data_connection(place, CREDENTIALS[RENTALS], ticket_shown, PATIENCE)
            assert lost.value.code == "not-joined"


def test_one_party_cannot_take_all_connections(hub):
    place = RelayAddress.parse(hub)
    listener = GrpcTransport(CREDENTIALS[CITY]).listen(hub, echo)
    with ExitStack() as stack:
        for _ in range(relay.MAX_PER_PARTY):
            stack.enter_context(outbound.open_connection(hub, CREDENTIALS[RENTALS], CITY, PATIENCE))
        with pytest.raises(ConnectionLost) as lost:
            request_ticket(place, CREDENTIALS[RENTALS], CITY, PATIENCE)
        assert lost.value.code == "too-many"
        assert answers(hub, caller=NOTARY)
    until(lambda: _is_admitted(place))
    listener.close()


@contextmanager
def crowded_relay(monkeypatch):
    """A relay for two authorities whose places are few, and credentials of parties of the second one."""
    monkeypatch.setattr(relay, "MAX_CONNECTIONS", 64)  # 16 registrations and requests, 16 pairs
    own = replace(credentials_of(HUB), authority=OURS.pair.certificate + FOREIGN.pair.certificate)
    greedy = {
        party: replace(credentials_of(party, FOREIGN), relay_authority=OURS.pair.certificate)
        for party in (CITY, RENTALS, NOTARY)
    }
    with relay_in_thread(relay.Relay(own, [[OURS.certificate], [FOREIGN.certificate]])) as hub:
        yield hub, greedy


def others_get_through(hub):
    """Whether parties of another authority can still register and be called."""
    listener = GrpcTransport(CREDENTIALS[CITY]).listen(hub, echo)
    try:
        return answers(hub)
    finally:
        listener.close()


def test_one_authority_cannot_take_the_registrations_of_another(monkeypatch):
    with crowded_relay(monkeypatch) as (hub, greedy), ExitStack() as stack:
        place, refused = RelayAddress.parse(hub), []
        for number in range(20):
            control = stack.enter_context(open_control(place, greedy[CITY if number % 2 else RENTALS], 2.0))
            try:
                ask_relay(control, place, f"LISTEN l{number}", OK, CITY)
            except ConnectionLost as lost:
                refused.append(lost.code)
        assert set(refused) == {"too-many"}
        assert others_get_through(hub)


def test_one_authority_cannot_take_the_pairs_of_another(monkeypatch):
    with crowded_relay(monkeypatch) as (hub, greedy), ExitStack() as stack:
        place, refused = RelayAddress.parse(hub), []
        control = stack.enter_context(open_control(place, greedy[CITY], 2.0))
        ask_relay(control, place, "LISTEN ", OK, CITY)
        for number in range(20):
            try:
                request_ticket(place, greedy[NOTARY if number % 2 else RENTALS], CITY, 2.0)
            except ConnectionLost as lost:
                refused.append(lost.code)
        assert set(refused) == {"too-many"}
        assert others_get_through(hub)


def test_a_name_with_control_characters_is_refused_and_never_logged(hub, caplog):
    place = RelayAddress.parse(hub)
    for _ in range(3):
        with open_control(place, CREDENTIALS[RENTALS], 2.0) as control, pytest.raises(ConnectionLost) as lost:
            ask_relay(control, place, "CALL primary \x1b]0;fake\x07\x1b[2J\r x", OK, CITY)
        assert lost.value.code == "bad-request"
    assert not [record for record in caplog.records if record.name == "fedsim.relay"]


def _is_admitted(place):
    with suppress(ConnectionLost):
        return bool(request_ticket(place, CREDENTIALS[RENTALS], CITY, PATIENCE))
    return False


@contextmanager
def joined_ends(place):
    """Both ends of a connection through a relay, without parties behind them."""
    with open_control(place, CREDENTIALS[CITY], PATIENCE) as control:
        ask_relay(control, place, "LISTEN ", OK, CITY)
        ticket = request_ticket(place, CREDENTIALS[RENTALS], CITY, PATIENCE)
        own = outbound.receive_line(control).partition(" ")[2]
        with ThreadPoolExecutor() as pool:
            called = pool.submit(open_data_connection, place, CREDENTIALS[CITY], own, PATIENCE)
            with (
                open_data_connection(place, CREDENTIALS[RENTALS], ticket, PATIENCE) as caller,
                called.result() as other,
            ):
                yield caller, other


def test_a_receiver_that_does_not_read_holds_up_its_sender_and_nothing_is_lost(hub):
    sent, most = 0, 64 << 20
    with joined_ends(RelayAddress.parse(hub)) as (sender, receiver):
        sender.settimeout(0.3)
        with suppress(TimeoutError):
            while sent < most:
                sent += sender.send(bytes(1 << 16))
        assert sent < most
        receiver.settimeout(PATIENCE)
        while sent:
            sent -= len(receiver.recv(1 << 20))


def test_connections_through_which_nothing_passes_are_closed(monkeypatch):
    monkeypatch.setattr(relay, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(relay, "SWEEP_SECONDS", 0.05)
    with relay_in_thread() as hub:
        listener = GrpcTransport(CREDENTIALS[CITY]).listen(hub, echo)
        with outbound.open_connection(hub, CREDENTIALS[RENTALS], CITY, PATIENCE) as link, suppress(ConnectionError):
            while link.recv(1000):  # ends when the relay closes it
                pass
        listener.close()


def test_a_party_returns_to_a_relay_that_was_away():
    with relay_in_thread() as hub:
        listener = GrpcTransport(CREDENTIALS[CITY]).listen(hub, echo)
        assert answers(hub)
    with relay_in_thread(address=hub.removeprefix("relay://")):
        until(lambda: _is_admitted(RelayAddress.parse(hub)))
        assert answers(hub)
        listener.close()


def test_what_an_end_never_reads_is_dropped(monkeypatch):
    monkeypatch.setattr(relay, "IDLE_SECONDS", 1.0)
    monkeypatch.setattr(relay, "SWEEP_SECONDS", 0.05)
    sent = received = refused = 0
    served = relay.Relay(credentials_of(HUB), [[OURS.certificate]])
    with relay_in_thread(served) as hub, joined_ends(RelayAddress.parse(hub)) as (sender, stuck):
        sender.settimeout(0.1)
        with suppress(ConnectionError):
            while refused < 5:  # in a row: a relay that is only slow takes more meanwhile
                try:
                    sent, refused = sent + sender.send(bytes(1 << 16)), 0
                except TimeoutError:
                    refused += 1
        sender.close()
        until(lambda: not served.figures()["pairs"])
        with suppress(ConnectionError):
            while size := len(stuck.recv(1 << 20)):
                received += size
    assert received < sent
