"""Unmodified clients over TLS: with a certificate of their own, and with a log-in. Each sends
records and reads them."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.clients.secured_clients import RECORDS, aiokafka, confluent, kafka_python, share_consumer

# kafka-python on Python 3.11 and 3.12
pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def brokers() -> Iterator[dict[str, RunningBroker]]:
    with open_test_broker(protocol="SSL") as by_certificate, open_test_broker(protocol="SASL_SSL") as by_name:
        yield {"SSL": by_certificate, "SASL_SSL": by_name}


def python_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """kafka-python's and aiokafka's names for librdkafka's settings."""
    context = ssl.create_default_context(cafile=settings["ssl.ca.location"])
    if "ssl.certificate.location" in settings:
        context.load_cert_chain(settings["ssl.certificate.location"])
    found = {
        "bootstrap_servers": settings["bootstrap.servers"],
        "security_protocol": settings["security.protocol"],
        "ssl_context": context,
    }
    if "sasl.mechanism" in settings:
        found["sasl_mechanism"] = settings["sasl.mechanism"]
        found["sasl_plain_username"] = settings["sasl.username"]
        found["sasl_plain_password"] = settings["sasl.password"]
    return found


CLIENTS: dict[str, Callable[[dict[str, Any], str], list[bytes]]] = {
    "confluent-kafka": confluent,
    "share consumer": share_consumer,
    "kafka-python": lambda settings, topic: kafka_python(python_settings(settings), topic),
    "aiokafka": lambda settings, topic: aiokafka(python_settings(settings), topic),
}
LOG_INS = {"SSL": [""], "SASL_SSL": ["SCRAM-SHA-256", "PLAIN"]}
DEFAULT_RUN = {
    ("confluent-kafka", "SSL", ""),
    ("share consumer", "SASL_SSL", "SCRAM-SHA-256"),
    ("kafka-python", "SASL_SSL", "PLAIN"),
    ("aiokafka", "SSL", ""),
}


def matrix() -> Iterator[object]:
    for client in CLIENTS:
        for protocol, mechanisms in LOG_INS.items():
            for mechanism in mechanisms:
                chosen = (client, protocol, mechanism)
                yield pytest.param(
                    *chosen,
                    marks=[] if chosen in DEFAULT_RUN else [pytest.mark.full],
                    id="-".join(filter(None, chosen)).replace(" ", "-"),
                )


@pytest.mark.parametrize(("client", "protocol", "mechanism"), [*matrix()])
def test_records_over_tls(
    brokers: dict[str, RunningBroker], client: str, protocol: str, mechanism: str
) -> None:
    broker, name = brokers[protocol], "-".join((client, protocol, mechanism)).replace(" ", "-")
    broker.create_topic(name)
    broker.set_group_config(name, {"share.auto.offset.reset": "earliest"})
    settings = {**broker.client_settings(), **({"sasl.mechanism": mechanism} if mechanism else {})}
    assert CLIENTS[client](settings, name) == RECORDS
