"""The form of known differences between the outputs of a tool at the two brokers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple


class Known(NamedTuple):
    chapter: str
    steps: str
    """Names of steps, with wildcards."""
    why: str
    theirs: tuple[re.Pattern[str], ...]
    """Whole lines that only Kafka's output has."""
    ours: tuple[re.Pattern[str], ...]


def known(chapter: str, steps: str, why: str, theirs: Iterable[str] = (), ours: Iterable[str] = ()) -> Known:
    """With regular expressions of whole lines. Each must match a line at least once in a run."""
    return Known(chapter, steps, why, *(tuple(map(re.compile, each)) for each in (theirs, ours)))


ADVICE = "kbroker's message also says what to do, or that it has no such setting"
WORDING = "the message has other words; the code is the same"
EFFECT = "kbroker has these settings without effect, so they are no defaults of the broker"
ONE_NODE = "kbroker is alone: it has no controllers, no other brokers and no directories to choose from"
