"""`kbroker`, with the engines that are broken on purpose known by name (tests.crash.broken_stores)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from kbroker.cli import main
from tests.crash import broken_stores

if __name__ == "__main__":
    broken_stores.install()
    main()
