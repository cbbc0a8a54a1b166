"""ACLs for ranges of addresses, with clients of one principal at several addresses. ACL-1, ACL-4"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from kbroker.client import acl_admin
from kbroker.client.admin import create_topic
from kbroker.client.rpc import Connection
from kbroker.errors import ErrorCode
from kbroker.security.acls import Operation, Permission
from kbroker.testing.broker import RunningBroker, free_port, open_test_broker
from tests.security.acl_strategies import entry

TOPIC = "orders"
REFUSED = ErrorCode.topic_authorization_failed


def may_read(connection: Connection) -> bool:
    answer = connection.call("metadata", 9, topics=[{"name": TOPIC}], allow_auto_topic_creation=False,
                             include_topic_authorized_operations=False,
                             include_cluster_authorized_operations=False)  # fmt: skip
    code = answer.topics[0].error_code
    assert code in (ErrorCode.none, REFUSED)
    return code is ErrorCode.none


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    """With a socket for IPv4, one for IPv4 clients inside IPv6, and one for IPv6."""
    port, mapped, six = free_port(), free_port(), free_port()
    config = {
        "listeners": f"A://127.0.0.1:{port},B://[::ffff:127.0.0.1]:{mapped},C://[::1]:{six}",
        "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT,C:PLAINTEXT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with open_test_broker(storage="segment", config=config, port=port) as running:
        yield running


@pytest.fixture
def clients(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Connection]]:
    """By what their names say: where a client comes from, and to which socket."""
    ports = [int(each.rpartition(":")[2]) for each in broker.config["listeners"].split(",")]
    create = socket.create_connection

    with ExitStack() as stack:

        def opened(host: str, port: int, source: str) -> Connection:
            monkeypatch.setattr(socket, "create_connection", partial(create, source_address=(source, 0)))
            found = stack.enter_context(Connection(host, port))
            found.call("api_versions", 3, client_software_name="test", client_software_version="1")
            monkeypatch.setattr(socket, "create_connection", create)
            return found

        yield {
            "127.0.0.1": opened("127.0.0.1", ports[0], "127.0.0.1"),
            "127.0.0.2": opened("127.0.0.1", ports[0], "127.0.0.2"),
            "127.9.9.9": opened("127.0.0.1", ports[0], "127.9.9.9"),
            "127.0.0.1 as IPv6": opened("127.0.0.1", ports[1], "127.0.0.1"),
            "127.0.0.2 as IPv6": opened("127.0.0.1", ports[1], "127.0.0.2"),
            "::1": opened("::1", ports[2], "::1"),
        }


@pytest.mark.parametrize(
    ("host", "concerned"),
    [
        ("127.0.0.0/8", {"127.0.0.1", "127.0.0.2", "127.9.9.9", "127.0.0.1 as IPv6", "127.0.0.2 as IPv6"}),
        ("127.0.0.2/31", {"127.0.0.2", "127.0.0.2 as IPv6"}),
        ("127.0.0.1/32", {"127.0.0.1", "127.0.0.1 as IPv6"}),
        ("::ffff:127.0.0.1", {"127.0.0.1", "127.0.0.1 as IPv6"}),
        ("::/0", {"::1"}),
    ],
)
def test_each_client_is_judged_by_its_address(
    host: str, concerned: set[str], broker: RunningBroker, clients: dict[str, Connection]
) -> None:
    """Decisions are remembered for each address."""

    def readers() -> set[str]:
        for _ in range(2):
            found = {name for name, client in clients.items() if may_read(client)}
        return found

    admin = clients["::1"]
    create_topic(admin, TOPIC)
    everyone = {*clients}
    assert readers() == everyone
    denial = entry("User:*", Operation.ALL, TOPIC, host=host, permission=Permission.DENY)
    allowance = entry("User:ANONYMOUS", Operation.READ, TOPIC, host=host)
    assert acl_admin.create(admin, [allowance]) == [None]
    assert readers() == concerned
    assert acl_admin.create(admin, [entry("User:ANONYMOUS", Operation.READ, TOPIC), denial]) == [None] * 2
    assert readers() == everyone - concerned
    assert acl_admin.delete(admin, [denial]) == [None]
    assert readers() == everyone
