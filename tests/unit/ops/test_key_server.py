"""Keys from environment variables and from OpenBao: what is read, what is refused, and that no value is ever shown."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import openbao
from fedsim.cli import ExitCode, exit_code_for
from fedsim.errors import FedSimError, FileError, KeyServerError, SettingError
from fedsim.linkage.encoding import Key
from fedsim.storage.files import SecretReference
from fedsim_ops import key_server

SECRET = "5eC" + "0" * 61
POLICY = 'path "secret/data/city" { capabilities = ["read"] }'


def read(reference: str) -> bytes:
    found = SecretReference.parse(reference)
    assert found is not None
    return found.read()


def failure(reference: str) -> FedSimError:
    with pytest.raises(FedSimError) as caught:
        read(reference)
    assert SECRET not in str(caught.value)
    assert openbao.ROOT_TOKEN not in str(caught.value)
    return caught.value


@pytest.fixture(autouse=True)
def _no_server_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ADDR", "TOKEN", "CACERT", "NAMESPACE", "ROLE_ID", "SECRET_ID", "K8S_ROLE", "AUTH_PATH"):
        for prefix in ("BAO", "VAULT"):
            monkeypatch.delenv(f"{prefix}_{name}", raising=False)
    monkeypatch.setattr(key_server, "_TOKENS", {})


def test_a_fault_of_the_key_server_is_not_reported_as_a_bad_key() -> None:
    with pytest.raises(SettingError) as caught:
        Key.read(SecretReference(path="secret/data/city", field="linkage_key"))
    assert caught.value.code == "no-key-server"


# Against a real server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openbao.OpenBao]:
    if openbao.COMMAND is None:
        pytest.skip("the command bao is not installed")
    with openbao.openbao(tmp_path_factory.mktemp("openbao")) as running:
        running.ask("secret/data/city", {"data": {"linkage_key": "0" * 64}})
        running.ask("secret/data/city", {"data": {"linkage_key": SECRET, "number": 7}})
        running.ask("secret/data/other", {"data": {"linkage_key": SECRET}})
        running.ask("sys/mounts/old", {"type": "kv", "options": {"version": "1"}})
        running.ask("old/city", {"linkage_key": SECRET})
        running.ask("sys/policies/acl/city", {"policy": POLICY})
        running.ask("sys/auth/approle", {"type": "approle"})
        running.ask("auth/approle/role/city", {"token_policies": ["city"]})
        yield running


@pytest.fixture
def environment(server: openbao.OpenBao, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def export(**more: str) -> None:
        for name, value in server.environment(**more).items():
            monkeypatch.setenv(name, value)

    return export


def test_a_server_gives_fields_of_both_versions_of_its_store(environment: Callable[..., None]) -> None:
    environment(VAULT_TOKEN=openbao.ROOT_TOKEN)
    assert read("vault:secret/data/city#linkage_key") == SECRET.encode()
    assert read("vault:secret/data/city?version=1#linkage_key") == b"0" * 64
    assert read("vault:old/city#linkage_key") == SECRET.encode()


@pytest.mark.parametrize(
    ("reference", "code"),
    [
        ("vault:secret/city#linkage_key", "no-entry"),  # without data/
        ("vault:secret/data/nobody#linkage_key", "no-entry"),
        ("vault:secret/data/city#label_key", "no-field"),
        ("vault:secret/data/city#number", "no-field"),
    ],
)
def test_an_entry_that_is_not_there_is_named(reference: str, code: str, environment: Callable[..., None]) -> None:
    environment(BAO_TOKEN=openbao.ROOT_TOKEN)
    assert failure(reference).code == code


def test_a_token_that_is_not_valid_and_none_at_all_are_told_apart(
    environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment(BAO_TOKEN="s.unknown")  # noqa: S106
    assert failure("vault:secret/data/city#linkage_key").code == "key-server-denied"
    monkeypatch.delenv("BAO_TOKEN")
    monkeypatch.setenv("BAO_TOKEN_PATH", f"{tmp_path}/none")
    assert failure("vault:secret/data/city#linkage_key").code == "no-key-server-login"


def test_a_role_logs_in_reads_only_what_its_policy_permits_and_logs_in_again(
    server: openbao.OpenBao, environment: Callable[..., None]
) -> None:
    role = server.ask("auth/approle/role/city/role-id")["data"]["role_id"]
    secret = server.ask("auth/approle/role/city/secret-id", {})["data"]["secret_id"]
    environment(VAULT_ROLE_ID=role, VAULT_SECRET_ID=secret)
    assert read("vault:secret/data/city#linkage_key") == SECRET.encode()
    assert failure("vault:secret/data/other#linkage_key").code == "key-server-denied"
    server.ask("auth/token/revoke", {"token": next(iter(key_server._TOKENS.values()))})  # as if it had expired
    assert read("vault:secret/data/city#linkage_key") == SECRET.encode()
    environment(VAULT_SECRET_ID="another")  # noqa: S106
    key_server._TOKENS.clear()
    assert failure("vault:secret/data/city#linkage_key").code == "key-server-login-refused"


def test_a_server_whose_certificate_is_not_trusted_is_sent_no_token(
    environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(BAO_TOKEN=openbao.ROOT_TOKEN)
    monkeypatch.delenv("BAO_CACERT")
    assert failure("vault:secret/data/city#linkage_key").code == "key-server-not-trusted"
    monkeypatch.setenv("VAULT_CACERT", "/nowhere/ca.pem")
    assert failure("vault:secret/data/city#linkage_key").code == "key-server-authority"


# Against a server that answers as the HTTP interface documents it


Asked = list[tuple[str, dict[str, str], bytes]]


@contextmanager
def answering(status: int, body: bytes, **headers: str) -> Iterator[tuple[str, Asked]]:
    """Address of a server that gives every request the same answer, and what it was asked."""
    asked: Asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append((self.path, dict(self.headers), sent))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        threading.Thread(target=listener.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.server_port}", asked
        finally:
            listener.shutdown()


@pytest.mark.parametrize(
    ("status", "body", "error", "code"),
    [
        (503, b'{"errors":["Vault is sealed"]}', KeyServerError, "key-server-away"),
        (429, b"", KeyServerError, "key-server-away"),
        (200, SECRET.encode(), FileError, "no-field"),
        (200, b"[1]", FileError, "no-field"),
        (307, b"", FileError, "key-server-answer"),
    ],
)
def test_an_answer_that_is_no_entry_is_an_error_of_its_kind(
    status: int, body: bytes, error: type[FedSimError], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(status, body, Location="http://127.0.0.1:9/v1/elsewhere") as (address, asked):
        monkeypatch.setenv("VAULT_ADDR", address)
        monkeypatch.setenv("VAULT_TOKEN", openbao.ROOT_TOKEN)
        found = failure("vault:secret/data/city#linkage_key")
    assert (type(found), found.code, len(asked)) == (error, code, 1)
    assert exit_code_for(found) is (ExitCode.BLOCKED if error is KeyServerError else ExitCode.INVALID_INPUT)


def test_kubernetes_logs_in_with_the_token_of_its_service_account(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = b'{"auth": {"client_token": "s.login"}, "data": {"linkage_key": "%s"}}' % SECRET.encode()
    (tmp_path / "token").write_text("a.b.c\n")
    with answering(200, body) as (address, asked):
        monkeypatch.setenv("BAO_ADDR", address)
        monkeypatch.setenv("BAO_NAMESPACE", "city")
        monkeypatch.setenv("BAO_K8S_ROLE", "fedsim")
        monkeypatch.setenv("BAO_K8S_TOKEN_PATH", f"{tmp_path}/token")
        assert read("vault:old/city#linkage_key") == SECRET.encode()
    (login, _, sent), (entry, headers, _) = asked
    assert (login, sent) == ("/v1/auth/kubernetes/login", b'{"role": "fedsim", "jwt": "a.b.c"}')
    assert (entry, headers["X-Vault-Token"], headers["X-Vault-Namespace"]) == ("/v1/old/city", "s.login", "city")


@pytest.mark.parametrize("variable", ["VAULT_TOKEN", "VAULT_NAMESPACE"])
@pytest.mark.parametrize("value", ["hvs.first\nhvs.second", "hvs.fi\u00e9rst"])
def test_a_malformed_token_or_namespace_is_refused_without_being_shown(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VAULT_TOKEN", openbao.ROOT_TOKEN)
    monkeypatch.setenv(variable, value)
    with answering(200, b"{}") as (address, asked):
        monkeypatch.setenv("VAULT_ADDR", address)
        error = failure("vault:a#b")
    assert (type(error), error.code, asked) == (SettingError, "bad-key-server-login", [])
    assert "hvs.fi" not in "".join(traceback.format_exception(error))


def test_a_server_that_is_away_silent_plaintext_or_unknown_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAULT_TOKEN", openbao.ROOT_TOKEN)
    assert failure("vault:a#b").code == "no-key-server"
    monkeypatch.setenv("VAULT_ADDR", "vault.example.org")
    assert failure("vault:a#b").code == "no-key-server"
    monkeypatch.setenv("VAULT_ADDR", "http://192.0.2.1:8200")
    assert failure("vault:a#b").code == "key-server-plaintext"
    monkeypatch.setenv("VAULT_ADDR", "http://127.0.0.1:1")
    assert failure("vault:a#b").code == "key-server-away"
    monkeypatch.setattr(key_server, "SERVER_SECONDS", 0.1)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as silent:  # accepts, and never answers
        monkeypatch.setenv("VAULT_ADDR", f"http://127.0.0.1:{silent.server_port}")
        assert failure("vault:a#b").code == "key-server-away"
