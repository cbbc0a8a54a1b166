"""`kbroker` that also knows the engines that are broken on purpose (tests.crash.broken_stores).

A first argument of tests.crash.broken_groups breaks its consumer groups, one of
tests.crash.broken_queues its parked records, one of tests.crash.broken_keeping the records kept
beside a log, one of tests.crash.broken_transactions its transactions, one of
tests.crash.broken_compaction its cleaner, one of tests.crash.broken_confirming what it confirms. A
further `notes-passes` with a path makes the cleaner
note its passes there (tests.crash.pass_notes), a further `looks-often` makes the broker check work
queues without a pause.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from kbroker.broker.logs import retention
from kbroker.cli import main
from tests.crash import (
    broken_compaction,
    broken_confirming,
    broken_groups,
    broken_keeping,
    broken_queues,
    broken_stores,
    broken_transactions,
    pass_notes,
)

LOOKS_OFTEN, OFTEN_S = "looks-often", 0.1

if __name__ == "__main__":
    broken_stores.install()
    if sys.argv[1] in broken_groups.FAULTS:
        broken_groups.install(sys.argv.pop(1))
    elif sys.argv[1] in broken_queues.FAULTS:
        broken_queues.install(sys.argv.pop(1))
    elif sys.argv[1] in broken_keeping.FAULTS:
        broken_keeping.install(sys.argv.pop(1))
    elif sys.argv[1] in broken_transactions.FAULTS:
        broken_transactions.install(sys.argv.pop(1))
    elif sys.argv[1] in broken_compaction.FAULTS:
        broken_compaction.install(sys.argv.pop(1))
    elif sys.argv[1] in broken_confirming.FAULTS:
        broken_confirming.install(sys.argv.pop(1))
    if sys.argv[1] == pass_notes.ARGUMENT:
        pass_notes.install(Path(sys.argv[2]))
        del sys.argv[1:3]
    if sys.argv[1] == LOOKS_OFTEN:
        retention.WORK_QUEUE_CHECK_S = OFTEN_S
        del sys.argv[1]
    main()
