"""The text of a scrape: prometheus-client's own encoders, given a little at a time so that no step
takes long.

The library chooses the encoder by the Accept header: the classic text format or OpenMetrics.
Nothing is compressed: the reader is usually on the same machine, and the broker's time is dearer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from itertools import chain
from time import perf_counter
from typing import NamedTuple

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from kbroker.broker.broker import Broker
from kbroker.metrics_export.broker_numbers import add_broker
from kbroker.metrics_export.consumer_numbers import add_consumer_groups
from kbroker.metrics_export.scrape import Scrape, ScrapeTurns
from kbroker.metrics_export.share_numbers import SharePartitionNumbers, add_groups

_END = b"# EOF\n"
"""Of an OpenMetrics text, after each piece of it that the library makes."""


class Exposition(NamedTuple):
    """The body of an answer, in pieces of some ten kilobytes."""

    content_type: str
    pieces: AsyncGenerator[bytes, None]


class MetricsExport:
    """One for the life of the broker; scrapes may overlap, and take turns then."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._share_partitions = SharePartitionNumbers(broker)
        self._turns = ScrapeTurns()
        self._process = ProcessCollector(registry=None)

    async def scrape(self, accept: str) -> Exposition:
        """Gather everything, then give out the text while it is being made."""
        began = perf_counter()
        scrape = Scrape(self._turns)
        await add_broker(scrape, self._broker)
        await add_consumer_groups(scrape, self._broker)
        await add_groups(scrape, self._broker)
        await self._share_partitions.add(scrape)
        scrape.add("kbroker_scrape_seconds", perf_counter() - began)
        encoder, content_type = choose_encoder(accept)
        return Exposition(content_type, _text(scrape, self._process.collect(), encoder))


class _Registry:
    """What the library's encoders take: something that gives metrics."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        yield self._metric


async def _text(
    scrape: Scrape, process: Iterable[Metric], encoder: Callable[[_Registry], bytes]
) -> AsyncGenerator[bytes, None]:
    end = b""
    for metric, is_first in chain(scrape.pieces(), ((metric, True) for metric in process)):
        text = encoder(_Registry(metric))
        if text.endswith(_END):
            text, end = text.removesuffix(_END), _END
        yield text if is_first else _without_head(text)
        await scrape.pace.rest()
    yield end


def _without_head(text: bytes) -> bytes:
    """HELP and TYPE stand before the first sample of a metric, and nowhere else."""
    while text.startswith(b"#"):
        text = text.partition(b"\n")[2]
    return text
