"""Refusals of the command line: one line on stderr and kbroker's exit codes, before Spark is
started."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from kbroker.testing.broker import open_test_broker
from kbroker_pipeline.cli import quieten_gateway, run
from kbroker_pipeline.exits import Exit, end_of, line_of
from kbroker_spark import session
from kbroker_spark.offsets import data_loss


@pytest.fixture(scope="module")
def data_dir() -> Iterator[Path]:
    """Of a stopped broker."""
    with open_test_broker() as broker:
        broker.create_topic("orders")
        broker.stop()
        yield broker.data_dir


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and the line."""
    code = run(arguments)
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("kbroker-pipeline: ")
    return code, line


@pytest.mark.parametrize("job", ["archive", "queue-health", "dead-letter-report", "verify"])
def test_bad_data_directories(job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    newer = tmp_path / "newer"
    newer.mkdir()
    about = {"format_version": 99, "cluster_id": "c", "log_engine": "segment", "state_engine": "segment"}
    (newer / "kbroker.json").write_text(json.dumps(about))
    unknown = tmp_path / "unknown"
    unknown.mkdir()
    (unknown / "kbroker.json").write_text(json.dumps({**about, "format_version": 1, "log_engine": "floppy"}))
    for name in ("missing", "empty", "newer", "unknown"):
        code, line = refused([job, str(tmp_path / name), "--out", str(tmp_path / "out")], capsys)
        assert code == Exit.DATA_DIRECTORY
        assert name in line or "floppy" in line
    assert not (tmp_path / "out").exists()


def test_bad_options(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    (tmp_path / "link").symlink_to(data_dir)
    place = ["--out", str(tmp_path / "out")]
    for arguments, text in (
        (["archive", str(data_dir), *place, "--topics", "("], "not a regular expression"),
        (["archive", str(data_dir), *place, "--topics", "a{99999999999}"], "not a regular expression"),
        (["archive", str(data_dir), *place, "--batch-records", "0"], "--batch-records"),
        (["verify", str(data_dir), *place, "--as-of", "yesterday"], "not a time such as"),
        (["verify", str(data_dir), *place, "--conf", "cores=3"], "spark.NAME=VALUE"),
        (["verify", str(data_dir), "--out", str(data_dir / "tables")], "lies in the broker's data directory"),
        (
            ["verify", str(data_dir), "--out", str(tmp_path / "link" / "tables")],
            "lies in the broker's data directory",
        ),
        (["verify", str(data_dir), "--out", str(tmp_path / "mine")], "contains files that are not tables"),
        (["verify"], "Missing argument"),
        (["vrefiy"], "No such command"),
        (["demo", "--storage", "memory"], "memory"),
        (["demo", "--storage", "floppy"], "floppy"),
        (["demo", "--home", str(data_dir.parent)], "choose another --home"),
    ):
        code, line = refused(arguments, capsys)
        assert (code, text in line) == (Exit.USAGE, True), line


def test_a_spark_that_does_not_start(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with an invalid --master."""
    text = (
        "An error occurred while calling None.JavaSparkContext.\n: SparkException: Could not parse "
        "Master URL: 'x'\n\tat A.scala"
    )
    for error in (Py4JError(text), PySparkRuntimeError(text)):
        with pytest.MonkeyPatch.context() as patch:
            # The tests' own session stays active.
            patch.setattr(SparkSession, "getActiveSession", lambda: None)
            patch.setattr(session, "session", raising(error))
            assert run(["verify", str(data_dir), "--out", str(tmp_path / "out")]) == Exit.REFUSED
        assert (
            capsys.readouterr()
            .err.splitlines()[-1]
            .endswith("calling None.JavaSparkContext. : SparkException: Could not parse Master URL: 'x'")
        )


def raising(error: Exception) -> Callable[..., NoReturn]:
    def function(*_: object, **__: object) -> NoReturn:
        raise error

    return function


def test_help_is_quick() -> None:
    """It does not import Spark, Arrow or Plotly."""
    program = (
        "import sys; from kbroker_pipeline.cli import run; run(['archive', '--help']); "
        "print(sorted({'pyspark', 'pyarrow', 'plotly'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "--batch-records" in done.stdout


def test_spark_submit_runs_the_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kbroker_pipeline", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("kbroker-pipeline, version")


class SparkError(Exception):
    """Errors in Spark's form: their text is a traceback of a worker, with the source's line in
    it."""


SparkError.__module__ = "pyspark.errors.exceptions.captured"


def test_an_output_that_cannot_be(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(["archive", str(data_dir), "--out", str(tmp_path / "file" / "below")]) == Exit.REFUSED
    assert (
        capsys.readouterr().err.splitlines()[-1]
        == f"kbroker-pipeline: cannot use {tmp_path / 'file' / 'below'}: Not a directory"
    )


def test_the_line_of_a_source_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Traceback:\n  File ...\nkbroker_spark.errors.DataLoss: offsets 0 to "
        "4 of t-0 are gone\n"
    )
    assert line_of(SparkError(text)) == "offsets 0 to 4 of t-0 are gone"
    assert line_of(ValueError(text)) is None
    lost = line_of(
        SparkError(
            f"Traceback\nkbroker_spark.errors.DataLoss: {data_loss('offsets 0 to 4 of t-0 are gone')}\n"
        )
    )
    assert lost is not None
    assert lost.endswith(
        " (retention, DeleteRecords or a deleted topic). Give --skip-lost to continue without it"
    )
    assert end_of(SparkError(text)) == Exit.DATA_DIRECTORY
    assert capsys.readouterr().err == "kbroker-pipeline: offsets 0 to 4 of t-0 are gone\n"
    with pytest.raises(SparkError):
        end_of(SparkError("something else"))


def test_an_interrupt_beside_the_gateway_is_quiet() -> None:
    """py4j logs a call that Ctrl-C interrupts with the root logger, as an exception; other errors
    are still reported."""
    root = logging.getLogger()
    filters = list(root.filters)
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    root.addHandler(handler)
    try:
        quieten_gateway()
        for path in ("py4j/java_gateway.py", "py4j/clientserver.py", "elsewhere.py"):
            root.handle(logging.LogRecord("root", logging.ERROR, path, 1, f"from {path}", None, None))
    finally:
        root.removeHandler(handler)
        root.filters[:] = filters
    assert told == ["from elsewhere.py"]


def test_a_full_disk_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "[STREAM_FAILED] Query terminated\n\tat org.apache\nCaused by: java.io.IOException: No space "
        "left on device\n\tat java.base\n"
    )
    assert end_of(SparkError(text)) == Exit.REFUSED
    line = capsys.readouterr().err
    assert line.startswith("kbroker-pipeline: Spark could not write (No space left on device): ")
    assert line.count("\n") == 1
