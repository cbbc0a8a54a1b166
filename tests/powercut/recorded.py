"""A broker whose file operations are recorded. kill -9 comes between two of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kbroker.client.broker_process import RunningBroker
from tests.powercut.recording import Recording


class RecordedBroker(RunningBroker):
    """`options`: those of RunningBroker, except `env`."""

    def __init__(self, home: Path, recording: Recording, **options: Any) -> None:
        super().__init__(home, env=recording.environment(), **options)
        self._recording = recording

    def kill(self) -> None:
        """As RunningBroker.kill(), when all changes of its files are in the log."""
        if not self.is_running:
            super().kill()
            return
        with self._recording.between_calls():
            super().kill()

    kill9 = kill


def broker_of(home: Path, recording: Recording | None, **options: Any) -> RunningBroker:
    """`recording`: of the broker, if it is recorded."""
    return RecordedBroker(home, recording, **options) if recording else RunningBroker(home, **options)
