"""The cache directory, for files that are created once per user and machine and may be deleted at
any time: the Java wrapper, the compiled decoder."""

from __future__ import annotations

import os
from pathlib import Path

from kbroker.errors import OperatorError


def cache_dir() -> Path:
    """`pyspark-kbroker` in the user's cache directory ($XDG_CACHE_HOME, or ~/.cache), created if
    needed, accessible to its owner only.

    Raises OperatorError if it cannot be created.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = home / "pyspark-kbroker"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OperatorError(
            f"{place}: {error.strerror}: set XDG_CACHE_HOME to a writable directory"
        ) from error
    return place
