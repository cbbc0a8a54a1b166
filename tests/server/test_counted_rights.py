"""The price of an authorizer with a thousand entries: a look-up for each topic and each request,
and at most two calls around it. The entries are looked at once, not with each request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kbroker.client import acl_admin
from kbroker.client.rpc import Connection
from kbroker.security.acls import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from tests.server.counted_work import Counted, counted, counted_broker
from tests.server.hot_requests import SERIES, Requests

RIGHTS = {
    "produce": 1, "produce, idempotent": 1, "produce, 6 partitions": 1,
    "fetch": 1, "fetch, 6 partitions": 1,
    "share fetch": 3, "job": 3, "share acknowledge": 2,
    "heartbeat": 1, "share heartbeat": 2,
}  # fmt: skip
"""How many rights a request needs: one for each topic or group. A share fetch that also
acknowledges has its topic twice."""
CALLS = 2
ENTRIES = 1000
AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def entries() -> list[Acl]:
    """Everything for the client, and for each of many others a topic of its own."""

    def allowed(kind: ResourceType, name: str, principal: str = "User:ANONYMOUS") -> Acl:
        return Acl(kind, PatternType.LITERAL, name, principal, "*", Operation.ALL, Permission.ALLOW)

    others = [
        allowed(ResourceType.TOPIC, f"topic-{number}", f"User:user-{number}") for number in range(ENTRIES)
    ]
    mine = [allowed(kind, "*") for kind in (ResourceType.TOPIC, ResourceType.GROUP)]
    return [allowed(ResourceType.CLUSTER, CLUSTER_NAME), *mine, *others]


def counts(data_dir: Path, acls: list[Acl]) -> dict[str, Counted]:
    config = AUTHORIZED if acls else {}
    with (
        counted_broker(data_dir, "segment", "os", config) as (address, hook),
        Connection(*address) as one,
        Connection(*address) as other,
    ):
        if acls:
            assert acl_admin.create(one, acls) == [None] * len(acls)
        requests = Requests(one, other)
        return {name: counted(hook, SERIES[name][0](requests)) for name in RIGHTS}


def own_calls(counted: Counted) -> float:
    """Python calls for a request without those of trio, which differ from run to run."""
    return sum(calls for name, calls in counted.calls.items() if ".py:" in name and "trio/" not in name) / (
        counted.requests
    )


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mapping[str, Counted], Mapping[str, Counted]]:
    home = tmp_path_factory.mktemp("counted")
    return counts(home / "plain", []), counts(home / "authorized", entries())


@pytest.mark.parametrize("name", RIGHTS)
def test_a_right_costs_one_look_up(
    both: tuple[Mapping[str, Counted], Mapping[str, Counted]], name: str
) -> None:
    plain, authorized = (each[name] for each in both)
    asked = authorized.calls["kbroker/security/rights.py:Rights.allows"] / authorized.requests
    assert asked <= RIGHTS[name]
    assert not any("authorizer.py" in call for call in authorized.calls), (
        "the entries are not looked at again"
    )
    grown = own_calls(authorized) - own_calls(plain)
    assert grown <= CALLS * RIGHTS[name] + 0.2, authorized.most(40)
    for field in ("writes", "syncs", "sends", "receives", "encodes"):
        assert getattr(authorized.work, field) <= getattr(plain.work, field) + 0.05, field
