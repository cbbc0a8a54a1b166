"""The actions of the admin endpoint over a broker in this process, called without a socket."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

from kbroker.broker.broker import Broker
from kbroker.broker.security.credentials import Deletion, Upsertion
from kbroker.security.acls import Operation, ResourceType
from kbroker.security.scram import salt_password
from kbroker.server.admin_access import AdminAccess
from kbroker.server.admin_actions import AdminActions
from kbroker.server.admin_forms import AdminForms
from kbroker.server.admin_requests import HttpPeer, HttpRefusal, HttpRequest, refused
from kbroker.server.admin_views import AdminViews
from tests.api.authorization_world import acls
from tests.metrics.world import opened

SALT = b"a salt of 16 byt"
LOCAL = HttpPeer("127.0.0.1", "127.0.0.1", is_local=True)
ELSEWHERE = HttpPeer("10.0.0.7", "10.0.0.1", is_local=False)
PORT = 9644


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def document(self) -> Any:
        return json.loads(self.text)

    @property
    def cookie(self) -> str:
        """As a browser sends it back."""
        return self.headers["set-cookie"].partition(";")[0]


class AdminWorld:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.access = AdminAccess(broker, PORT, None)
        self.actions = AdminActions(self.access, AdminForms(self.access).views(), AdminViews(broker).views())

    async def ask(
        self,
        target: str,
        method: str = "GET",
        peer: HttpPeer = LOCAL,
        form: Mapping[str, str] | None = None,
        **headers: str,
    ) -> Reply:
        """`_` in the name of a header stands for a dash."""
        path, _, query = target.partition("?")
        parts = tuple(part for part in path.split("/") if part)
        named = {"host": "localhost", **{name.replace("_", "-"): text for name, text in headers.items()}}
        if form is not None:
            named.setdefault("content-type", "application/x-www-form-urlencoded")

        async def body() -> bytes:
            return urlencode(form or {}).encode()

        request = HttpRequest(parts, dict(parse_qsl(query)), named, method, target, peer, body)
        try:
            answer = await self.actions(request)
        except HttpRefusal as refusal:
            answer = refused(refusal)
        pieces = (
            answer.body if isinstance(answer.body, bytes) else b"".join([each async for each in answer.body])
        )
        return Reply(answer.status, dict(answer.headers), pieces.decode())

    async def set_user(self, name: str, password: str) -> None:
        salted = salt_password(password.encode(), SALT, 4096, "sha256")
        assert await self.broker.security.credentials.alter([Upsertion(name, 1, 4096, SALT, salted)]) == [
            None
        ]

    async def delete_user(self, name: str) -> None:
        assert await self.broker.security.credentials.alter([Deletion(name, 1)]) == [None]

    async def allow(self, name: str, operation: Operation, kind: ResourceType, *names: str) -> None:
        await self.broker.acls.create(acls(name, operation, kind, names))


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


@asynccontextmanager
async def admin_world(path: Path, **config: str) -> AsyncIterator[AdminWorld]:
    """`_` in the name of a setting stands for a dot. Failed log-ins are answered at once."""
    settings = {"connection.failed.authentication.delay.ms": "0"}
    settings |= {name.replace("_", "."): value for name, value in config.items()}
    async with opened(path, settings) as world:
        yield AdminWorld(world.broker)
