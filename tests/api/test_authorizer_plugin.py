"""An authorizer from an entry point: the example of docs/security.md, and ones that are none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kbroker import plugins
from kbroker.errors import ErrorCode, OperatorError
from kbroker.security.acls import Operation, ResourceType
from kbroker.settings.altering import BrokerConfig
from tests.api.authorization_world import World
from tests.api.conftest import Client, Connect
from tests.test_plugins import install

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
CONFIG = {"authorizer.class.name": "own-topics"}


@pytest.fixture
def plugin_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "plugins"
    monkeypatch.syspath_prepend(str(folder))
    return folder


def put(directory: Path, name: str, module: str) -> None:
    install(directory, name, group=plugins.AUTHORIZER, engine="own-topics", module=module)


def world_of(client: Client) -> World:
    return World(client, None)  # type: ignore[arg-type]


async def test_the_example_decides(connect: Connect, plugin_directory: Path) -> None:
    put(plugin_directory, "own_topics", EXAMPLE + "\n\nFACTORY = make\n")
    async with connect(config=CONFIG) as client:
        bob = world_of(client).client_of("bob")
        assert await bob.create_topic("bob-orders")
        counts = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
        answer = await bob.call(
            "create_topics", 7, topics=[{"name": "orders", **counts}], validate_only=False
        )
        assert answer.topics[0].error_code == 0, "it allows everything on the cluster"
        answer = await bob.call("delete_records", 2, topics=[_records("orders"), _records("bob-orders")])
        codes = [topic.partitions[0].error_code for topic in answer.topics]
        assert codes == [ErrorCode.topic_authorization_failed, 0]
        acls = await client.call(
            "describe_acls", 3, resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1,
            principal_filter=None, host_filter=None, operation=1, permission_type=1,
        )  # fmt: skip
        assert acls.error_code == ErrorCode.security_disabled


def _records(name: str) -> dict[str, object]:
    return {"name": name, "partitions": [{"partition_index": 0, "offset": 0}]}


CHANGING = """
from kbroker.security.spi import Authorizer

class Switch(Authorizer):
    is_open = False
    def __init__(self, context):
        self.context = context
    def allows(self, principal, host, operation, kind, name):
        return self.is_open and host == "10.0.0.1"
    def allows_any(self, principal, host, operation, kind):
        return self.is_open

FACTORY = Switch
"""


async def test_an_authorizer_may_change_its_mind(connect: Connect, plugin_directory: Path) -> None:
    put(plugin_directory, "switch", CHANGING)
    async with connect(config=CONFIG) as client:
        acls = client.broker.acls
        rights = acls.rights_of(client.connection.principal, "10.0.0.1")
        assert rights is not None
        asked = Operation.READ, ResourceType.TOPIC, "t"
        assert not rights.allows(*asked)
        acls._authorizer.is_open = True  # type: ignore[union-attr]
        assert not rights.allows(*asked), "remembered"
        version = acls.version
        acls._authorizer.context.changed()  # type: ignore[union-attr]
        assert rights.allows(*asked)
        assert rights.allows_any_topic(Operation.WRITE)
        assert acls.version > version


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        (
            "nothing",
            "FACTORY = lambda context: object()",
            "authorizer.class.name=own-topics: it returns a value of the type object, and not an Authorizer",
        ),
        (
            "half",
            "from kbroker.security.spi import Authorizer\nclass FACTORY(Authorizer):\n"
            "    def __init__(self, context): pass\n",
            "a plugin is incomplete: .*abstract",
        ),
        ("bad", "raise RuntimeError('broken')", "authorizer 'own-topics' of bad 1.2 cannot be loaded"),
    ],
)
async def test_a_plugin_that_is_none_stops_the_start(
    name: str, module: str, message: str, connect: Connect, plugin_directory: Path
) -> None:
    put(plugin_directory, name, module)
    with pytest.raises(OperatorError, match=message):
        async with connect(config=CONFIG):
            pass


async def test_an_unknown_name_stops_the_start_before_the_directory_is_made(
    connect: Connect, tmp_path: Path
) -> None:
    with pytest.raises(OperatorError, match="unknown authorizer 'floppy'"):
        async with connect("segment", {"authorizer.class.name": "floppy"}):
            pass
    assert not (tmp_path / "segment").exists()


@pytest.mark.parametrize(
    ("name", "value"), [("super.users", "User:a"), ("allow.everyone.if.no.acl.found", "true")]
)
def test_settings_of_an_authorizer_need_one(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{name} has no effect unless authorizer.class.name is set, too"):
        BrokerConfig({name: value})
    BrokerConfig({name: value, "authorizer.class.name": "x"})


def test_super_users_have_a_type() -> None:
    with pytest.raises(OperatorError, match="'bob' is not TYPE:NAME, such as User:alice"):
        BrokerConfig.load(["authorizer.class.name=x", "super.users=User:a;bob"])
