"""Rights at the admin endpoint: every action of the table as every kind of client."""

from __future__ import annotations

import re
import stat
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.api import ADMIN_ACTIONS, NEEDS, AdminAction
from kbroker.security.acls import CLUSTER_NAME, ResourceType
from kbroker.security.principals import user
from kbroker.server import admin_access
from kbroker.server.admin_access import CSRF_HEADER, AdminSessions
from kbroker.server.admin_actions import FORMS, AdminActions
from kbroker.storage import admin_token
from tests.server.admin_world import ELSEWHERE, LOCAL, AdminWorld, Reply, admin_world, basic

AUTHORIZER = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super_users": "User:root",
}
NEEDY = [action for action in ADMIN_ACTIONS.values() if NEEDS[action.name]]
TARGETS = {
    "metrics": "/metrics",
    "in_flight": "/v1/share-groups/workers/inflight?topic=orders",
    "users": "/v1/users",
    "disconnect": "/v1/users/alice/disconnect",
}
RESOURCES = {ResourceType.CLUSTER: CLUSTER_NAME, ResourceType.GROUP: "workers", ResourceType.TOPIC: "orders"}


async def ask(world: AdminWorld, action: AdminAction, **more: Any) -> Reply:
    return await world.ask(TARGETS[action.name], action.method, **more)


def is_served(reply: Reply) -> bool:
    """Either the answer, or that the group does not exist, which only a client with its right
    learns."""
    return reply.status == 200 or (reply.status == 404 and "no share group" in reply.text)


def test_every_action_has_a_row_and_a_request_here() -> None:
    assert {action.name for action in NEEDY} == TARGETS.keys()
    for action in ADMIN_ACTIONS.values():
        assert action.method in ("GET", "POST")
        assert not (action.method == "POST" and action.is_open) or action.name in FORMS


async def test_an_action_without_a_row_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with admin_world(tmp_path) as world:
        for removed in list(ADMIN_ACTIONS):
            with monkeypatch.context() as patch:
                patch.delitem(ADMIN_ACTIONS, removed)
                with pytest.raises(LookupError, match=removed):
                    AdminWorld(world.broker)
        with pytest.raises(LookupError, match="needs a row"):
            AdminActions(world.access, {"shut_down": world.actions})  # type: ignore[dict-item]
        with monkeypatch.context() as patch:
            patch.setitem(ADMIN_ACTIONS, "disconnect", ADMIN_ACTIONS["disconnect"]._replace(is_open=True))
            with pytest.raises(LookupError, match="needs a log-in"):
                AdminWorld(world.broker)


@pytest.mark.parametrize("action", NEEDY, ids=lambda action: action.name)
async def test_without_an_authorizer(action: AdminAction, tmp_path: Path) -> None:
    async with admin_world(tmp_path) as world:
        for has_users in (False, True):
            if has_users:
                await world.set_user("alice", "secret")
            assert is_served(await ask(world, action)) == action.is_open
            assert (await ask(world, action, peer=ELSEWHERE)).status == 401
            for wrong in (
                basic("alice", "other"),
                basic("", ""),
                "Basic !",
                "Bearer x",
                "Bearer ",
                "Negotiate x",
            ):
                assert (await ask(world, action, authorization=wrong)).status == 401, wrong
        assert is_served(await ask(world, action, peer=ELSEWHERE, authorization=basic("alice", "secret")))


@pytest.mark.parametrize("action", NEEDY, ids=lambda action: action.name)
async def test_with_an_authorizer(action: AdminAction, tmp_path: Path) -> None:
    """RPC-65"""
    async with admin_world(tmp_path, **AUTHORIZER) as world:
        for name in ("alice", "bob", "root"):
            await world.set_user(name, name)
        for peer in (LOCAL, ELSEWHERE):
            assert (await ask(world, action, peer=peer)).status == 401
            refused = await ask(world, action, peer=peer, authorization=basic("alice", "alice"))
            assert (refused.status, "authorization failed" in refused.text) == (403, True)
            assert is_served(await ask(world, action, peer=peer, authorization=basic("root", "root")))
        needs = NEEDS[action.name]
        for operation, kind in needs:
            reply = await ask(world, action, authorization=basic("alice", "alice"))
            assert reply.status == 403, "all of them are needed"
            await world.allow("alice", operation, kind, RESOURCES[kind])
            await world.allow("ANONYMOUS", operation, kind, RESOURCES[kind])
        assert is_served(await ask(world, action, authorization=basic("alice", "alice")))
        assert (await ask(world, action, authorization=basic("bob", "bob"))).status == 403
        anonymous = await ask(world, action, peer=ELSEWHERE)
        assert is_served(anonymous) == action.is_open
        assert is_served(anonymous) or anonymous.status == 401


