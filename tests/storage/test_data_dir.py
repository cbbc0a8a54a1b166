"""The data directory: created, locked, described, and refused with a line that says what to do."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.errors import NoFiles, NoSpace, OperatorError, StoreFailed
from kbroker.storage.data_dir import (
    DESCRIPTION,
    FIRST_FORMAT,
    FORMAT_VERSION,
    NODE_ID_FORMAT,
    TRANSACTIONS_FORMAT,
    DataDirectory,
    random_cluster_id,
)
from kbroker.storage.files import Files
from tests.storage.faulty_files import FaultyFiles


def refusal(
    path: Path, log_engine: str = "segment", state_engine: str = "segment", files: FaultyFiles | None = None
) -> str:
    with pytest.raises(OperatorError) as caught:
        DataDirectory.open(path, log_engine, state_engine, files=files)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def describe(path: Path, **changes: object) -> None:
    values: dict[str, object] = {
        "format_version": FIRST_FORMAT,
        "cluster_id": "c",
        "log_engine": "segment",
        "state_engine": "segment",
    }
    path.mkdir()
    (path / DESCRIPTION).write_text(json.dumps(values | changes))


def test_a_new_directory_is_described_and_stays_so(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "data"
    with DataDirectory.open(path, "segment", "lmdb") as made:
        assert made.log_path == path / "log-segment"
        assert made.state_path == path / "state-lmdb"
    before = (path / DESCRIPTION).read_bytes()
    with DataDirectory.open(path, "segment", "lmdb") as again:
        assert again.description == made.description
    assert (path / DESCRIPTION).read_bytes() == before


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("mode", [None, 0o750])
def test_a_new_directory_is_closed_to_others(
    tmp_path: Path, is_there: bool, mode: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Also an empty one that somebody has made, and whatever the umask."""
    path = tmp_path / "data"
    before = os.umask(0o007)
    try:
        if is_there:
            path.mkdir(0o777)
        DataDirectory.open(path, "segment", "segment", **({} if mode is None else {"mode": mode})).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == (mode or 0o700)
    assert caplog.text == ""


def test_an_existing_directory_keeps_its_mode(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "my data"
    DataDirectory.open(path, "segment", "segment").close()
    path.chmod(0o755)
    for mode in (0o755, 0o750, 0o700):
        DataDirectory.open(path, "segment", "segment", mode=mode).close()
        assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert [record.getMessage() for record in caplog.records] == [
        f"other users of this host can read {path} (mode 755): `chmod {mode} '{path}'` closes it"
        for mode in (750, 700)
    ]


def test_cluster_ids_have_kafkas_form(tmp_path: Path) -> None:
    ids = {random_cluster_id() for _ in range(200)}
    assert len(ids) == 200
    assert all(len(each) == 22 and not each.startswith("-") for each in ids)
    with DataDirectory.open(tmp_path / "data", "segment", "segment", new_cluster_id=lambda: "given") as made:
        assert made.cluster_id == "given"


def test_one_broker_at_a_time(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path / "data", "segment", "segment"):
        assert "in use by another broker" in refusal(tmp_path / "data")
    DataDirectory.open(tmp_path / "data", "segment", "segment").close()


def test_the_lock_holds_between_processes_and_ends_with_them(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from kbroker.storage.data_dir import DataDirectory;"
        "held = DataDirectory.open(Path(sys.argv[1]), 'segment', 'segment'); print('held', flush=True); "
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert f"process {holder.pid}" in refusal(tmp_path / "data")
        holder.kill()
    DataDirectory.open(tmp_path / "data", "segment", "segment").close()


def test_a_refused_start_does_not_keep_the_lock(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path / "data", "segment", "segment").close()
    refusal(tmp_path / "data", "lmdb")
    DataDirectory.open(tmp_path / "data", "segment", "segment").close()


@pytest.mark.parametrize(
    ("engines", "says"),
    [
        (("lmdb", "segment"), "was written with --storage segment, not lmdb: start with --storage segment,"),
        (
            ("segment", "lmdb"),
            "was written with --state-storage segment, not lmdb: start with --state-storage segment,",
        ),
    ],
)
def test_another_engine_is_refused(tmp_path: Path, engines: tuple[str, str], says: str) -> None:
    DataDirectory.open(tmp_path / "data", "segment", "segment").close()
    assert says in refusal(tmp_path / "data", *engines)


def test_a_directory_keeps_the_node_id_of_its_first_start(tmp_path: Path) -> None:  # CFG-53
    DataDirectory.open(tmp_path / "data", "segment", "segment", node_id=7).close()
    for given in (None, 7):
        with DataDirectory.open(tmp_path / "data", "segment", "segment", node_id=given) as again:
            assert (again.description.node_id, again.description.format_version) == (7, NODE_ID_FORMAT)
            again.raise_format(TRANSACTIONS_FORMAT)
    with pytest.raises(OperatorError) as refused:
        DataDirectory.open(tmp_path / "data", "segment", "segment", node_id=1)
    assert str(refused.value) == (
        f"{tmp_path / 'data'} belongs to the broker with node.id=7, not 1: start with node.id=7, "
        "or choose another --data-dir"
    )
    assert DataDirectory.inspect(tmp_path / "data").description.node_id == 7


def test_a_directory_of_an_earlier_version_has_node_1(tmp_path: Path) -> None:  # CFG-53
    """It was answered as 1. It keeps its format, so that the earlier version opens it again."""
    describe(tmp_path / "data")
    for given in (None, 1):
        with DataDirectory.open(tmp_path / "data", "segment", "segment", node_id=given) as found:
            assert (found.description.node_id, found.description.format_version) == (1, FIRST_FORMAT)
    with pytest.raises(OperatorError, match=r"belongs to the broker with node\.id=1, not 0"):
        DataDirectory.open(tmp_path / "data", "segment", "segment", node_id=0)


@pytest.mark.parametrize("node_id", ["7", -1, None, True])
def test_a_damaged_node_id_is_refused(tmp_path: Path, node_id: object) -> None:
    describe(tmp_path / "data", node_id=node_id)
    assert "its node_id is no number" in refusal(tmp_path / "data")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    describe(tmp_path / "data", format_version=FORMAT_VERSION + 1)
    assert "written by a newer kbroker" in refusal(tmp_path / "data")


def test_the_format_rises_once(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path / "data", "segment", "segment") as directory:
        first = directory.description
        directory.raise_format(TRANSACTIONS_FORMAT)
        assert directory.description == replace(first, format_version=TRANSACTIONS_FORMAT)
        directory.raise_format(FIRST_FORMAT)
    files = FaultyFiles()
    with DataDirectory.open(tmp_path / "data", "segment", "segment", files=files) as again:
        assert again.description == replace(first, format_version=TRANSACTIONS_FORMAT)
        files.counts.clear()
        again.raise_format(TRANSACTIONS_FORMAT)
        assert not files.counts


@pytest.mark.parametrize("operation", ["open", "pwritev", "fdatasync", "rename", "fsync_dir"])
@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.ENOSPC, NoSpace), (errno.EDQUOT, NoSpace), (errno.EMFILE, NoFiles), (errno.EIO, StoreFailed)],
)
def test_the_format_stays_if_it_cannot_be_written(
    tmp_path: Path, operation: str, number: int, error: type[Exception]
) -> None:
    files = FaultyFiles()
    with DataDirectory.open(tmp_path / "data", "segment", "segment", files=files) as directory:
        files.fail(operation, number)
        with pytest.raises(error):
            directory.raise_format(TRANSACTIONS_FORMAT)
        assert directory.description.format_version == FIRST_FORMAT
        directory.raise_format(TRANSACTIONS_FORMAT)
        assert directory.description.format_version == TRANSACTIONS_FORMAT


