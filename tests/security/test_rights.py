"""What a client may do, with the memory of earlier answers."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from kbroker.security import rights as rights_module
from kbroker.security.acls import AclTable, Operation, ResourceType
from kbroker.security.authorizer import StandardAuthorizer
from kbroker.security.principals import Principal, user
from kbroker.security.rights import Rights, SharedMemory
from kbroker.security.spi import Authorizer
from tests.security.acl_strategies import entry

TOPIC = ResourceType.TOPIC
BOB = user("bob")
Denied = list[tuple[Principal, Operation, ResourceType, str]]


def rights_of(authorizer: Authorizer, memory: SharedMemory | None = None) -> tuple[Rights, Denied]:
    denied: Denied = []
    made = Rights(
        BOB,
        "10.0.0.1",
        authorizer,
        lambda rights, operation, kind, name: denied.append((rights.principal, operation, kind, name)),
        memory or SharedMemory(),
    )
    return made, denied


def standard(*operations: Operation, name: str = "t", others: int = 0) -> StandardAuthorizer:
    made = StandardAuthorizer()
    entries = [entry("User:bob", operation, name) for operation in operations]
    more = [entry(f"User:{number}", Operation.ALL, f"t{number}") for number in range(others)]
    made.acls_changed(AclTable([*entries, *more]))
    return made


def test_a_denial_is_reported_each_time_unless_the_client_did_not_ask() -> None:
    rights, denied = rights_of(standard(Operation.READ))
    assert rights.allows(Operation.READ, TOPIC, "t")
    assert not rights.has(Operation.WRITE, TOPIC, "t")
    assert not rights.allows_any_topic(Operation.WRITE)
    assert denied == []
    for _ in range(2):
        assert not rights.allows(Operation.WRITE, TOPIC, "t")
    assert denied == [(BOB, Operation.WRITE, TOPIC, "t")] * 2


def test_operations_are_bits() -> None:
    """READ implies DESCRIBE; WRITE alone is bit 4 (KIP-430)."""
    rights, denied = rights_of(standard(Operation.WRITE))
    assert rights.operations(TOPIC, "t") == 1 << 4 | 1 << 8 == 272
    assert rights.operations(TOPIC, "u") == 0
    everything, _ = rights_of(standard(Operation.ALL, name="*"))
    assert everything.operations(TOPIC, "t") == 3576
    assert denied == []


def test_answers_are_remembered_until_something_changes() -> None:
    authorizer = standard(Operation.READ)
    rights, _ = rights_of(authorizer)
    assert rights.allows(Operation.READ, TOPIC, "t")
    assert rights.allows_any_topic(Operation.READ)
    authorizer.acls_changed(AclTable())
    assert rights.allows(Operation.READ, TOPIC, "t")
    before = rights.version
    rights.forget()
    assert rights.version > before
    assert not rights.allows(Operation.READ, TOPIC, "t")
    assert not rights.allows_any_topic(Operation.READ)


def test_names_that_clients_invent_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights_module, "MAX_BYTES", 5000)
    rights, _ = rights_of(standard(Operation.READ))
    for number in range(350):
        rights.has(Operation.READ, TOPIC, f"invented-{number}")
        assert len(rights.known) < 25
    assert rights.allows(Operation.READ, TOPIC, "t")


def test_names_that_cannot_exist_are_not_remembered() -> None:
    """Nine thousand names of 32 KB took 314 MiB."""
    rights, _ = rights_of(standard(Operation.READ))
    for number in range(1000):
        assert not rights.has(Operation.READ, TOPIC, f"{number}-{'x' * 32_000}")
    assert (len(rights.known), rights.bytes) == (0, 0)


def test_all_clients_together_remember_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address has its own memory, and a client may have many addresses."""
    monkeypatch.setattr(rights_module, "MAX_SHARED_BYTES", 80_000)
    memory = SharedMemory()
    modest, _ = rights_of(standard(Operation.READ), memory)
    assert modest.allows(Operation.READ, TOPIC, "t")
    many = [rights_of(standard(Operation.READ), memory)[0] for _ in range(20)]
    for number in range(200):
        for each in many:
            each.has(Operation.READ, TOPIC, f"invented-{number}")
        assert memory.bytes <= 80_000 + 20 * 300
    assert len(modest.known) == 1, "those that remember most forget first"
    del many[:], each
    assert memory.bytes == modest.bytes


class Broken(Authorizer):
    def allows(self, *_: object) -> bool:
        raise RuntimeError("no connection to the directory")

    def allows_any(self, *_: object) -> bool:
        raise RuntimeError("no connection to the directory")


def test_an_authorizer_that_fails_denies(caplog: pytest.LogCaptureFixture) -> None:
    rights, denied = rights_of(Broken())
    assert not rights.allows(Operation.READ, TOPIC, "t")
    assert not rights.allows_any_topic(Operation.WRITE)
    assert denied == [(BOB, Operation.READ, TOPIC, "t")]
    assert rights.known == {}, "the next request asks again"
    assert "no connection to the directory" in caplog.text


def test_a_known_answer_costs_one_look_up_and_no_further_call() -> None:
    """Whatever the number of ACLs."""
    rights, _ = rights_of(standard(Operation.READ, others=1000))
    rights.allows(Operation.READ, TOPIC, "t")
    calls: list[str] = []

    def count(frame: FrameType, event: str, arg: Any) -> None:
        if event in ("call", "c_call"):
            calls.append(frame.f_code.co_name if event == "call" else arg.__name__)

    sys.setprofile(count)
    try:
        rights.allows(Operation.READ, TOPIC, "t")
    finally:
        sys.setprofile(None)
    assert calls == ["allows", "setprofile"]
