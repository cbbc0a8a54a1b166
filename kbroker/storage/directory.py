"""Making an engine's directory so that it outlives a power cut. It must not know what is put into it."""

from __future__ import annotations

from pathlib import Path

from kbroker.storage.files import Files


def make_directory(directory: Path, files: Files) -> None:
    """The directory is there and so are its parents, names on disk included, on return."""
    if directory.is_dir():
        return
    make_directory(directory.parent, files)
    files.mkdir(directory)
    files.fsync_dir(directory.parent)
