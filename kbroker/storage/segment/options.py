"""The options of the segment engine, of its log store and its state store."""

from __future__ import annotations

import resource
from collections.abc import Mapping

from kbroker.errors import OperatorError

_CHECKPOINT_BYTES = 64 << 20
_OTHER_FILES = 40
"""Of a broker: its sockets, pipes, directories and modules, and those of another engine."""
_MOST_MAPS = 30_000  # the kernel allows 65 530 per process, and a sealed segment has two

OPTIONS = frozenset({"sync", "max_maps", "max_open_files", "checkpoint_bytes"})
SYNC_METHODS = ("auto", "fdatasync", "syncfs")


def limits_of(options: Mapping[str, str]) -> dict[str, str]:
    """All options, with defaults that fit the process's limits. Raises OperatorError."""
    unknown = sorted(options.keys() - OPTIONS)
    if unknown:
        raise OperatorError(
            f"the segment engine has no option {unknown[0]!r}; it has {', '.join(sorted(OPTIONS))}"
        )
    if options.get("sync", "auto") not in SYNC_METHODS:
        raise OperatorError(
            f"option sync of the segment engine must be one of {', '.join(SYNC_METHODS)}, "
            f"not {options['sync']!r}"
        )
    for name in ("max_maps", "max_open_files", "checkpoint_bytes"):
        if not options.get(name, "1").isdigit():
            raise OperatorError(
                f"option {name} of the segment engine must be a number, not {options[name]!r}"
            )
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        files = 8 * _MOST_MAPS
    # Connections have half of all files (server/connection_limits.py).
    share = max(8, (files - _OTHER_FILES) // 8)
    bounds = {"max_maps": str(_MOST_MAPS), "max_open_files": str(share)}
    return {"sync": "auto", "checkpoint_bytes": str(_CHECKPOINT_BYTES), **bounds, **options}
