"""`kbroker`, with the engines that are broken on purpose known by name (tests.crash.broken_stores). A first argument of
tests.crash.broken_groups breaks its consumer groups, one of tests.crash.broken_queues its parked records."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from kbroker.cli import main
from tests.crash import broken_groups, broken_queues, broken_stores

if __name__ == "__main__":
    broken_stores.install()
    if sys.argv[1] in broken_groups.FAULTS:
        broken_groups.install(sys.argv.pop(1))
    elif sys.argv[1] in broken_queues.FAULTS:
        broken_queues.install(sys.argv.pop(1))
    main()
