"""Addresses of parties, relays and proxies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from error_fixtures import raises
from fedsim.errors import SettingError
from fedsim.protocol.addresses import Proxy, RelayAddress, is_direct, split_address
from session_fixtures import CITY
from tls_fixtures import CREDENTIALS


@pytest.mark.parametrize(
    "url", ["https://proxy:1", "proxy:3128", "http://ada:secret@proxy:3128", "socks5://proxy:99999"]
)
def test_a_proxy_is_a_url_without_user(url):
    with pytest.raises(SettingError) as refused:
        Proxy.parse(url)
    assert refused.value.code in ("invalid-proxy", "invalid-address")
    assert "secret" not in str(refused.value)


def test_a_login_that_socks_cannot_write_is_refused():
    with raises(SettingError, "invalid-proxy-login"):
        Proxy.parse("socks5://proxy:1080", "ada:" + "x" * 256)


@pytest.mark.parametrize("address", ["flats.example.org", "flats.example.org:", ":7411", "::1:7411", "flats:65536"])
def test_an_address_without_a_host_or_a_possible_port_is_refused(address):
    with raises(SettingError, "invalid-address"):
        split_address(address)
    with raises(SettingError, "invalid-address"):
        RelayAddress.parse(f"relay://{address}/flats")


def test_a_connection_is_direct_without_relay_and_proxy():
    behind_proxy = replace(CREDENTIALS[CITY], proxy=Proxy.parse("http://proxy:3128"))
    assert is_direct("127.0.0.1:7411", CREDENTIALS[CITY])
    assert not is_direct("relay://127.0.0.1:7400", CREDENTIALS[CITY])
    assert not is_direct("127.0.0.1:7411", behind_proxy)