@pytest.mark.parametrize(
    "change", [{"format_version": "1"}, {"format_version": True}, {"cluster_id": ""}, {"log_engine": None}]
)
def test_damaged_values_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    describe(tmp_path / "data", **change)
    assert f"{DESCRIPTION} is damaged (it has no {next(iter(change))})" in refusal(tmp_path / "data")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"[" * 100_000])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    describe(tmp_path / "data")
    (tmp_path / "data" / DESCRIPTION).write_bytes(content)
    assert "is damaged" in refusal(tmp_path / "data")
    assert (tmp_path / "data" / DESCRIPTION).read_bytes() == content


def test_somebody_elses_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    assert "not a kbroker data directory: it has no kbroker.json but other files (precious)" in refusal(
        tmp_path
    )


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    assert "it is a file" in refusal(tmp_path / "data")


@pytest.mark.parametrize(
    ("operation", "number", "says"),
    [
        ("open", errno.EACCES, "give this user write access"),
        ("read", errno.EACCES, "give this user write access"),
        ("mkdir", errno.EROFS, "give this user write access"),
        ("write_atomically", errno.ENOSPC, "make room"),
        ("fsync_dir", errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_what_the_system_refuses_is_one_line(tmp_path: Path, operation: str, number: int, says: str) -> None:
    files = FaultyFiles()
    files.fail(operation, number)
    assert says in refusal(tmp_path / "data", files=files)
    DataDirectory.open(tmp_path / "data", "segment", "segment").close()


class Unreadable(Files):
    def read(self, path: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def test_readers_need_no_write_access(tmp_path: Path) -> None:
    with pytest.raises(OperatorError) as caught:
        DataDirectory.inspect(tmp_path, files=Unreadable())
    assert (
        str(caught.value)
        == f"cannot read {tmp_path / DESCRIPTION} (permission denied): give this user read access"
    )


def test_a_start_that_was_interrupted_can_be_repeated(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.fail("rename")
    refusal(tmp_path / "data", files=files)
    assert not (tmp_path / "data" / DESCRIPTION).exists()
    DataDirectory.open(tmp_path / "data", "segment", "segment").close()


def test_inspect_takes_no_lock_and_changes_nothing(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path / "data", "segment", "lmdb") as held:
        found = DataDirectory.inspect(tmp_path / "data")
        assert found.description == held.description
        assert (found.log_path, found.state_path) == (held.log_path, held.state_path)
        found.close()
        assert "in use" in refusal(tmp_path / "data", "segment", "lmdb")


@pytest.mark.parametrize(
    ("made", "says"), [(False, "there is no directory"), (True, "no broker has used it yet")]
)
def test_inspect_of_nothing(tmp_path: Path, made: bool, says: str) -> None:
    if made:
        (tmp_path / "data").mkdir()
    with pytest.raises(OperatorError, match=says):
        DataDirectory.inspect(tmp_path / "data")
    assert not (tmp_path / "data" / DESCRIPTION).exists()
