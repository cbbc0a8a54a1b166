"""Settings of the broker's process: threads, open files, garbage collection."""

from __future__ import annotations

import gc
import logging
import resource
import sys

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005


def prepare_process() -> None:
    """Let threads take turns more often, and allow as many open files as the system does. Call it
    before a store is opened, since engines size their caches of files by that limit."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:
        logger.warning("the limit of open files cannot be raised: %s", error)


def collect_seldom() -> None:
    """Collect garbage less often until `settle_memory`. Importing makes little of it: at Python's
    thresholds, collections take a twentieth of a start."""
    gc.set_threshold(10_000, 10, 50)


def settle_memory() -> None:
    """Exempt the objects of the start from garbage collection, and collect less often.

    Objects of the start live as long as the broker. Most later ones (share state, sessions) live
    long, too, and form no cycles. With Python's default thresholds, collections take half of the
    time in which a start loads thousands of share-partitions."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(2000, 10, 50)
