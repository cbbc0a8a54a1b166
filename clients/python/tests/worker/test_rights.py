"""Senders and workers whose users lack rights: what cannot be read is not taken for off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clients.python.tests.worker.queues import QUICK
from kbroker.cli import run
from kbroker.cli.exits import OK
from kbroker.testing.broker import RunningBroker, open_test_broker
from kbroker_client.errors import ErrorCode, KafkaError
from kbroker_client.security import Security
from kbroker_client.worker import App

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def secured() -> Iterator[RunningBroker]:
    with open_test_broker(storage="memory", protocol="SASL_PLAINTEXT") as broker:
        broker.create_queue("jobs", {**QUICK, "share.delivery.count.limit": "9"})
        for user in ("shop", "worker"):
            broker.create_user(user, f"password of {user}")
        yield broker


def grant(broker: RunningBroker, line: str) -> None:
    place = ["-b", broker.bootstrap, "--command-config", str(broker.command_config())]
    assert run(["acls", "add", *line.split(), *place]) == OK


def app_of(broker: RunningBroker, user: str) -> App:
    return App(broker.bootstrap, security=Security(username=user, password=f"password of {user}"))


async def test_a_sender_of_delayed_jobs(secured: RunningBroker, anyio_backend: str) -> None:
    if anyio_backend == "asyncio":
        grant(secured, "--user shop --topic jobs --operation write")
    else:
        run(["acls", "remove", "--user", "shop", "--group", "jobs", "--yes", "-b", secured.bootstrap,
             "--command-config", str(secured.command_config())])  # fmt: skip
    app = app_of(secured, "shop")

    @app.task(queue="jobs")
    async def task(payload: object) -> None: ...

    async with app:
        await task.send(1)
        with pytest.raises(KafkaError) as refused:
            await task.send(1, delay=60)
        assert refused.value.code is ErrorCode.group_authorization_failed
        assert refused.value.message == (
            "the settings of group jobs cannot be read: this user lacks DESCRIBE_CONFIGS on group jobs: "
            "`kbroker acls add --user NAME --group jobs --operation describe-configs` grants it"
        )
        grant(secured, "--sender --user shop --topic jobs")
        await task.send(1, delay=60)


async def test_a_worker_that_may_not_read_the_settings(
    secured: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Its queue delivers a job 9 times, the broker's default is 5."""
    grant(secured, "--worker --user worker --topic jobs")
    app = app_of(secured, "worker")

    @app.task(queue="jobs", retries=7)
    async def task(payload: object) -> None: ...

    security = Security(username="worker", password="password of worker")
    async with app.testing(secured.bootstrap, security=security):
        pass
    assert "are not compared with its queue: the settings of group jobs cannot be read" in caplog.text
    assert "--group jobs --operation describe-configs` grants it" in caplog.text