async def test_a_topic_without_its_right_is_left_out(tmp_path: Path) -> None:
    async with admin_world(tmp_path, **AUTHORIZER) as world:
        await world.set_user("alice", "alice")
        await world.allow("alice", NEEDS["in_flight"][0].operation, ResourceType.GROUP, "workers")
        given = {"authorization": basic("alice", "alice")}
        path = "/v1/share-groups/workers/inflight"
        assert (await world.ask(path, **given)).status == 404
        for topic in ("orders", "absent"):
            reply = await world.ask(f"{path}?topic={topic}", **given)
            assert (reply.status, reply.document) == (403, {"error": "Topic authorization failed."})


# -- the token
# --------------------------------------------------------------------------------------------------


async def test_the_token_of_a_broker_without_users(tmp_path: Path) -> None:
    async with admin_world(tmp_path, **AUTHORIZER) as world:
        path = tmp_path / admin_token.ADMIN_TOKEN
        assert (await world.ask("/")).status == 200
        assert not path.exists(), "nobody needed it yet"
        reply = await world.ask("/v1/users", peer=ELSEWHERE)
        assert (reply.status, reply.headers["www-authenticate"]) == (401, 'Bearer realm="kbroker"')
        assert "admin-token" in reply.text
        assert str(tmp_path) not in reply.text
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        token = path.read_text().strip()
        assert token not in reply.text
        given = {"authorization": f"Bearer {token}"}
        assert (await world.ask("/v1/users", peer=ELSEWHERE, **given)).document == {"users": []}
        renewed = admin_token.renew(tmp_path)
        assert (await world.ask("/v1/users", **given)).status == 401
        assert (await world.ask("/v1/users", authorization=f"bearer {renewed}")).status == 200
        assert (await world.ask("/v1/users", authorization=basic("admin-token", renewed))).status == 401

        await world.set_user("root", "root")
        assert (await world.ask("/v1/users", authorization=f"Bearer {renewed}")).status == 401
        reply = await world.ask("/v1/users")
        assert reply.headers["www-authenticate"] == 'Basic realm="kbroker", charset="UTF-8"'
        assert (
            (await world.ask("/v1/users", sec_fetch_mode="cors"))
            .headers["www-authenticate"]
            .startswith("Bearer")
        )
        reply = await world.ask("/v1/users", authorization=basic("root", "root"))
        row = {"user": "root", "credentials": [{"mechanism": "SCRAM-SHA-256", "iterations": 4096}]}
        assert reply.document == {"users": [row]}


