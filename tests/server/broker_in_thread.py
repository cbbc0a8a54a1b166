"""A broker in a thread of this process, so that its work can be counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from kbroker.broker.options import Durability, ReadyInfo, StartOptions
from kbroker.server.run import serve
from kbroker.settings.altering import BrokerConfig

_CONFIG = {"kbroker.sync.interval.ms": "60000", "log.retention.check.interval.ms": "600000"}
"""Periodic work, which belongs to no request, is not counted."""


@contextmanager
def broker_in_thread(
    data_dir: Path,
    engine: str,
    durability: Durability,
    config: Mapping[str, str] | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> Iterator[tuple[str, int]]:
    """Its address."""
    ready: list[Any] = []
    is_ready = threading.Event()

    async def run(options: StartOptions) -> None:
        stop = trio.Event()
        ready.extend((trio.lowlevel.current_trio_token(), stop))
        await serve(options, stop)

    def on_ready(info: ReadyInfo) -> None:
        ready.append((info.host, info.port))
        is_ready.set()

    def work() -> None:
        try:
            trio.run(run, options, instruments=instruments)
        except BaseException as error:
            ready.append(error)
            is_ready.set()

    options = StartOptions(
        data_dir=data_dir,
        storage=engine,
        state_storage=engine,
        config=BrokerConfig({**_CONFIG, **(config or {})}),
        listen=("127.0.0.1", 0),
        durability=durability,
        on_ready=on_ready,
    )
    thread = threading.Thread(target=work)
    thread.start()
    is_ready.wait()
    if isinstance(ready[-1], BaseException):
        raise ready[-1]
    token, stop, address = ready
    try:
        yield address
    finally:
        token.run_sync_soon(stop.set)
        thread.join()
    if len(ready) > 3:
        raise ready[3]
