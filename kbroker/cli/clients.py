"""Shared by the commands that produce and consume: settings and errors of confluent-kafka, and
printing of records."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import click

from kbroker.cli.exits import CommandFailed
from kbroker.cli.output import text_fields
from kbroker.cli.params import Bootstrap, connect
from kbroker.client.unreachable import NotAuthenticated
from kbroker.errors import OperatorError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

MAX_MESSAGE_BYTES = 1_000_000_000  # the broker decides what is too large

READING: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,  # distinguishes a slow start from an empty topic
    "fetch.message.max.bytes": MAX_MESSAGE_BYTES,
    "fetch.wait.max.ms": 200,
}
"""Settings of every consumer that a command opens."""

SILENCE = logging.Logger(__name__, level=logging.CRITICAL + 1)
"""For a client's `logger`: otherwise the library writes fatal errors to stderr besides reporting
them."""


class ClientErrors:
    """Errors that librdkafka reports outside of any call. The library prints nothing (log_level 0)
    and never gives up, so the command decides: it survives a broker's restart, and ends when the
    broker stays away for `patience_s`. `group`: of the consumer."""

    def __init__(self, bootstrap: Bootstrap, patience_s: float = 10.0, *, group: str = "") -> None:
        self._bootstrap, self._patience_s, self._group = bootstrap, patience_s, group
        self._fatal: str | None = None
        self._down_since_s: float | None = None

    def __call__(self, error: KafkaError) -> None:
        from confluent_kafka import KafkaError as Error

        if error.fatal():
            self._fatal = text_of(error, "read", group=self._group)
        elif error.code() == Error._ALL_BROKERS_DOWN and self._down_since_s is None:
            self._down_since_s = time.monotonic()

    def check(self) -> None:
        """Call it when a poll returned nothing. Raises CommandFailed after a fatal error, and
        BrokerUnreachable when the broker stays away."""
        if self._fatal is not None:
            raise CommandFailed(self._fatal)
        down_since_s = self._down_since_s
        if down_since_s is None:
            return
        try:
            connect(self._bootstrap).close()
            self._down_since_s = None
        except NotAuthenticated:
            raise  # the password was changed, or the user deleted
        except OperatorError:
            if time.monotonic() - down_since_s >= self._patience_s:
                raise


def client_settings(bootstrap: Bootstrap, errors: ClientErrors) -> dict[str, Any]:
    """Settings of any confluent-kafka client. Raises BrokerUnreachable: it connects once itself,
    since librdkafka would wait forever for a missing broker."""
    connect(bootstrap).close()
    return {
        "bootstrap.servers": str(bootstrap),
        "client.id": "kbroker-cli",
        "log_level": 0,
        "error_cb": errors,
        **bootstrap.security.library_settings(),
    }


def text_of(error: KafkaError, needs: str, *, topic: str | None = None, group: str | None = None) -> str:
    """Of an error of the library. If the user lacks a right on this topic or group, the text names
    it, as in kbroker.client.answers."""
    from kbroker.client.answers import lacking

    code = error.code()
    if code == error.CLUSTER_AUTHORIZATION_FAILED and needs == "write":
        code = error.TOPIC_AUTHORIZATION_FAILED  # A user who may write to no topic gets no producer id.
    name = group if code == error.GROUP_AUTHORIZATION_FAILED else topic
    return lacking(code, needs, name or "") or error.str()


def record_as_json(message: Message) -> dict[str, Any]:
    """`key` and `value` as text, or `key_base64` and `value_base64` where they are not UTF-8."""
    from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

    kind, timestamp_ms = message.timestamp()
    pairs = cast("Sequence[tuple[str, str | bytes | None]]", message.headers() or ())
    headers = [{"name": name, **text_fields("value", _as_bytes(value))} for name, value in pairs]
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        **text_fields("key", _as_bytes(message.key())),
        **text_fields("value", _as_bytes(message.value())),
        "headers": headers,
    }


def print_record(message: Message, *, as_json: bool, key_separator: str | None, **extra: object) -> None:
    """One line per record: JSON, or the bytes of the value. With a separator the key precedes
    it."""
    if as_json:
        import json

        click.echo(json.dumps({**record_as_json(message), **extra}, ensure_ascii=False))
        return
    key = b"" if key_separator is None else (_as_bytes(message.key()) or b"") + key_separator.encode()
    sys.stdout.buffer.write(key + (_as_bytes(message.value()) or b"") + b"\n")


def require_topics(bootstrap: Bootstrap, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Partitions by topic. Raises KafkaError for a topic that does not exist, and never creates
    one."""
    from kbroker.client import admin

    with connect(bootstrap) as connection:
        return {topic.name: topic.partitions for topic in admin.topics(connection, names)}


def _as_bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
