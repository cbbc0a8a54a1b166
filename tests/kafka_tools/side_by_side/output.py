"""The output of a tool without what differs from run to run: ports, ids, times and widths."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from tests.kafka_tools.java import Ended

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_ID = r"[\w-]{22}"
_RULES: Sequence[tuple[str, str]] = (
    (r"^\[[\d: ,-]+\] ", "[time] "),
    (_UUID, "UUID"),
    (rf"(?<= ){_ID}(?= +/)", "MEMBER"),
    (rf"\b(topic ?id:?|id:) {_ID}(?![\w-])", r"\1 ID"),
    (r"\b1[789]\d{11}\b", "MS"),
    (r"20\d\d-\d\d-\d\d[T ][\d:.,]+Z?", "TIME"),
    (r"\d+ ms ago", "MS ago"),
    (r"(Ongoing\s+\d+\s+MS\s+)\d+", r"\1MS"),
    (r"console-(share-)?consumer-\d+", "GROUP"),
    (r"(Epoch: )\d+$", r"\1N"),
    (r"/(tmp|dev/shm)/[^\s\",]+", "PATH"),
    (r"\[?(Ljava|java)\.[\w.]+[;@][\w@]*", "OBJECT"),
    (r"\s+", " "),
)


_SETS = re.compile(r"((?:SCRAM|Quota).* are |ResourceType \w+ only supports operations \[)([^]]*)")
"""Lists in the order of a hash table, which may change with each process."""


def lines(ended: Ended, names: Mapping[str, str], measured: bool) -> list[str]:
    """All lines of both streams, without stack traces, then the exit code. `names`: further texts,
    and what to put in their place. `measured`: numbers are results of measurements."""
    found = []
    for line in [*ended.lines, *ended.errors.splitlines()]:
        if re.match(r"\s+at |\s*\.\.\. \d+ more", line) or not line.strip():
            continue
        if line.startswith("{"):
            line = _event(line)
        line = _SETS.sub(lambda found: found[1] + ", ".join(sorted(found[2].split(", "))), line)
        for text, name in names.items():
            line = line.replace(text, name)
        for pattern, name in _RULES:
            line = re.sub(pattern, name, line, flags=re.IGNORECASE)
        found.append(re.sub(r"\d[\d.E-]*", "NUMBER", line.strip()) if measured else line.strip())
    return [*found, f"exit code {ended.code}"]


def _event(line: str) -> str:
    """An event of a verifiable tool, without measurements. Its offsets come from a set."""
    event = json.loads(line)
    event.pop("avg_throughput", None)
    for each in event.get("partitions", ()):
        if "offsets" in each:
            each["offsets"].sort()
    return json.dumps(event)
