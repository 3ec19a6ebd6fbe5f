"""Read secrets from OpenBao or HashiCorp Vault.

The address and login of the server come from the environment, as for the commands ``bao`` and ``vault``; names that
begin with ``BAO_`` take precedence over ``VAULT_``. No message, log line or ``repr`` shows a value.
"""

import http.client
import ipaddress
import json
import os
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import SplitResult, quote, urlsplit

from fedsim.errors import FileError, KeyServerError, SettingError
from fedsim.storage.files import SecretReference

SERVER_SECONDS = 10.0
MAX_BYTES = 1 << 20  # of an answer
SERVICE_ACCOUNT_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - where Kubernetes puts it


@dataclass(frozen=True, repr=False)
class _KeyServer:
    """An OpenBao or Vault server, configured by the environment."""

    address: SplitResult
    namespace: str
    authority: str
    authorities: str

    @classmethod
    def from_environment(cls) -> Self:
        address = urlsplit(_variable("ADDR"))
        try:
            host, _ = address.hostname, address.port
        except ValueError:
            host = None
        if address.scheme not in ("https", "http") or not host:
            fault = "BAO_ADDR or VAULT_ADDR is not the address of a server"
            if not _variable("ADDR"):
                fault = "the party file refers to a vault: key, but neither BAO_ADDR nor VAULT_ADDR is set"
            rule = "set one to an address such as https://vault.example.org:8200"
            raise SettingError(f"{fault}; {rule}", code="no-key-server")
        if address.scheme == "http" and not _is_this_machine(host):
            fault = f"the key server {host} would be contacted in plaintext over the network"
            raise SettingError(f"{fault}; use an address with https://", code="key-server-plaintext")
        return cls(address, *map(_variable, ("NAMESPACE", "CACERT", "CAPATH")))

    @property
    def place(self) -> str:
        return self.address.netloc.rpartition("@")[2]

    def ask(self, path: str, token: str = "", body: Mapping[str, str] | None = None) -> tuple[int, Any]:
        """Return the status and response of one request; redirects are not followed, as they could leak the token."""
        headers = {"X-Vault-Request": "true", "X-Vault-Token": token, "X-Vault-Namespace": self.namespace}
        if not all(value.isascii() and value.isprintable() for value in headers.values()):
            fault = (
                f"the token or namespace for the key server {self.place} has characters that are not printable ASCII"
            )
            raise SettingError(f"{fault}; set it again, without line breaks", code="bad-key-server-login")
        connection = self._connection()
        try:
            target = f"{self.address.path.rstrip('/')}/v1/{path}"
            sent = None if body is None else json.dumps(body)
            connection.request("POST" if body else "GET", target, sent, {k: v for k, v in headers.items() if v})
            response = connection.getresponse()
            content = response.read(MAX_BYTES + 1)
        except ssl.SSLCertVerificationError as error:
            fault = f"the certificate of the key server {self.place} is not trusted ({error.verify_message})"
            hint = "name its authority in BAO_CACERT or VAULT_CACERT"
            raise FileError(f"{fault}; {hint}", code="key-server-not-trusted") from None
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or type(error).__name__
            fault = f"the key server {self.place} cannot be reached ({reason})"
            raise KeyServerError(f"{fault}; check address and network", code="key-server-away") from None
        finally:
            connection.close()
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        return response.status, answer if isinstance(answer, dict) else {}

    def _connection(self) -> http.client.HTTPConnection:
        host = self.address.hostname or ""
        if self.address.scheme == "http":
            return http.client.HTTPConnection(host, self.address.port or 80, timeout=SERVER_SECONDS)
        try:
            context = ssl.create_default_context(cafile=self.authority or None, capath=self.authorities or None)
        except OSError as error:
            fault = f"the authority of the key server, in BAO_CACERT or VAULT_CACERT, cannot be read ({error.strerror})"
            raise FileError(f"{fault}; correct the path", code="key-server-authority") from None
        return http.client.HTTPSConnection(host, self.address.port or 443, timeout=SERVER_SECONDS, context=context)


