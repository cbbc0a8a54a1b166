"""Starts kbroker as a user has it: `python perf/measuring/launch.py start --data-dir ...` is the
command line without the test environment.

kio imports hypothesis when it finds it (0.2 s and 15 MB), which it does where the test suite is
installed and nowhere else. Here the import is refused, so that a figure does not depend on which
environment it was taken in.

With KBROKER_PROFILE=FILE the process runs under cProfile and leaves its statistics there (`python
-m pstats FILE`). Profiling makes Python calls about three times as dear and system calls no dearer:
read the order of the functions, not the seconds.
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
