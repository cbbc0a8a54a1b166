"""Looks for secrets where none may be."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


def places_with(secrets: Iterable[bytes], places: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    """Each place with a secret in clear, in hexadecimal or in base64, and the secret."""
    return [
        (place, secret)
        for secret in secrets
        for form in (secret, secret.hex().encode(), base64.b64encode(secret).rstrip(b"="))
        for place, content in places.items()
        if form in content
    ]


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def command_lines() -> Iterator[set[bytes]]:
    """The command lines of all processes that ran meanwhile, as any user of the machine sees
    them."""
    seen: set[bytes] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            # Not Path.glob: it may raise when a process ends while it looks.
            for process in filter(str.isdigit, os.listdir("/proc")):
                with suppress(OSError):
                    seen.add(Path("/proc", process, "cmdline").read_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
