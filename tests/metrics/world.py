"""A broker for tests of metrics: served on a socket and called directly, with stores that can be
slowed down or broken."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio
from prometheus_client.parser import text_string_to_metric_families

from kbroker.broker.broker import open_broker
from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.options import StartOptions
from kbroker.client.rpc import Connection
from kbroker.metrics_export.exposition import MetricsExport
from kbroker.metrics_export.table import METRICS
from kbroker.server.listener import Door, Server
from kbroker.server.run import bind
from kbroker.settings.altering import BrokerConfig
from tests.api.conftest import Client

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]
"""By the metric's name of the table and by labels, sorted; a histogram's sample is its count, and
its sum is `NAME_sum`."""


async def scrape_text(export: MetricsExport, accept: str = "") -> str:
    exposition = await export.scrape(accept)
    return b"".join([piece async for piece in exposition.pieces]).decode()


def parse(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removesuffix("_count") if family.type == "histogram" else sample.name
            labels = {key: value for key, value in sample.labels.items() if key != "le"}
            if not name.endswith("_bucket"):
                found.setdefault(name, {})[tuple(sorted(labels.items()))] = sample.value
    return found


class World:
    """`seen`: the results of every scrape so far."""

    def __init__(self, client: Client, address: tuple[str, int]) -> None:
        self.client = client
        self.broker = client.broker
        self.address = address
        self.export = MetricsExport(client.broker)
        self.seen: list[Samples] = []

    async def scrape(self) -> Samples:
        self.seen.append(parse(await scrape_text(self.export)))
        return self.seen[-1]

    async def value(self, name: str, **labels: str) -> float:
        """Of one sample; 0 if it is missing."""
        return (await self.scrape()).get(name, {}).get(tuple(sorted(labels.items())), 0)

    async def until(self, name: str, at_least: float = 1) -> None:
        """Wait until the sum over all labels of a metric is large enough; background work takes its
        time."""
        with trio.fail_after(90):
            while total(await self.scrape(), name) < at_least:  # noqa: ASYNC110 - a scrape is all there is to wait for
                await trio.sleep(0.02)

    async def over_the_wire(self, api: str, version: int, **fields: Any) -> Any:
        """As a client does it: through the server, on a separate connection."""

        def call() -> Any:
            with Connection(*self.address) as connection:
                return connection.call(api, version, **fields)

        return await trio.to_thread.run_sync(call)

    @property
    def moved(self) -> set[str]:
        """Metrics whose sum has changed."""
        return {name for name in METRICS if len({total(samples, name) for samples in self.seen}) > 1}


def total(samples: Samples, name: str) -> float:
    return sum(samples.get(name, {}).values())


@asynccontextmanager
async def opened(path: Path, config: Mapping[str, str] | None = None) -> AsyncIterator[World]:
    options = StartOptions(
        data_dir=path, storage="memory", state_storage="memory", config=BrokerConfig(config or {})
    )
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(bind(("127.0.0.1", 0)))
        broker = await stack.enter_async_context(open_broker(options))
        nursery = await stack.enter_async_context(trio.open_nursery())
        nursery.start_soon(Server(broker).serve, Door(listener))
        yield World(Client(broker, 1001), listener.getsockname()[:2])
        nursery.cancel_scope.cancel()


@contextmanager
def blocked(commits: GroupCommit[Any]) -> Iterator[None]:
    """No commit is durable before the end of the block: its sync takes that long."""
    done, sync = threading.Event(), commits._sync
    commits._sync = done.wait  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        commits._sync = sync  # type: ignore[method-assign]
        done.set()


@contextmanager
def refusing(commits: GroupCommit[Any], error: Exception) -> Iterator[None]:
    """Every write is refused with this error."""

    def refuse(_: object) -> None:
        raise error

    write, commits._write = commits._write, refuse
    try:
        yield
    finally:
        commits._write = write
