"""Topics and share groups that are parts of queues: why not to delete one alone."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import TYPE_CHECKING

from kbroker.client.queues.settings import counted, look, names

if TYPE_CHECKING:
    from kbroker.client.rpc import Connection


def why_not_to_delete(connection: Connection, wanted: Collection[str]) -> dict[str, str]:
    """Of these topics or share groups, those that should not be deleted alone, each with the
    reason: it is part of a queue that has unfinished jobs."""
    from kbroker.client.queues.counts import unfinished_jobs

    reasons = {}
    for name in set(wanted).intersection(names(connection)):
        queue = look(connection, name)
        if queue.is_whole and (unfinished := unfinished_jobs(connection, queue)):
            reasons[name] = (
                f"it is part of queue {name}, which has {counted(unfinished, 'unfinished job')}: "
                f"`kbroker queues delete {shlex.quote(name)}` deletes the queue, --force only this part"
            )
    return reasons