_TOKENS: dict[_KeyServer, str] = {}  # from logins in this process: a secret id may be valid for a few logins only
_TOKENS_LOCK = threading.Lock()


def read_entry(reference: SecretReference) -> str:
    """Return the field of an entry; raise ``FileError`` if it does not exist."""
    server = _KeyServer.from_environment()
    path = quote(reference.path) + (f"?version={reference.version}" if reference.version else "")
    with _TOKENS_LOCK:
        token = _variable("TOKEN") or _TOKENS.get(server)
        status, answer = server.ask(path, token) if token else (403, {})
        if status == 403 and not _variable("TOKEN"):  # no login yet, or it has expired
            token = _TOKENS[server] = _log_in(server)
            status, answer = server.ask(path, token)
    if status == 403:
        fault = f"{reference}: the key server {server.place} does not permit this token to read it"
        raise FileError(f"{fault}; renew the token, or correct its policy", code="key-server-denied")
    if status == 404:
        hint = "in KV version 2 the path has data/ after the mount, as in secret/data/fedsim"
        raise FileError(f"{reference} does not exist at {server.place}; {hint}", code="no-entry")
    _check_status(server, status)
    entry = answer.get("data") or {}
    if isinstance(entry.get("data"), dict) and isinstance(entry.get("metadata"), dict):  # KV version 2
        entry = entry["data"]
    value = entry.get(reference.field)
    if not isinstance(value, str) or not value:
        fault = f"{reference}: the entry at {server.place} has no such field, or it is not text"
        raise FileError(f"{fault}; store the key there as text", code="no-field")
    return value


def _log_in(server: _KeyServer) -> str:
    """Return a token: from AppRole or Kubernetes if the environment sets a role, otherwise from ``bao login``."""
    mount, body = _variable("AUTH_PATH"), None
    if role := _variable("ROLE_ID"):
        mount, body = mount or "approle", {"role_id": role, "secret_id": _variable("SECRET_ID")}
    elif role := _variable("K8S_ROLE"):
        path = Path(_variable("K8S_TOKEN_PATH") or SERVICE_ACCOUNT_TOKEN)
        mount, body = mount or "kubernetes", {"role": role, "jwt": _read_token(path)}
    if body is None:
        path = Path(_variable("TOKEN_PATH") or Path.home() / ".vault-token")
        if path.is_file():
            return _read_token(path)
        known = "VAULT_TOKEN, VAULT_ROLE_ID with VAULT_SECRET_ID, or VAULT_K8S_ROLE (or the BAO_ names)"
        raise SettingError(f"the key server {server.place} requires a login; set {known}", code="no-key-server-login")
    status, answer = server.ask(f"auth/{quote(mount)}/login", body=body)
    if status in (400, 401, 403, 404):
        fault = f"the key server {server.place} refuses the login at auth/{mount} (status {status})"
        raise FileError(f"{fault}; check role and secret id", code="key-server-login-refused")
    _check_status(server, status)
    token = (answer.get("auth") or {}).get("client_token")
    if not isinstance(token, str) or not token:
        fault = f"the key server {server.place} answers a login without a token"
        raise FileError(f"{fault}; check the address", code="key-server-answer")
    return token


def _check_status(server: _KeyServer, status: int) -> None:
    if status == 429 or status >= 500:
        reason = "is sealed or in maintenance" if status == 503 else f"answers with status {status}"
        raise KeyServerError(f"the key server {server.place} {reason}; try again later", code="key-server-away")
    if status != 200:
        hint = "give the address of the server itself" if 300 <= status < 400 else "check the address"
        fault = f"the key server {server.place} answers with status {status}"
        raise FileError(f"{fault}; {hint}", code="key-server-answer")


def _read_token(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        raise FileError(f"cannot read the token {path} for the key server; check it", code="not-readable") from None


def _variable(name: str) -> str:
    return (os.environ.get(f"BAO_{name}") or os.environ.get(f"VAULT_{name}") or "").strip()


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
