"""Failed log-ins: their delay, their bounds, and what the log and the metrics say of them."""

from __future__ import annotations

import logging
import struct
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

from kbroker.client.rpc import Connection
from kbroker.security.sasl import MECHANISMS
from tests.server.sasl_world import (
    SETTINGS,
    authenticate_frame,
    handshake_frame,
    log_in,
    open_sasl_broker,
    read_exactly,
    read_frame,
)

TOPICS = {"topics": None, "allow_auto_topic_creation": False}


def ask(connection: Connection) -> None:
    assert connection.call("metadata", 7, **TOPICS).brokers


def test_failures_are_answered_late_and_hold_up_nobody(tmp_path: Path) -> None:
    settings = replace(SETTINGS, failure_delay_ms=1500)
    with open_sasl_broker(tmp_path, settings) as sasl, sasl.logged_in() as good:
        began = monotonic()
        bad = [sasl.connect() for _ in range(20)]
        for connection in bad:
            connection.call("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
            connection.send_raw(authenticate_frame(b"not a message"))
        asked = 0
        while asked < 20 or monotonic() < began + 0.5:
            ask(good)
            asked += 1
        for connection in bad:
            assert connection.read_frame()[4:6] == struct.pack(">h", 58)
            assert monotonic() > began + 1.5
            connection.close()


def test_a_flood_of_wrong_passwords_is_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two are derived at a time and 64 wait; the others are refused, with one line in the log."""
    gate = threading.Event()

    def slow(*_: object) -> bytes:
        assert gate.wait(60)
        return bytes(32)

    with pytest.MonkeyPatch.context() as patch, open_sasl_broker(tmp_path) as sasl, ExitStack() as stack:
        patch.setattr("kbroker.broker.security.derivations.salt_password", slow)
        flood = [stack.enter_context(sasl.socket()) for _ in range(80)]
        for sock in flood:
            sock.sendall(handshake_frame() + authenticate_frame(b"\0alice\0canary-alice"))
        for sock in flood:
            read_frame(sock)
        with sasl.logged_in() as connection:  # by SCRAM, which derives nothing
            ask(connection)
            while sasl.call(lambda: sasl.broker.security.derivations.statistics()).refused < 14:
                ask(connection)
        found = sasl.call(lambda: sasl.broker.security.derivations.statistics())
        assert (found.waiting, found.refused) == (66, 14)
        gate.set()
        for sock in flood:
            assert read_exactly(sock, 10)[8:] == struct.pack(">h", 58)
    lines = [each for each in caplog.messages if "too many log-ins" in each]
    assert len(lines) == 1


def test_the_log_names_addresses_once_a_minute_and_never_users_or_passwords(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kbroker")
    with open_sasl_broker(tmp_path, storage="segment") as sasl:
        for mechanism in MECHANISMS:
            for name in ("canary-name", "alice"):
                with sasl.connect() as connection:
                    log_in(connection, name, "canary-password", mechanism=mechanism)
        with sasl.connect() as connection:
            connection.call("sasl_handshake", 1, mechanism="canary-mechanism")
        with sasl.socket() as sock:
            sock.sendall(
                handshake_frame() + authenticate_frame(b"\0canary-name\0canary-password")[:-3] + b"\xff"
            )
        sasl.logged_in().close()
        with sasl.connect() as connection:
            log_in(connection, "carol")
            resource = [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}]
            described = connection.call(
                "describe_configs", 4, resources=resource, include_synonyms=True, include_documentation=True
            )
            assert "canary" not in repr(described)
            users = connection.call("describe_user_scram_credentials", 0, users=None)
            assert "canary" not in repr(users)
    failures = [each for each in caplog.messages if "closing connection" in each]
    assert len([each for each in failures if "log-in with" in each or "SASL mechanism" in each]) == 1, (
        failures
    )
    assert "127.0.0.1" in failures[0]
    assert not [each for each in caplog.messages if "canary" in each or "alice" in each]
    stored = b"".join(each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())
    assert b"alice" in stored
    assert b"canary" not in stored


def test_metrics_count_log_ins(tmp_path: Path) -> None:
    with open_sasl_broker(tmp_path) as sasl:
        sasl.logged_in("alice", "SCRAM-SHA-512").close()
        with sasl.connect() as connection:
            log_in(connection, "alice", "wrong")
        with sasl.connect() as connection:
            connection.call("sasl_handshake", 1, mechanism="GSSAPI")
        counted = sasl.broker.metrics.sasl
        assert Counter(counted.successes) == Counter({"SCRAM-SHA-512": 1})
        assert Counter(counted.failures) == Counter({"PLAIN": 1, "none": 1})