@pytest.mark.parametrize("harm", ["readable", "link", "empty", "folder"])
async def test_a_token_file_that_others_may_have_made_is_not_used(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with admin_world(tmp_path) as world:
        path = tmp_path / admin_token.ADMIN_TOKEN
        text = "a-token-of-more-than-thirty-two-characters"
        if harm == "link":
            (tmp_path / "elsewhere").write_text(text)
            (tmp_path / "elsewhere").chmod(0o600)
            path.symlink_to(tmp_path / "elsewhere")
        elif harm == "folder":
            path.mkdir()
        else:
            path.write_text("" if harm == "empty" else text)
            path.chmod(0o640 if harm == "readable" else 0o600)
        for sent in (text, ""):
            assert (await world.ask("/v1/users", authorization=f"Bearer {sent}")).status == 401
        assert len([each for each in caplog.messages if "the admin endpoint has no token" in each]) == 1
        assert text not in caplog.text


# -- passwords
# --------------------------------------------------------------------------------------------------


async def test_a_password_is_remembered_until_it_changes(tmp_path: Path) -> None:
    async with admin_world(tmp_path) as world:
        await world.set_user("alice", "one")
        checks = world.broker.security.derivations

        async def status(password: str) -> int:
            return (await world.ask("/v1/users", authorization=basic("alice", password))).status

        assert [await status("one") for _ in range(3)] == [200] * 3
        assert checks.statistics().done == 1
        assert [await status("two") for _ in range(2)] == [401] * 2
        assert checks.statistics().done == 3, "wrong ones cost the same each time"
        await world.set_user("alice", "two")
        assert [await status(each) for each in ("one", "two")] == [401, 200]
        await world.delete_user("alice")
        await world.set_user("bob", "bob")
        assert [await status(each) for each in ("one", "two")] == [401] * 2
        metrics = world.broker.metrics.sasl
        assert (metrics.successes["PLAIN"], metrics.failures["PLAIN"]) == (2, 5)


async def test_a_wrong_password_is_answered_late(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"listener_name_admin_connection_failed_authentication_delay_ms": "700"}
    async with admin_world(tmp_path, **settings) as world:
        for authorization in (basic("alice", "canary-wrong"), "Bearer canary-wrong"):
            began = trio.current_time()
            assert (await world.ask("/v1/users", authorization=authorization)).status == 401
            assert trio.current_time() - began >= 0.7
        assert "a log-in of 127.0.0.1 at the admin endpoint failed" in caplog.text
        assert "canary" not in caplog.text
        assert "alice" not in caplog.text


async def test_a_password_that_cannot_be_checked_now_may_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr("kbroker.broker.security.derivations.QUEUED", -1)

    def slow(*_: object) -> bytes:
        assert gate.wait(60)
        return bytes(32)

    async with admin_world(tmp_path) as world, trio.open_nursery() as nursery:
        await world.set_user("alice", "secret")
        monkeypatch.setattr("kbroker.broker.security.derivations.salt_password", slow)
        nursery.start_soon(partial(world.ask, "/v1/users", authorization=basic("alice", "secret")))
        await trio.testing.wait_all_tasks_blocked()
        reply = await world.ask("/v1/users", authorization=basic("alice", "secret"))
        assert reply.status == 503
        assert "too many log-ins" in reply.text
        gate.set()


# -- browsers
# --------------------------------------------------------------------------------------------------

BROWSER = {"accept": "text/html,*/*;q=0.8", "sec_fetch_mode": "navigate"}


async def logged_in(world: AdminWorld, **form: str) -> Reply:
    return await world.ask("/log-in", "POST", form=form, origin="http://localhost", **BROWSER)


async def csrf_of(world: AdminWorld, cookie: str) -> str:
    page = (await world.ask("/", cookie=cookie, **BROWSER)).text
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found is not None, page
    return found[1]


async def test_a_browser_logs_in_and_out(tmp_path: Path) -> None:
    async with admin_world(tmp_path) as world:
        await world.set_user("al<i>ce", "secret")
        reply = await world.ask("/v1/users?x=1", **BROWSER)
        assert (reply.status, reply.headers["location"]) == (303, "/log-in?next=%2Fv1%2Fusers%3Fx%3D1")
        page = await world.ask("/log-in?next=/v1/users", **BROWSER)
        assert 'value="/v1/users"' in page.text
        assert "script" not in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        wrong = await logged_in(world, user="al<i>ce", password="other")
        assert (wrong.status, "set-cookie" in wrong.headers) == (403, False)
        assert "The log-in failed." in wrong.text
        reply = await logged_in(world, user="al<i>ce", password="secret", next="/v1/users")
        assert (reply.status, reply.headers["location"]) == (303, "/v1/users")
        assert re.fullmatch(
            r"kbroker-admin-9644=[\w-]{43}; Path=/; Max-Age=28800; HttpOnly; SameSite=Strict",
            reply.headers["set-cookie"],
        )
        cookie = f"other=1; {reply.cookie}"
        assert (await world.ask("/v1/users", cookie=cookie)).status == 200
        page = await world.ask("/", cookie=cookie, **BROWSER)
        assert "You are al&lt;i&gt;ce." in page.text
        assert reply.cookie.partition("=")[2] not in page.text
        csrf = await csrf_of(world, cookie)
        assert (await world.ask("/log-out", "POST", form={"csrf": "x"}, cookie=cookie)).status == 403
        out = await world.ask("/log-out", "POST", form={"csrf": csrf}, cookie=cookie)
        assert (out.status, "Max-Age=0" in out.headers["set-cookie"]) == (303, True)
        assert (await world.ask("/v1/users", cookie=cookie)).status == 401
        assert len(world.access.sessions) == 0


async def test_a_browser_logs_in_with_the_token(tmp_path: Path) -> None:
    async with admin_world(tmp_path) as world:
        page = await world.ask("/log-in", **BROWSER)
        assert 'name="token"' in page.text
        token = admin_token.read(tmp_path)
        assert (await logged_in(world, token="x")).status == 403
        first = (await logged_in(world, token=f" {token}\n")).cookie
        assert (await world.ask("/v1/users", cookie=first)).status == 200
        token = admin_token.renew(tmp_path)
        assert (await world.ask("/v1/users", cookie=first)).status == 401
        second = (await logged_in(world, token=token)).cookie
        assert (await world.ask("/v1/users", cookie=second)).status == 200
        await world.set_user("alice", "secret")
        assert (await world.ask("/v1/users", cookie=second)).status == 401, "there are users now"


@pytest.mark.parametrize("reason", ["password", "deleted", "disconnected"])
async def test_a_session_ends_with_its_reason(tmp_path: Path, reason: str) -> None:
    async with admin_world(tmp_path) as world:
        for name in ("alice", "bob"):
            await world.set_user(name, "secret")
        cookies = [(await logged_in(world, user=name, password="secret")).cookie for name in ("alice", "bob")]
        if reason == "password":
            await world.set_user("alice", "other")
        elif reason == "deleted":
            await world.delete_user("alice")
        else:
            given = {"authorization": basic("bob", "secret")}
            reply = await world.ask("/v1/users/alice/disconnect", "POST", **given)
            assert reply.document == {"user": "alice", "connections": 0}
        assert [(await world.ask("/v1/users", cookie=each)).status for each in cookies] == [401, 200]


async def test_changes_by_pages_of_other_sites_are_refused(tmp_path: Path) -> None:
    async with admin_world(tmp_path) as world:
        await world.set_user("alice", "secret")
        cookie = (await logged_in(world, user="alice", password="secret")).cookie
        csrf = await csrf_of(world, cookie)
        target = "/v1/users/bob/disconnect"
        own = {"cookie": cookie, CSRF_HEADER.replace("-", "_"): csrf, "host": "localhost:9644"}
        assert (await world.ask(target, "POST", **own)).status == 200
        assert (await world.ask(target, "POST", **own, origin="http://localhost:9644")).status == 200
        assert (await world.ask(target, "POST", **own, sec_fetch_site="same-origin")).status == 200
        for given in (
            {**own, "origin": "http://evil.example"},
            {**own, "origin": "http://localhost:1"},
            {**own, "origin": "null"},
            {**own, "sec_fetch_site": "cross-site"},
            {**own, "sec_fetch_site": "same-site"},
            {**own, "x_csrf_token": ""},
            {**own, "x_csrf_token": "ü"},
            {"authorization": basic("alice", "secret"), "origin": "http://evil.example"},
        ):
            assert (await world.ask(target, "POST", **given)).status == 403, given
        forged = await world.ask(
            "/log-in", "POST", form={"user": "alice", "password": "secret"}, origin="http://evil.example"
        )
        assert forged.status == 403


@pytest.mark.parametrize(
    "place", ["//evil.example", "https://evil.example", "/\\evil.example", "", "/a\r\nb: c"]
)
async def test_the_log_in_leads_to_no_other_site(tmp_path: Path, place: str) -> None:
    async with admin_world(tmp_path) as world:
        await world.set_user("alice", "secret")
        reply = await logged_in(world, user="alice", password="secret", next=place)
        assert (reply.status, reply.headers["location"]) == (303, "/")


async def test_a_form_is_a_form(tmp_path: Path) -> None:
    async with admin_world(tmp_path) as world:
        reply = await world.ask("/log-in", "POST", form={}, content_type="application/json")
        assert reply.status == 415


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_access, "MAX_SESSIONS", 3)
    sessions = AdminSessions()
    values = [sessions.begin(user("alice"), number, 0.0) for number in range(4)]
    assert [sessions.get(value, 0.0) is None for value in values] == [True, False, False, False]
    last = sessions.begin(user("alice"), 4, 10.0)
    ends = admin_access.LIFETIME_S
    assert sessions.get(values[3], ends) is None
    found = sessions.get(last, ends)
    assert found is not None
    assert found.proof == 4
    sessions.begin(user("alice"), 5, ends)
    assert len(sessions) == 2, "those that are over are dropped"
    sessions.end(last)
    assert sessions.get(last, ends) is None
