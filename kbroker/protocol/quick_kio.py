"""Importing kio without hypothesis, which is there where tests run."""

from __future__ import annotations

import sys


def import_kio_alone() -> None:
    """kio registers its types with hypothesis if that is installed. Importing hypothesis, and the
    pytest that it brings, takes a second of processor time in each process: most of a start."""
    if "hypothesis" in sys.modules:
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        import kio.static._phantom  # noqa: F401
    finally:
        del sys.modules["hypothesis"]
