"""Bounds and defaults of share groups, altered on a running broker: in force at once, persistent,
and always consistent."""

from __future__ import annotations

import re

import pytest
import trio

from kbroker.broker.queues.lock_reports import LockReports
from kbroker.errors import ErrorCode
from kbroker.share.statistics import RanOut
from tests.api.conftest import Connect
from tests.api.test_alter_configs import ASSIGNMENT_INTERVAL, BROKER, DELETE, GROUP, OK, alter, resource
from tests.api.test_describe_configs import describe

MOST, DEFAULT = (f"group.share.{end}record.lock.duration.ms" for end in ("max.", ""))
LOCK = "share.record.lock.duration.ms"


async def test_bounds_of_share_groups_are_altered_at_once_and_for_good(
    connect: Connect, every_engine: str
) -> None:  # CFG-11, CFG-23
    async with connect(every_engine, config={MOST: "50000"}) as client:
        assert (await alter(client, resource(GROUP, "g", (LOCK, "300000"))))[0][0] is ErrorCode.invalid_config
        assert await alter(client, resource(BROKER, "1", (MOST, "300000"))) == [OK]
        assert await alter(client, resource(GROUP, "g", (LOCK, "300000"))) == [OK]
        assert client.broker.configs.share_settings("g").lock_duration_ms == 300_000
    async with connect(every_engine, config={MOST: "50000"}) as client:
        assert client.broker.configs.share_settings("g").lock_duration_ms == 300_000, (
            "what was altered wins over what is given"
        )
        rows = (await describe(client, BROKER, "1", (MOST,))).configs
        assert [(row.value, row.config_source, row.read_only) for row in rows] == [("300000", 2, False)]
        assert await alter(client, resource(BROKER, "1", (MOST, DELETE, None))) == [OK]
        assert client.broker.configs.share_settings("g").lock_duration_ms == 50_000
        assert client.broker.configs.stored_group("g") == {LOCK: "300000"}


