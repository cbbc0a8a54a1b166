"""In-flight windows drawn for a terminal: a strip of characters for each share-partition, and a
table of the records that members hold.

A character stands for one offset, or for several where the window is wider than the terminal; it
then shows the most important state among them. Each state has its own character, so the strip is
readable without colours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, groupby
from typing import Any, NamedTuple, TypeAlias

from rich.text import Text

from kbroker.cli.logging_setup import escaped
from kbroker.cli.output import Cell, table_lines

Document: TypeAlias = dict[str, Any]
"""The broker's response, or a part of it."""


class InflightLook(NamedTuple):
    symbol: str
    style: str


LOOKS = {
    "acquired": InflightLook("#", "yellow"),
    "archiving": InflightLook("!", "bold magenta"),
    "saving": InflightLook("~", "blue"),
    "available": InflightLook("o", "cyan"),
    "waiting": InflightLook(":", "cyan"),
    "archived": InflightLook("x", "red"),
    "acknowledged": InflightLook("+", "green"),
    "gap": InflightLook("_", "dim"),
}
"""The most important state comes first."""

_RANKS = {state: rank for rank, state in enumerate(LOOKS)}
_STATES = tuple(LOOKS)
COLUMNS = ("TOPIC", "PARTITION", "OFFSETS", "RANGES", "RECORDS", "DELIVERIES", "CLIENT-ID", "HOST", "LEFT")
MEMBER_COLUMN = "MEMBER-ID"
_LONGEST_CLIENT_ID = 40
_SHORTEST_MEMBER_ID = 4


def draw(document: Document, width: int, *, member_ids: bool = False) -> list[Text]:
    """The lines for one response. `member_ids`: add a column of them."""
    partitions = document["share_partitions"]
    noun = "share-partition" if len(partitions) == 1 else "share-partitions"
    lines = [
        Text(f"group {escaped(document['group'])}: {len(partitions)} {noun} in the broker's memory", "bold")
    ]
    for partition in partitions:
        lines += [Text(), *_partition(partition, width, document["now_ms"])]
    if partitions:
        waits = any(_state(found) == "waiting" for partition in partitions for found in partition["ranges"])
        lines += [Text(), _legend(_STATES if waits else [state for state in _STATES if state != "waiting"])]
    names = _names(partitions)
    held = [row for partition in partitions for row in _held(partition, names)]
    if held:
        columns = (*COLUMNS, MEMBER_COLUMN) if member_ids else COLUMNS
        lines += [Text(), *map(Text, table_lines(columns, [row[: len(columns)] for row in held]))]
    return lines


def _waiting(partition: Document, now_ms: int) -> str:
    number, due_ms = partition.get("parked", 0), partition.get("next_due_ms")
    if not number:
        return ""
    left_s = None if due_ms is None else max(0, due_ms - now_ms) / 1000
    when = "" if left_s is None else ", the next one is due" + (f" in {left_s:,.1f} s" if left_s else "")
    return f", {number} parked{when}"


def _partition(partition: Document, width: int, now_ms: int) -> list[Text]:
    start, end, ranges = partition["start_offset"], partition["end_offset"], partition["ranges"]
    # The start offset may have been set beyond the log's end.
    behind = max(0, partition["log_end_offset"] - (end + 1 if ranges else start))
    name = f"{escaped(partition['topic'])}-{partition['partition']}"
    waiting = _waiting(partition, now_ms)
    if not ranges:
        return [Text(f"{name}  nothing in flight, next offset {start}, {behind} behind it{waiting}")]
    in_flight = end - start + 1
    per_character = -(-in_flight // width)
    scale = "" if per_character == 1 else f", {per_character} offsets a character"
    head = (
        f"{name}  offsets {start} to {end}: {in_flight} of {partition['lock_limit']} in flight, "
        f"{behind} behind them{waiting}{scale}"
    )
    return [Text(head), _strip(ranges, start, in_flight, per_character)]


def _strip(ranges: Sequence[Document], start: int, in_flight: int, per_character: int) -> Text:
    cells = [len(LOOKS)] * -(-in_flight // per_character)
    for found in ranges:
        rank = _RANKS[_state(found)]
        first, last = ((found[name] - start) // per_character for name in ("first_offset", "last_offset"))
        for i in range(first, last + 1):
            cells[i] = min(cells[i], rank)
    strip = Text()
    for rank, run in groupby(cells):
        look = LOOKS[_STATES[rank]]
        strip.append(look.symbol * len(list(run)), look.style)
    return strip


def _state(found: Document) -> str:
    return "saving" if found["saving"] else str(found["state"])


def _legend(states: Iterable[str]) -> Text:
    legend = Text()
    for state in states:
        legend.append(*LOOKS[state])
        legend.append(f" {state}  ")
    legend.rstrip()
    return legend


def _all(partition: Document) -> list[Document]:
    """The ranges of the window and the parked ones, which brokers of earlier versions do not
    report."""
    return [*partition["ranges"], *partition.get("parked_ranges", ())]


def _names(partitions: Sequence[Document]) -> dict[str, str]:
    """Member id -> name: the client id, or the member id if there is none. Where clients of one
    host share a client id, the shortest distinct prefix of the member id is added."""
    holders: dict[tuple[str, str | None], dict[str, Document]] = {}
    for found in (
        each for partition in partitions for each in _all(partition) if each["member_id"] is not None
    ):
        key = (found.get("client_id") or "", found.get("client_host"))
        holders.setdefault(key, {})[found["member_id"]] = found
    names = {}
    for (client_id, _), members in holders.items():
        length = next(
            n for n in count(_SHORTEST_MEMBER_ID) if len({member[:n] for member in members}) == len(members)
        )
        for member, found in members.items():
            name = _shortened(client_id) or member
            alike = f" ({member[:length]})" if client_id and len(members) > 1 else ""
            names[member] = name + alike + (", left the group" if found.get("in_group") is False else "")
    return names


def _shortened(client_id: str) -> str:
    return client_id if len(client_id) <= _LONGEST_CLIENT_ID else client_id[: _LONGEST_CLIENT_ID - 1] + "…"


def _held(partition: Document, names: Mapping[str, str]) -> Iterator[tuple[Cell, ...]]:
    """One row for the records that a member holds with the same lock end and delivery count. That
    is mostly one fetch, less the records acknowledged since."""
    rows: dict[tuple[Any, ...], list[Document]] = {}
    for found in _all(partition):
        if _state(found) == "acquired":
            rows.setdefault((found["delivery_count"], found["member_id"], found["lock_ms_left"]), []).append(
                found
            )
    for (deliveries, holder, left_ms), ranges in rows.items():
        first, last = ranges[0]["first_offset"], ranges[-1]["last_offset"]
        offsets = str(first) if first == last else f"{first}-{last}"
        records = sum(found["last_offset"] - found["first_offset"] + 1 for found in ranges)
        left = None if left_ms is None else f"{left_ms / 1000:.1f} s"
        name, host = names.get(holder), ranges[0].get("client_host")
        yield (
            partition["topic"],
            partition["partition"],
            offsets,
            len(ranges),
            records,
            deliveries,
            name,
            host,
            left,
            holder,
        )
