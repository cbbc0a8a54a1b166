"""Clients for tests of the window, in a separate module since other processes import them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from perf.workloads.client_process import Link


def counting(link: Link, arguments: Mapping[str, Any]) -> None:
    """Counts one unit of three bytes every millisecond or so."""
    link.begin()
    link.first()
    while link.running:
        link.count(1, 3)
        link.latency(time.monotonic(), arguments["latency_ms"])
        time.sleep(0.001)
    link.send_report()


def counting_so_many(link: Link, arguments: Mapping[str, Any]) -> None:
    """Counts some units before it waits for the others, some after, and then no more."""
    link.begin()
    link.count(arguments["first"])
    link.first()
    for _ in range(arguments["then"]):
        link.count(1)
    while link.running:
        time.sleep(0.001)
    link.send_report()


def failing(link: Link, arguments: Mapping[str, Any]) -> None:
    link.begin()
    raise ValueError("two\nlines")


def leaving(link: Link, arguments: Mapping[str, Any]) -> None:
    link.begin()
    os._exit(3)


def hanging_at_the_end(link: Link, arguments: Mapping[str, Any]) -> None:
    counting(link, arguments)
    signal.pause()


def hanging_before_its_report(link: Link, arguments: Mapping[str, Any]) -> None:
    link.begin()
    link.first()
    link.count(7)
    signal.pause()


def says_its_pid(link: Link, arguments: Mapping[str, Any]) -> None:
    link.begin()
    link.first()
    print(os.getpid(), flush=True)
    signal.pause()
