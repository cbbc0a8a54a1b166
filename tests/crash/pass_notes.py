"""A broker whose cleaner notes in the history how far it is, and whose passes take small steps. So
a test can kill it in the middle of a pass, and count how often it did. `install` changes the broker
of this process.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from kbroker.broker.compaction import log_pass
from kbroker.broker.compaction.log_pass import LogPass
from tests.crash.worker import History
from tests.judges.compaction_events import PassNoted, Stage

ARGUMENT = "notes-passes"
"""Of the launcher, before the path of the history."""
STEP_BYTES = 4096


def install(path: Path) -> None:
    history = History(path)
    run, clean, copy = LogPass.run, LogPass._clean, LogPass._copy
    replacing: set[int] = set()

    def note(one: Any, stage: Stage) -> None:
        name = f"{one._partition.topic_name}-{one._log.partition}"
        history.write(PassNoted(time.monotonic_ns(), stage, name))

    async def noted_run(self: Any, *args: Any) -> Any:
        note(self, Stage.BEGAN)
        try:
            return await run(self, *args)
        finally:
            note(self, Stage.ENDED)

    async def noted_clean(self: Any, *args: Any) -> None:
        replacing.clear()
        await clean(self, *args)
        if replacing:
            note(self, Stage.REPLACED)

    async def noted_copy(self: Any, *args: Any) -> None:
        """A pass does this once for each segment that it replaces, at first."""
        replacing.add(id(self))
        note(self, Stage.REPLACING)
        await copy(self, *args)

    LogPass.run = noted_run  # type: ignore[method-assign]
    LogPass._clean = noted_clean  # type: ignore[method-assign]
    LogPass._copy = noted_copy  # type: ignore[method-assign]
    log_pass.STEP_BYTES = STEP_BYTES  # type: ignore[misc]
