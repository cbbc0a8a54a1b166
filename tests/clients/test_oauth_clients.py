"""Unmodified clients log in with tokens: librdkafka's own OIDC, and the token providers of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from kbroker.testing.broker import RunningBroker, free_port, open_test_broker
from tests.client.certificates import make_certificates
from tests.clients.secured_clients import PATIENCE_S, RECORDS, aiokafka, confluent, kafka_python
from tests.security.tokens import token_settings
from tests.server.issuer import CLIENT_ID, CLIENT_SECRET, Issuer, open_issuer

# kafka-python on Python 3.11 and 3.12
pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")


class Secured(NamedTuple):
    broker: RunningBroker
    address: str
    issuer: Issuer
    ca: Path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    files = make_certificates(tmp_path_factory.mktemp("certificates"))
    plain, sasl = free_port(), free_port()
    with open_issuer(files.server) as issuer, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(files.ca))
        config = {
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}",
            **token_settings(issuer.url("keys")),
        }
        with open_test_broker(config=config, port=plain, extra_args=["--log-level", "debug"]) as broker:
            yield Secured(broker, f"127.0.0.1:{sasl}", issuer, files.ca)


def oidc(secured: Secured) -> dict[str, Any]:
    return {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.secret": CLIENT_SECRET,
        "sasl.oauthbearer.token.endpoint.url": secured.issuer.url("token"),
        "https.ca.location": str(secured.ca),
    }


def callback(secured: Secured) -> dict[str, Any]:
    return {"oauth_cb": lambda _: (secured.issuer.token(), time.time() + secured.issuer.lifetime_s)}


def settings(secured: Secured, way: Callable[[Secured], dict[str, Any]]) -> dict[str, Any]:
    return {
        "bootstrap.servers": secured.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        **way(secured),
    }


def provided(secured: Secured, base: type, token: Callable[[Any], Any]) -> dict[str, Any]:
    """Settings of kafka-python and aiokafka. `base`: the library's class of token providers."""
    return {
        "bootstrap_servers": secured.address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": type("Provider", (base,), {"token": token})(),
    }


def by_kafka_python(secured: Secured, topic: str) -> list[bytes]:
    from kafka.net.sasl.oauth import AbstractTokenProvider

    return kafka_python(provided(secured, AbstractTokenProvider, lambda _: secured.issuer.token()), topic)


def by_aiokafka(secured: Secured, topic: str) -> list[bytes]:
    from aiokafka.abc import AbstractTokenProvider

    async def token(_: Any) -> str:
        return secured.issuer.token()

    return aiokafka(provided(secured, AbstractTokenProvider, token), topic)


CLIENTS: dict[str, Callable[[Secured, str], list[bytes]]] = {
    "confluent-kafka-oidc": lambda secured, topic: confluent(settings(secured, oidc), topic),
    "confluent-kafka-callback": lambda secured, topic: confluent(settings(secured, callback), topic),
    "kafka-python": by_kafka_python,
    "aiokafka": by_aiokafka,
}


@pytest.mark.parametrize("client", CLIENTS)
def test_records_after_a_log_in_with_a_token(secured: Secured, client: str, name: str) -> None:
    secured.broker.create_topic(name)
    assert CLIENTS[client](secured, name) == RECORDS


@pytest.mark.parametrize("way", [oidc, pytest.param(callback, marks=pytest.mark.full)])
def test_a_client_renews_its_session(
    secured: Secured,
    name: str,
    way: Callable[[Secured], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """librdkafka gets new tokens, and logs in with them on the living connection. It takes a token
    for four fifths of its life, and sessions that begin then must not be renewed within a second.
    """
    monkeypatch.setattr(secured.issuer, "lifetime_s", 7)
    secured.broker.create_topic(name)
    errors: list[Any] = []
    delivered: list[Any] = []
    producer = Producer({**settings(secured, way), "error_cb": errors.append})
    ends = time.monotonic() + 9
    sent = 0
    while time.monotonic() < ends:
        producer.produce(name, b"x", on_delivery=lambda error, _: delivered.append(error))
        sent += 1
        producer.poll(0.05)
    assert producer.flush(PATIENCE_S) == 0
    assert delivered == [None] * sent
    assert not errors


def test_tokens_are_nowhere(secured: Secured) -> None:
    """Every token begins alike. They are in no file and in no log at debug level."""
    broker, start = secured.broker, secured.issuer.token().split(".")[0].encode()
    places = {
        "log": broker.logs().encode(),
        **{str(path): path.read_bytes() for path in broker.data_dir.rglob("*") if path.is_file()},
    }
    assert [place for place, content in places.items() if start in content] == []
