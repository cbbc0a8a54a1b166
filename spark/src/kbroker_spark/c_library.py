"""Loads the C helper: shipped beside this file, or compiled at first use and cached for the user.

A wheel may contain `decoder.so` (`cc -O3 -shared -fPIC decoder.c -o decoder.so` before the wheel is
built). Otherwise the machine's `cc` compiles it, in less than a third of a second, into a directory
that only this user can write, because its contents are executed. The file's name contains a hash of
source, compiler and machine. The file is renamed into place when it is complete, so any number of
workers may compile it at once.

A missing helper is not an error, since the numpy decoder does the same work. The reason is kept as
a text.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from kbroker.errors import OperatorError
from kbroker_spark.cache import cache_dir

_SOURCE: Final = Path(__file__).with_name("decoder.c")
_SHIPPED: Final = Path(__file__).with_name("decoder.so")
_FLAGS: Final = ("-O3", "-shared", "-fPIC")
_COMPILE_SECONDS: Final = 60

Address = ctypes.c_void_p
Int64 = ctypes.c_int64


class Batch(ctypes.Structure):
    """As in decoder.c. All fields have 64 bits, so a row of an int64 array is a Batch."""

    _fields_ = tuple(
        (name, Int64)
        for name in (
            "start",
            "end",
            "count",
            "base_offset",
            "last_offset_delta",
            "base_timestamp",
            "time_of_broker",
        )
    )


class Binary(ctypes.Structure):
    """As in decoder.c."""

    _fields_ = (("bytes", Address), ("ends", Address), ("valid", Address), ("nulls", Int64))


class Columns(ctypes.Structure):
    """As in decoder.c."""

    _fields_ = (
        *((name, Int64) for name in ("first", "end", "room_rows", "room_headers")),
        ("key", Binary),
        ("value", Binary),
        *((name, Address) for name in ("offset", "timestamp", "timestamp_type", "header_ends")),
        *((name, Address) for name in ("name_at", "name_length", "value_at", "value_length")),
        *((name, Int64) for name in ("rows", "headers", "odd_times")),
    )


class NoLibrary(Exception):
    """The C helper is not available; the text says why."""


@functools.cache
def library() -> ctypes.CDLL | NoLibrary:
    """The helper, or the reason why it is not available. Determined once per process."""
    try:
        return load(_SHIPPED if _SHIPPED.exists() else _compiled())
    except (NoLibrary, OperatorError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        return NoLibrary(" ".join(str(error).split()))


def load(path: Path) -> ctypes.CDLL:
    """Loads the library at `path`. Raises NoLibrary if it was built from another decoder.c."""
    loaded = ctypes.CDLL(str(path))
    loaded.kbroker_decoder_layout.restype = Int64
    if loaded.kbroker_decoder_layout() != ctypes.sizeof(Batch) * 1000 + ctypes.sizeof(Columns):
        raise NoLibrary(f"{path} was built from another decoder.c")
    loaded.kbroker_decode.argtypes = (Address, Address, Int64, ctypes.POINTER(Columns))
    loaded.kbroker_decode.restype = ctypes.c_int
    return loaded


def compile_to(path: Path, *, compiler: str = "cc", flags: tuple[str, ...] = _FLAGS) -> None:
    """Compiles the library to `path`. Raises NoLibrary with the compiler's output if it fails."""
    command = [compiler, *flags, str(_SOURCE), "-o", str(path)]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_COMPILE_SECONDS,
        check=False,
    )
    if done.returncode:
        raise NoLibrary(f"{compiler} failed: {done.stderr or done.returncode}")


def _compiled() -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        raise NoLibrary("there is no C compiler (cc) here")
    path = _cache_directory() / f"decoder-{_fingerprint(compiler)}.so"
    if not path.exists():
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
        os.close(handle)
        try:
            compile_to(Path(name), compiler=compiler)
            os.replace(name, path)
        finally:
            Path(name).unlink(missing_ok=True)
    return path


def _fingerprint(compiler: str) -> str:
    binary = os.path.realpath(compiler)
    version = os.stat(binary)
    about = (binary, version.st_size, version.st_mtime_ns, platform.machine(), platform.libc_ver(), _FLAGS)
    return hashlib.sha256(_SOURCE.read_bytes() + repr(about).encode()).hexdigest()[:24]


def _cache_directory() -> Path:
    """Raises NoLibrary if another user could write to the directory."""
    directory = cache_dir()
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise NoLibrary(f"{directory} can be written by others")
    return directory
