"""Judges requests of hostile sizes by counted work: the longest turn of the broker's loop, and the
most memory that the process has beyond what it had, while a request is answered.

    python -m tests.server.hostile_judge metadata fetch --rows 200000
        print what requests to these APIs come to, with so many rows
    python -m tests.server.hostile_judge --state groups --rows 20000
        print what requests come to that ask for much stored state; without names: all of it
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kbroker.api import APIS, Api
from kbroker.client.rpc import Connection
from kbroker.client.unreachable import ConnectionClosed
from tests.server.hostile_requests import Shape, frame_of, shapes
from tests.server.longest_turn import Turns, measured_broker
from tests.server.numeric_fields import REQUESTS, Values, World

TIMEOUT_S = 300
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
_WARM_ROWS = 3
_OPTIONS: Values = {"allow_auto_topic_creation": False}
CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "group.share.max.share.sessions": "100000",
    "max.incremental.fetch.session.cache.slots": "10000",
}


class Verdict(NamedTuple):
    """- `answer_bytes`: 0 if the connection was ended
    - `longest`: the work of the longest turn (longest_turn.py)
    - `peak_bytes`: 0 if it was not measured, which makes a broker slow
    """

    name: str
    rows: int
    frame_bytes: int
    answer_bytes: int
    longest: int
    peak_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.name:70} {self.rows:7} rows {self.frame_bytes:9} bytes, answer {self.answer_bytes:9}: "
            f"longest turn {self.longest:8}, peak {self.peak_bytes / (1 << 20):7.1f} MiB"
        )


class Judge:
    def __init__(self, address: tuple[str, int], turns: Turns, *, watches_memory: bool) -> None:
        self._watches_memory = watches_memory
        self._address = address
        self._turns = turns
        self.connection = Connection(*address, timeout_s=TIMEOUT_S)
        self.world = World(self.connection)

    def _reconnect(self) -> None:
        self.connection.close()
        self.connection = self.world.connection = Connection(*self._address, timeout_s=TIMEOUT_S)

    def ask(self, name: str, rows: int, frame: bytes, *, with_memory: bool = True) -> Verdict:
        """Send a request, and measure until its answer is here."""
        with_memory = with_memory and self._watches_memory
        if with_memory:
            tracemalloc.start()
        self._turns.begin()
        try:
            self.connection.send_raw(frame)
            answer_bytes = len(self.connection.read_frame())
        except ConnectionClosed:
            answer_bytes = 0
            self._reconnect()
        self._turns.end()
        peak = 0
        if with_memory:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        return Verdict(name, rows, len(frame), answer_bytes, self._turns.longest, peak)

    def of_shape(self, api: Api, version: int, shape: Shape, *, with_memory: bool = True) -> Verdict:
        self.world.begin_case(api)
        values: Values = {**REQUESTS[api.module](self.world), **_OPTIONS}
        frame = frame_of(api, version, shape.enlarged(values))
        name = f"{api.module} v{version}: {shape.kind}"
        return self.ask(name, shape.rows, frame, with_memory=with_memory)

    def of_api(self, api: Api, version: int, many: int, kind: str = "") -> Iterator[Verdict]:
        """Memory is measured for many rows of the outer arrays, and for long texts."""
        for shape in shapes(api, version, _WARM_ROWS):  # The first imports modules.
            if kind in shape.kind:
                self.of_shape(api, version, shape, with_memory=False)
        for shape in shapes(api, version, many):
            if kind in shape.kind:
                is_outer = shape.kind.startswith("many rows") and "." not in shape.kind
                with_memory = is_outer or shape.kind.startswith("long texts")
                yield self.of_shape(api, version, shape, with_memory=with_memory)


@contextmanager
def judge(
    data_dir: Path, config: Mapping[str, str] | None = None, *, watches_memory: bool = True
) -> Iterator[Judge]:
    with measured_broker(data_dir, {**CONFIG, **(config or {})}) as (address, turns):
        found = Judge(address, turns, watches_memory=watches_memory)
        try:
            yield found
        finally:
            found.connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge requests of hostile sizes.")
    parser.add_argument("apis", nargs="*", metavar="API")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--version", type=int, help="of the API; otherwise the newest")
    parser.add_argument("--turns-only", action="store_true", help="do not measure memory, which is slow")
    parser.add_argument("--state", action="store_true", help="requests that ask for much stored state")
    parser.add_argument("--kind", default="", help="only shapes with this in their name")
    options = parser.parse_args()
    config = AUTHORIZER if options.state else None
    watches = not options.turns_only
    with (
        tempfile.TemporaryDirectory() as home,
        judge(Path(home) / "data", config, watches_memory=watches) as found,
    ):
        if options.state:
            from tests.server.hostile_state import STATE

            for name in options.apis or STATE:
                for verdict in STATE[name](found, options.rows):
                    print(verdict, flush=True)
        for api in () if options.state else APIS.values():
            if not options.apis or api.module in options.apis:
                for version in {api.last} if options.version is None else {options.version}:
                    for verdict in found.of_api(api, version, options.rows, options.kind):
                        print(verdict, flush=True)


if __name__ == "__main__":
    sys.exit(main())
