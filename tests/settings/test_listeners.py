"""Listeners: what `listeners`, `advertised.listeners` and the protocol map mean, and how they are
refused."""

from __future__ import annotations

import re

import pytest

from kbroker.errors import OperatorError
from kbroker.settings.altering import BrokerConfig, Scope, describe
from kbroker.settings.broker_listeners import per_ip_overrides
from kbroker.settings.listeners import Listener, SecurityProtocol, configured_listeners


def listeners(**settings: str) -> tuple[Listener, ...]:
    return configured_listeners(config(**settings))


def config(**settings: str) -> BrokerConfig:
    """`_` in a name stands for a dot."""
    return BrokerConfig.load(overrides={name.replace("_", "."): value for name, value in settings.items()})


def test_none_are_configured_by_default() -> None:
    assert listeners() == ()


def test_each_has_its_protocol_and_address() -> None:
    assert listeners(
        listeners="PLAINTEXT://127.0.0.1:9092, INTERNAL://[::1]:9093,SASL_SSL://0.0.0.0:9094",
        listener_security_protocol_map="INTERNAL:SSL,PLAINTEXT:PLAINTEXT",
        advertised_listeners="SASL_SSL://broker.example:443",
    ) == (
        Listener("PLAINTEXT", SecurityProtocol.PLAINTEXT, ("127.0.0.1", 9092)),
        Listener("INTERNAL", SecurityProtocol.SSL, ("::1", 9093)),
        Listener("SASL_SSL", SecurityProtocol.SASL_SSL, ("0.0.0.0", 9094), ("broker.example", 443)),
    )


def test_a_listener_reads_as_it_is_written() -> None:
    (found,) = listeners(listeners="SSL://[::1]:9093")
    assert str(found) == "SSL://[::1]:9093"


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"listeners": "127.0.0.1:9092"}, "expected NAME://HOST:PORT"),
        ({"listeners": "SSL://h:70000"}, "expected NAME://HOST:PORT"),
        ({"listeners": ""}, "name at least one listener"),
        ({"listeners": "SSL://h:1,ssl://h:2"}, "the name SSL stands there twice"),
        ({"listeners": "SSL://h:1,PLAINTEXT://h:1"}, "SSL and PLAINTEXT have the same address h:1"),
        ({"listeners": "WORK://h:1"}, "WORK has no protocol; add WORK:SASL_SSL"),
        ({"listeners": "SSL://0.0.0.0:9093"}, "advertised.listeners=SSL://HOST:9093"),
        ({"listeners": "SSL://h:1", "listener_security_protocol_map": "SSL:TLS"}, "expected NAME:PROTOCOL"),
        ({"advertised_listeners": "SSL://h:1"}, "set listeners too"),
        ({"listeners": "SSL://h:1", "advertised_listeners": "WORK://h:1"}, "there is no listener 'WORK'"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_write(settings: dict[str, str], error: str) -> None:
    with pytest.raises(OperatorError, match=error.replace("[", r"\[")) as raised:
        listeners(**settings)
    assert "\n" not in str(raised.value)


def test_a_listener_may_have_settings_of_its_own() -> None:
    found = config(
        listeners="SSL://h:1,WORK://h:2",
        listener_security_protocol_map="WORK:SSL,SSL:SSL",
        ssl_client_auth="requested",
        listener_name_work_ssl_client_auth="required",
    )
    assert found.of_listener("WORK", "ssl.client.auth") == "required"
    assert found.of_listener("SSL", "ssl.client.auth") == "requested"


def test_a_setting_for_a_listener_that_is_not_there_is_refused() -> None:
    with pytest.raises(OperatorError, match="there is no listener 'wrok'; listeners has ssl"):
        listeners(listeners="SSL://h:1", listener_name_wrok_ssl_client_auth="required")


def test_only_settings_of_listeners_may_have_the_prefix() -> None:
    with pytest.raises(OperatorError, match=r"unknown setting 'listener\.name\.ssl\.num\.partitions'"):
        config(listener_name_ssl_num_partitions="3")


def test_a_wrong_value_of_one_listener_is_refused() -> None:
    with pytest.raises(OperatorError, match="String must be one of: none, requested, required"):
        config(listener_name_ssl_ssl_client_auth="maybe")


def test_secrets_are_not_described() -> None:
    found = config(ssl_key_password="canary")
    (row,) = describe(Scope.BROKER, {}, found, ["ssl.key.password"])
    assert (row.value, row.is_sensitive) == (None, True)
    assert "canary" not in repr(row)


def test_limits_of_single_addresses() -> None:
    assert per_ip_overrides(("10.0.0.1:5", "[::1]:7")) == {"10.0.0.1": 5, "::1": 7}
    with pytest.raises(OperatorError, match="Expected ADDRESS:NUMBER, found 10"):
        config(max_connections_per_ip_overrides="10")


@pytest.mark.parametrize("address", ["localhost", "10.0.0.0/8", "10.*", "fe80::1%lo", "010.0.0.1", "0.0.0.0"])
def test_limits_that_no_client_would_have_are_refused(address: str) -> None:
    with pytest.raises(OperatorError, match=rf"{re.escape(address)} is no address of a client"):
        config(max_connections_per_ip_overrides=f"{address}:5")
