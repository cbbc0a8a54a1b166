"""Clients that would outlive their user or use up memory: log-ins that are kept half done, answers
that are not read, large frames and tokens."""

from __future__ import annotations

import select
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.formats.batches import Buffer
from kbroker.formats.security_values import ScramMechanism
from kbroker.security.scram import ScramClient, salt_password
from kbroker.server.sasl_peer import SaslPeer
from tests.server.sasl_world import (
    SETTINGS,
    SaslBroker,
    authenticate_frame,
    handshake_frame,
    is_closed,
    open_sasl_broker,
    plain_token,
    read_frame,
    upsertion,
)


@pytest.fixture(scope="module")
def sasl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBroker]:
    with open_sasl_broker(tmp_path_factory.mktemp("sasl")) as opened:
        yield opened


@pytest.mark.parametrize("change", ["deleted", "new password"])
def test_a_log_in_under_way_does_not_outlive_its_user(sasl: SaslBroker, change: str) -> None:
    """A client could keep one half done, to finish it when the user is gone."""
    sasl.create_users({"erin": "before"})
    client = ScramClient(ScramMechanism.SHA_256, "erin", "before", "nonce")
    with sasl.connect() as connection, sasl.connect(plain=True) as admin:
        connection.call("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
        first = connection.call("sasl_authenticate", 2, auth_bytes=client.first())
        deletions = [{"name": "erin", "mechanism": 1}] if change == "deleted" else []
        upsertions = [] if deletions else [upsertion("erin", "after", ScramMechanism.SHA_256)]
        admin.call("alter_user_scram_credentials", 0, deletions=deletions, upsertions=upsertions)
        last = connection.call("sasl_authenticate", 2, auth_bytes=client.final(first.auth_bytes))
        assert last.error_code == ErrorCode.sasl_authentication_failed


def test_a_password_that_waits_to_be_checked_does_not_outlive_its_user(sasl: SaslBroker) -> None:
    sasl.create_users({"frank": "before"})
    begun, gate = threading.Event(), threading.Event()

    def slow(*derivation: Any) -> bytes:
        begun.set()
        assert gate.wait(60)
        return salt_password(*derivation)

    with pytest.MonkeyPatch.context() as patch, sasl.socket() as sock, sasl.connect(plain=True) as admin:
        patch.setattr("kbroker.broker.security.derivations.salt_password", slow)
        sock.sendall(handshake_frame() + authenticate_frame(plain_token("frank", "before")))
        assert begun.wait(60)
        deletions = [{"name": "frank", "mechanism": mechanism} for mechanism in ScramMechanism]
        for each in deletions:
            admin.call("alter_user_scram_credentials", 0, deletions=[each], upsertions=[])
        gate.set()
        read_frame(sock)
        assert read_frame(sock)[4:6] == struct.pack(">h", ErrorCode.sasl_authentication_failed)


def test_a_session_whose_answer_waits_for_the_client_can_be_ended(sasl: SaslBroker) -> None:
    """A client that reads nothing must not log in beside `--disconnect`."""
    sasl.create_users({"grace": "secret"})
    send_some = SaslPeer.send_some

    def no_room(peer: SaslPeer, buffers: Sequence[Buffer]) -> int:
        log_in = peer.connection.log_in
        assert log_in is not None
        return 0 if log_in.is_complete and log_in.refusal is None else send_some(peer, buffers)

    with pytest.MonkeyPatch.context() as patch, sasl.connect(plain=True) as admin:
        patch.setattr(SaslPeer, "send_some", no_room)
        with sasl.socket() as sock:
            sock.sendall(handshake_frame() + authenticate_frame(plain_token("grace", "secret")))
            disconnect = [{"name": "grace", "mechanism": 127}]
            found = ErrorCode.resource_not_found
            while found == ErrorCode.resource_not_found:
                answer = admin.call("alter_user_scram_credentials", 0, deletions=disconnect, upsertions=[])
                found = answer.results[0].error_code
            assert found == ErrorCode.none
            assert is_closed(sock)


def test_large_frames_of_strangers_are_bounded_together(sasl: SaslBroker) -> None:
    """Those that are too many are closed at once. Others log in."""
    size = SETTINGS.max_receive_bytes
    with ExitStack() as stack:
        socks = [stack.enter_context(sasl.socket()) for _ in range((32 << 20) // size + 3)]
        for sock in socks:
            sock.sendall(struct.pack(">i", size))
        ended = select.poll()
        for sock in socks:
            ended.register(sock, select.POLLIN)
        seen: set[int] = set()
        while len(seen) < 3:
            seen |= {fd for fd, _ in ended.poll()}
        sasl.logged_in().close()
        assert len(seen | {fd for fd, _ in ended.poll(0)}) == 3
    while not is_answered(sasl, plain_token("alice", "x" * (size - 100))):
        pass  # Those have not given their room back yet.


def is_answered(sasl: SaslBroker, token: bytes) -> bool:
    with sasl.socket() as sock:
        sock.sendall(handshake_frame())
        read_frame(sock)
        try:
            sock.sendall(authenticate_frame(token))
            return bool(read_frame(sock))
        except ConnectionError:
            return False


def test_a_renewal_has_no_larger_token_than_a_log_in(tmp_path: Path) -> None:
    """After the log-in, frames may have 100 MiB."""
    settings = replace(SETTINGS, max_session_ms=60_000)
    with open_sasl_broker(tmp_path, settings) as sasl, sasl.logged_in(mechanism="PLAIN") as connection:
        connection.call("sasl_handshake", 1, mechanism="PLAIN")
        token = plain_token("alice", "x" * SETTINGS.max_receive_bytes)
        answer = connection.call("sasl_authenticate", 2, auth_bytes=token)
        assert answer.error_code == ErrorCode.sasl_authentication_failed
        assert "got 1" in answer.error_message, "not looked at"
