"""The C helper is built once for a user, by any number of concurrent processes; if it is
unavailable, numpy replaces it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker_spark import c_library, numpy_decoder
from kbroker_spark.c_decoder import CDecoder
from kbroker_spark.decode import DECODER_VARIABLE, choose
from kbroker_spark.errors import SourceError
from spark.tests import decode_fuzz

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache directory; an already loaded library is forgotten during the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(DECODER_VARIABLE, raising=False)
    c_library.library.cache_clear()
    yield tmp_path / "cache"
    c_library.library.cache_clear()


def _is_c(decode_group: object) -> bool:
    return isinstance(getattr(decode_group, "__self__", None), CDecoder)


def test_it_is_built_for_this_user_alone(cache: Path) -> None:
    assert _is_c(choose("auto"))
    directory = cache / "pyspark-kbroker"
    (library,) = directory.iterdir()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    built = library.stat().st_mtime_ns
    c_library.library.cache_clear()
    assert _is_c(choose("c"))
    assert library.stat().st_mtime_ns == built


def test_several_processes_at_once(cache: Path) -> None:
    program = "from kbroker_spark.decode import choose; choose('c')"
    workers = [
        subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [(worker.communicate(timeout=60)[1], worker.returncode) for worker in workers] == [("", 0)] * 4
    assert len(list((cache / "pyspark-kbroker").iterdir())) == 1


def test_without_a_compiler(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(cache))
    assert choose("auto") is numpy_decoder.decode_group
    assert capfd.readouterr() == ("", "")
    with pytest.raises(SourceError, match=r"no C compiler .* use decoder 'numpy'"):
        choose("c")


def test_with_a_compiler_that_fails(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = cache / "bin" / "cc"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\necho no headers here >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(broken.parent), prepend=os.pathsep)
    assert choose("auto") is numpy_decoder.decode_group
    assert capfd.readouterr() == ("", "")
    with pytest.raises(SourceError, match="no headers here"):
        choose("c")
    assert list((cache / "pyspark-kbroker").iterdir()) == []


def test_nothing_is_loaded_from_a_directory_that_others_write(cache: Path) -> None:
    directory = cache / "pyspark-kbroker"
    directory.mkdir(parents=True)
    directory.chmod(0o777)
    with pytest.raises(SourceError, match="can be written by others"):
        choose("c")


def test_a_cache_that_cannot_be_made(cache: Path) -> None:
    cache.write_text("a file")
    assert choose("auto") is numpy_decoder.decode_group


def test_one_that_was_shipped(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = tmp_path / "decoder.so"
    c_library.compile_to(shipped)
    monkeypatch.setattr(c_library, "_SHIPPED", shipped)
    assert _is_c(choose("c"))
    assert not cache.exists()


def test_one_of_another_source_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "decoder.c"
    source.write_text("#include <stdint.h>\nint64_t kbroker_decoder_layout(void) { return 1; }\n")
    monkeypatch.setattr(c_library, "_SOURCE", source)
    c_library.compile_to(tmp_path / "other.so")
    with pytest.raises(c_library.NoLibrary, match=r"another decoder\.c"):
        c_library.load(tmp_path / "other.so")


def test_the_environment_says_what_auto_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DECODER_VARIABLE, "numpy")
    assert choose("auto") is numpy_decoder.decode_group
    assert _is_c(choose("c"))
    monkeypatch.setenv(DECODER_VARIABLE, "c")
    assert _is_c(choose("auto"))
    assert choose("numpy") is numpy_decoder.decode_group
    monkeypatch.setenv(DECODER_VARIABLE, "fortran")
    with pytest.raises(SourceError, match="unknown decoder 'fortran': expected one of auto, numpy, c"):
        choose("auto")


@pytest.mark.parametrize("rounds", [2_000, pytest.param(200_000, marks=pytest.mark.full)])
def test_decoders_agree_on_changed_bytes(rounds: int) -> None:
    ends = decode_fuzz.fuzz(rounds, rounds, choose("numpy"), choose("c"))
    assert min(ends["rows"], ends["complaints"]) > rounds // 10


@pytest.mark.parametrize("rounds", [500, pytest.param(200_000, marks=pytest.mark.full)])
def test_no_byte_is_touched_that_is_not_its_own(rounds: int, tmp_path: Path) -> None:
    """The helper under an address sanitizer, in a process whose buffers come from the sanitizer's
    malloc."""
    runtime = _sanitizer()
    library = tmp_path / "sanitized.so"
    c_library.compile_to(
        library,
        flags=("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover", "-shared", "-fPIC"),
    )
    own = {
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    }
    command = [sys.executable, "-m", "spark.tests.decode_fuzz", str(rounds), "1", str(library)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | own, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "complaints" in done.stdout


def _sanitizer() -> str:
    compiler = shutil.which("cc")
    assert compiler is not None, "tests need a C compiler, as the README says"
    found = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip("this compiler has no address sanitizer")
    return found
