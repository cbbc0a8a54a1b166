"""Starts kbroker as on a user's machine: `python perf/measuring/launch.py start --data-dir ...` is
the command line without the test environment.

kio imports hypothesis if it is installed (0.2 s and 15 MB), which is the case only where the test
suite is. This module blocks the import, so that figures do not depend on the environment.

With KBROKER_PROFILE=FILE the process runs under cProfile and writes its statistics there (`python
-m pstats FILE`). Under the profiler, Python calls take about three times as long, but system calls
do not. Use the order of the functions, not the seconds.
"""

from __future__ import annotations

import os
import sys

sys.modules["hypothesis"] = None  # type: ignore[assignment]


def main() -> int:
    from kbroker.cli import run

    target = os.environ.get("KBROKER_PROFILE")
    if not target:
        return run()
    import cProfile

    profile = cProfile.Profile()
    try:
        return profile.runcall(run)
    finally:
        profile.dump_stats(target)


if __name__ == "__main__":
    sys.exit(main())
