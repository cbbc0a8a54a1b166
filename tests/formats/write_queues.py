"""Write data directories with queues as test data. Run once, with the code of commit 633126e1,
which is older than the redesign of queues:

    git worktree add --detach OLD 633126e1
    export PYTHONPATH=OLD:OLD/clients/python/src:OLD/plugins/kbroker-sqlite:$PWD PYTHONSAFEPATH=1
    python -m tests.formats.write_queues tests/formats/v4-queue

For each engine, and for the persister `control-records`, there is one directory of a stopped broker
and one of a killed one. NAME.tar.xz holds the directory as `data`, and as `expected.json` what the
queues in it must deliver (queue_filling.py). These files are never rewritten.

All queues are in all directories, but not every state exists with every engine:

- A write of the default persister is one change of the state store. It arrives whole or not at all.
  So a failed write leaves no old place of a record, nor a reason without its rejection. Only
  `control-records` has these two (queue_failing.py, fail_each).
- No store knows which records a member holds: the queue `plain` has them as available ones.
- An orderly stop saves nothing for the members. So the stopped broker leaves the same states as the
  killed one, in stores that are closed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

import kbroker
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.formats.archives import archive
from tests.formats.queue_failing import Rejecting, fail_each, make_expired, make_purged
from tests.formats.queue_filling import Expected, Kept, make_delayed, make_later, make_ordered, make_plain
from tests.formats.queue_member import until

ENGINES = {name: name for name in ("segment", "lmdb", "rocksdb", "sqlite")} | {"segment+lmdb": "lmdb"}
CONTROL_RECORDS = "control-records"
NAMES = (*ENGINES, CONTROL_RECORDS)
ENDINGS = ("stopped", "killed")
CONFIG = {
    "share.coordinator.snapshot.update.records.per.snapshot": "4",
    "log.segment.bytes": "1048576",  # Segment files have their full length from the start.
    "group.share.record.lock.duration.ms": "60000",
}


def write(target: Path, name: str, ending: str, faults: Path) -> None:
    is_in_log = name == CONTROL_RECORDS
    persister = {"kbroker.persister": CONTROL_RECORDS} if is_in_log else {}
    engine = "segment" if is_in_log else name
    with open_test_broker(
        storage=engine.split("+")[0],
        state_storage=ENGINES[engine],
        config={**CONFIG, **persister},
        command=[sys.executable, "-m", "tests.formats.queue_faults", str(faults)],
    ) as broker:
        queues = fill(broker, faults, is_in_log=is_in_log, ending=ending)
        expected = broker.log_file.with_name("expected.json")
        about = {"engines": [broker.storage, broker.state_storage], "config": persister}
        found = {queue: each.as_json() for queue, each in queues.items()}
        expected.write_text(json.dumps({**about, "queues": found}, indent=1, sort_keys=True))
        archive(target / f"{name}-{ending}.tar.xz", broker.data_dir, expected)


def fill(broker: RunningBroker, faults: Path, *, is_in_log: bool, ending: str) -> dict[str, Expected]:
    """Two lives of the broker; the second one ends."""

    def wait(queue: str) -> None:
        until((faults / f"reached-{queue}").exists, f"{queue} has not come so far")

    kept, found = Kept(), dict[str, Expected]()
    found["later"] = make_later(broker)
    found["delayed"] = make_delayed(broker)
    found["ordered"] = make_ordered(broker)
    kept.make(broker)
    broker.restart()
    found["kept"], held_kept = kept.reject(broker)
    wait("kept")
    rejecting = {
        queue: Rejecting(broker, queue) for queue in ("archiving", "written", "written-parked", "settled")
    }
    for queue, each in rejecting.items():
        steps = [each.reject_window, each.reject_parked]
        for step in reversed(steps) if queue == "written-parked" else steps:
            step()
            wait(queue)
        found[queue] = each.finish()
    found["expired"] = make_expired(broker, wait)
    held = [held_kept, *(each.member for each in rejecting.values())]
    for queue, make in {"purged": partial(make_purged, wait=wait), "plain": make_plain}.items():
        found[queue], member = make(broker)
        held.append(member)
    found["failed"], member = fail_each(broker, faults / "fault", is_in_log=is_in_log)
    if ending == "killed":
        broker.kill()
    else:
        broker.stop()
    for each in (*held, member):
        each.connection.close()
    return found


def main(arguments: list[str]) -> None:
    """DIRECTORY and the names of directories to write; none: all of them."""
    directory, *names = arguments
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    code = Path(kbroker.__file__).parents[1]
    assert code != Path(__file__).parents[2], "the code of this version is first on the path"
    for name in names or NAMES:
        for ending in ENDINGS:
            with tempfile.TemporaryDirectory() as faults:
                write(target, name, ending, Path(faults))
            size = os.stat(target / f"{name}-{ending}.tar.xz").st_size
            sys.stdout.write(f"{name}-{ending}: {size} bytes\n")


if __name__ == "__main__":
    main(sys.argv[1:])