async def test_a_lowered_bound_clamps_groups_that_are_at_work(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:  # CFG-24
    async with connect() as client:
        assert await alter(
            client, resource(GROUP, "g", (LOCK, "60000")), resource(GROUP, "within", (LOCK, "20000"))
        ) == [OK, OK]
        assert await alter(client, resource(BROKER, "", (MOST, "40000"))) == [OK]
        settings = client.broker.configs.share_settings
        assert [settings(group).lock_duration_ms for group in ("g", "within", "other")] == [
            40_000,
            20_000,
            30_000,
        ]
        clamped = [
            record.getMessage()
            for record in caplog.records
            if "out of the broker's bounds" in record.getMessage()
        ]
        assert clamped == [f"group g: {LOCK}=60000 is out of the broker's bounds, 40000 applies"]
        (row,) = (await describe(client, GROUP, "g", (LOCK,))).configs
        assert (row.value, row.synonyms[0].value) == ("40000", "60000")
        assert await alter(client, resource(BROKER, "", (ASSIGNMENT_INTERVAL, "7"), (MOST, "40000"))) == [OK]
        assert caplog.text.count("out of the broker's bounds") == 1, "it was said before"
        assert await alter(client, resource(BROKER, "", (MOST, DELETE, None))) == [OK]
        assert settings("g").lock_duration_ms == 60_000


async def test_bounds_that_make_a_timeout_too_short_are_reported(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    session, beat = "session.timeout.ms", "heartbeat.interval.ms"
    async with connect() as client:
        assert await alter(client, resource(GROUP, "g", (f"share.{session}", "45000"))) == [OK]
        wide = [(f"group.share.{end}{beat}", "50000") for end in ("", "min.", "max.")]
        assert await alter(client, resource(BROKER, "1", *wide, (f"group.share.{session}", "60000"))) == [OK]
        (row,) = (await describe(client, GROUP, "g", (f"share.{session}",))).configs
        assert row.value == "45000"
        assert caplog.text.count("group g: ") == 1
        assert f"share.{session} (45000) must be greater than share.{beat} (50000)" in caplog.text


async def test_broker_settings_that_contradict_each_other_are_refused(connect: Connect) -> None:  # CFG-10
    async with connect() as client:
        ((code, message),) = await alter(client, resource(BROKER, "1", (DEFAULT, "70000")))
        assert code is ErrorCode.invalid_request
        assert message == (
            f"{MOST} (60000) must be greater than or equal to {DEFAULT} (70000): "
            "raise the one or lower the other, both in one request where both are altered"
        )
        assert client.broker.config[DEFAULT] == 30_000
        assert await alter(client, resource(BROKER, "1", (DEFAULT, "70000"), (MOST, "70000"))) == [OK]
        assert client.broker.configs.share_settings("any").lock_duration_ms == 70_000
        ((code, message),) = await alter(client, resource(BROKER, "1", (MOST, DELETE, None)))
        assert code is ErrorCode.invalid_request
        assert message is not None
        assert f"{DEFAULT} (70000)" in message
        for value in ("29999", "3600001"):
            assert [code for code, _ in await alter(client, resource(BROKER, "1", (MOST, value)))] == [
                ErrorCode.invalid_request
            ]


async def test_a_group_beyond_a_lowered_bound_can_be_altered(connect: Connect, every_engine: str) -> None:
    """Its other settings can be altered freely; the one beyond the bound only to a value within."""
    limit, locks, beat, session = (
        f"share.{name}"
        for name in (
            "delivery.count.limit",
            "partition.max.record.locks",
            "heartbeat.interval.ms",
            "session.timeout.ms",
        )
    )
    async with connect(every_engine) as client:
        assert await alter(
            client, resource(GROUP, "g", (LOCK, "60000"), (beat, "10000"), (locks, "500"))
        ) == [OK]
        narrow = (MOST, "40000"), (f"group.share.max.{session.removeprefix('share.')}", "45000")
        assert await alter(client, resource(BROKER, "1", *narrow)) == [OK]
        assert await alter(client, resource(GROUP, "g", (limit, "6"), (locks, DELETE, None))) == [OK]
        assert client.broker.configs.stored_group("g") == {LOCK: "60000", beat: "10000", limit: "6"}
        settings = client.broker.configs.share_settings("g")
        assert (settings.lock_duration_ms, settings.delivery_count_limit) == (40_000, 6)
        for refused in ((LOCK, "50000"), (LOCK, "60000"), (session, "46000")):
            ((code, message),) = await alter(client, resource(GROUP, "g", (limit, "7"), refused))
            assert code is ErrorCode.invalid_config, refused
            assert f"{refused[0]} must be less than or equal to group.share.max." in (message or "")
        # Related settings are validated together although only one of the two is altered.
        least = f"group.share.min.{session.removeprefix('share.')}"
        assert await alter(client, resource(BROKER, "1", *narrow, (least, "5000"))) == [OK]
        ((code, message),) = await alter(client, resource(GROUP, "g", (session, "9000")))
        assert code is ErrorCode.invalid_config
        assert f"{session} (9000) must be greater than {beat} (10000)" in (message or "")
        assert client.broker.configs.stored_group("g")[limit] == "6"
        assert await alter(client, resource(GROUP, "g", (LOCK, "40000"))) == [OK]


async def test_a_timeout_that_the_broker_made_too_short_keeps_nothing_from_being_altered(
    connect: Connect,
) -> None:
    session, beat, limit = "session.timeout.ms", "heartbeat.interval.ms", "share.delivery.count.limit"
    async with connect() as client:
        assert await alter(client, resource(GROUP, "g", (f"share.{session}", "45000"))) == [OK]
        wide = [(f"group.share.{end}{beat}", "50000") for end in ("", "min.", "max.")]
        assert await alter(client, resource(BROKER, "1", *wide, (f"group.share.{session}", "60000"))) == [OK]
        assert await alter(client, resource(GROUP, "g", (limit, "6"))) == [OK]
        ((code, message),) = await alter(client, resource(GROUP, "g", (f"share.{session}", "46000")))
        assert code is ErrorCode.invalid_config
        assert "must be greater than" in (message or "")
        assert await alter(client, resource(GROUP, "g", (f"share.{session}", DELETE, None))) == [OK]


async def test_what_lock_reports_advise_is_accepted(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """The advice is followed until the lock has its longest duration: the bound is reached, raised,
    and finally at its own limit."""
    advised = re.compile(r"kbroker configs set --(group|broker) (\S+) (\S+)=(\d+)")
    kinds = {"group": GROUP, "broker": BROKER}
    steps = []
    async with connect(config={MOST: "50000"}) as client:
        reports = LockReports(client.broker.configs.share_settings, client.broker.config)
        while True:
            caplog.clear()
            reports.ran_out("g", RanOut(1, 0, 0))
            with trio.CancelScope() as ended:
                ended.cancel()
                await reports.run()
            commands = advised.findall(caplog.text)
            if not commands:
                break
            for kind, name, setting, value in commands:
                assert await alter(client, resource(kinds[kind], name, (setting, value))) == [OK], caplog.text
                steps.append((setting, int(value)))
            assert client.broker.configs.share_settings("g").lock_duration_ms == steps[-1][1]
    raised = [(setting, value) for value in (100_000, 200_000, 400_000, 800_000) for setting in (MOST, LOCK)]
    assert steps[:9] == [(LOCK, 50_000), *raised]
    assert steps[-2:] == [(MOST, 3_600_000), (LOCK, 3_600_000)]
    assert "if its consumers are at work they need fewer records a poll (max.poll.records)" in caplog.text
