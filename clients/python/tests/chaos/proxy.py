"""A bad network between clients and a broker, in a process of its own.

    python -m clients.python.tests.chaos.proxy PORT BROKER_PORT SEED STATISTICS

It knows frames, so it can lose exactly an answer: the broker has carried out the request, and the
client cannot know. Connections are cut in the middle of requests and answers as well, some links
are slow, and frames are held up for longer than locks last. SIGUSR1 ends the faults. SIGTERM ends
the process; what it did is then in the file STATISTICS.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import struct
import sys
from collections import Counter
from enum import Enum
from pathlib import Path

from kbroker.client.rpc import API_KEYS

_SIZE = struct.Struct(">i")
_KEY = struct.Struct(">h")
_NAMES = {key: name for name, key in API_KEYS.items()}
SLOW_LINKS = 0.3
LATENCY_S = 0.002, 0.05
BYTES_PER_S = 100_000, 2_000_000
PIECE = 8192
HELD_UP, HELD_UP_S = 0.01, (0.2, 2.5)


class Fate(Enum):
    """What happens to a request and its answer."""

    PASSED = "passed"
    TORN_REQUEST = "torn request"
    UNAWAITED = "cut after the request"
    LOST_ANSWER = "lost answer"
    TORN_ANSWER = "torn answer"


WEIGHTS = {
    Fate.PASSED: 1000,
    Fate.TORN_REQUEST: 3,
    Fate.UNAWAITED: 3,
    Fate.LOST_ANSWER: 8,
    Fate.TORN_ANSWER: 3,
}


class Proxy:
    def __init__(self, broker_port: int, seed: int) -> None:
        self.broker_port = broker_port
        self.is_calm = False
        self.done: Counter[str] = Counter()
        self._seed = seed
        self._links = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            broker = await asyncio.open_connection("127.0.0.1", self.broker_port)
        except OSError:
            writer.transport.abort()
            return
        self._links += 1
        link = Link(self, random.Random(f"{self._seed} {self._links}"), (reader, writer), broker)
        await link.run()

    def calm(self) -> None:
        self.is_calm = True


End = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Link:
    """A client's connection. The end of either side ends both."""

    def __init__(self, proxy: Proxy, chance: random.Random, client: End, broker: End) -> None:
        self._proxy, self._chance = proxy, chance
        self._client, self._broker = client, broker
        self._is_slow = chance.random() < SLOW_LINKS
        self._latency_s = chance.uniform(*LATENCY_S)
        self._bytes_per_s = chance.uniform(*BYTES_PER_S)
        self._asked: list[tuple[str, Fate]] = []
        self.count("slow link" if self._is_slow else "fast link")

    def count(self, what: str) -> None:
        self._proxy.done[what] += 1

    async def run(self) -> None:
        ways = [asyncio.create_task(way()) for way in (self._requests, self._answers)]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for _, writer in (self._client, self._broker):
                writer.transport.abort()
            for way in ways:
                way.cancel()
            for result in await asyncio.gather(*ways, return_exceptions=True):
                ends = OSError, asyncio.IncompleteReadError, asyncio.CancelledError
                if isinstance(result, BaseException) and not isinstance(result, ends):
                    raise result

    async def _requests(self) -> None:
        while True:
            frame = await _frame(self._client[0])
            name = _NAMES[_KEY.unpack_from(frame, _SIZE.size)[0]]
            fate = Fate.PASSED
            if not self._proxy.is_calm:
                fate = self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            self._asked.append((name, fate))
            if fate is Fate.TORN_REQUEST:
                frame = frame[: self._chance.randrange(1, len(frame))]
            await self._pass_on(self._broker[1], frame)
            if fate in (Fate.TORN_REQUEST, Fate.UNAWAITED):
                self.count(f"{fate.value} of {name}")
                return

    async def _answers(self) -> None:
        while True:
            frame = await _frame(self._broker[0])
            name, fate = self._asked.pop(0)
            if fate is Fate.LOST_ANSWER:
                self.count(f"{fate.value} of {name}")
                return
            if fate is Fate.TORN_ANSWER:
                frame = frame[: self._chance.randrange(1, len(frame))]
            await self._pass_on(self._client[1], frame)
            self.count("answers")
            if fate is Fate.TORN_ANSWER:
                self.count(f"{fate.value} of {name}")
                return

    async def _pass_on(self, writer: asyncio.StreamWriter, frame: bytes) -> None:
        if not self._proxy.is_calm and self._chance.random() < HELD_UP:
            self.count("held up")
            await asyncio.sleep(self._chance.uniform(*HELD_UP_S))
        if self._is_slow and not self._proxy.is_calm:
            await asyncio.sleep(self._latency_s)
            for start in range(0, len(frame), PIECE):
                piece = frame[start : start + PIECE]
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(len(piece) / self._bytes_per_s)
        else:
            writer.write(frame)
            await writer.drain()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """With its size. Raises IncompleteReadError at the end."""
    size = await reader.readexactly(_SIZE.size)
    return size + await reader.readexactly(_SIZE.unpack(size)[0])


async def main(port: int, broker_port: int, seed: int) -> Counter[str]:
    """Until SIGTERM. Returns what was done."""
    proxy, ended = Proxy(broker_port, seed), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    loop.add_signal_handler(signal.SIGUSR1, proxy.calm)
    await asyncio.start_server(proxy.serve, "127.0.0.1", port, limit=1 << 26)
    print("ready", flush=True)
    await ended.wait()
    return proxy.done


if __name__ == "__main__":
    own_port, servers_port, seed_text, path = sys.argv[1:]
    done = asyncio.run(main(int(own_port), int(servers_port), int(seed_text)))
    Path(path).write_text(json.dumps(done, indent=2))
