"""Importing kio without what it imports and kbroker does not use.

- hypothesis, which is there where tests run. kio registers its types with it. Importing it, and the
  pytest that it brings, takes a second of processor time in each process.
- asyncio, of which kio.serial names one class in one type. It takes a thirtieth of a start.
"""

from __future__ import annotations

import sys
import threading
from types import ModuleType


def import_kio_alone() -> None:
    """kio without hypothesis."""
    if "hypothesis" in sys.modules:
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        import kio.static._phantom  # noqa: F401
    finally:
        del sys.modules["hypothesis"]


def import_kio_serial_alone() -> None:
    """kio.serial without asyncio. Nothing is done where other threads run: one of them could import
    asyncio meanwhile."""
    if "asyncio" in sys.modules or "kio.serial" in sys.modules or threading.active_count() > 1:
        return
    asyncio = ModuleType("asyncio")
    asyncio.StreamWriter = object  # type: ignore[attr-defined]
    sys.modules["asyncio"] = asyncio
    try:
        import kio.serial  # noqa: F401
    finally:
        del sys.modules["asyncio"]
