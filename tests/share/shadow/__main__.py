"""python -m tests.share.shadow [--seed N] [--steps M]: compare the engine of the working tree with
that of an earlier commit in random lives."""

from __future__ import annotations

import argparse
import sys

from tests.share.shadow import coverage
from tests.share.shadow.old_tree import COMMIT
from tests.share.shadow.run import alike, run, shrunk


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.share.shadow", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first life (default 0)")
    parser.add_argument("--steps", type=int, default=100_000, help="in all lives (default 100000)")
    options = parser.parse_args()
    print(f"engine of {COMMIT} and of the working tree: {options.steps} steps from seed {options.seed}")
    with alike():
        found = run(options.seed, options.steps, shows=True)
        if found is not None:
            print(found)
            print("\nshrunk:")
            print(shrunk(found))
            return 1
    print(coverage.report())
    rare = coverage.missing(options.steps)
    for name, (times, least) in rare.items():
        print(f"too rare: {name}: {times} of {least}")
    return 1 if rare else 0


if __name__ == "__main__":
    sys.exit(main())
