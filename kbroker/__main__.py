"""`python -m kbroker`: the same command line as the `kbroker` script."""

from __future__ import annotations

from kbroker.cli import main

if __name__ == "__main__":
    main()
