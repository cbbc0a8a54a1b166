"""The recorder itself: its log has every change of the files, however a process ends."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.powercut.disk import Disk, differences
from tests.powercut.recording import HEADER, MAGIC, Entry, Op, Recording, read_log, recorder_library

LONGEST_LIFE_S = 0.004
PATIENCE_S = 60.0
MARK = HEADER.pack(MAGIC, Op.MARK, 0, 0, 0, 9000, 0, 0, 0, 0) + bytes(9000)
PYTHON = [sys.executable, "-I", "-S", "-c"]
WRITERS = """
import itertools, os, sys, threading, time

log, mark = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND), bytes.fromhex(sys.argv[3])
os.chdir(sys.argv[1])

def work(name):
    first = os.open(f"{name}-first", os.O_WRONLY | os.O_CREAT, 0o644)
    for turn in itertools.count():
        data = turn.to_bytes(4, "little") * 91
        for _ in range(8):
            os.write(first, data)
        second = os.open(f"{name}-new", os.O_RDWR | os.O_CREAT, 0o644)
        os.pwrite(second, data * 40, 300)
        os.ftruncate(second, 9000 - turn % 5000)
        os.posix_fallocate(second, 0, 20000)
        os.lseek(second, 100, os.SEEK_SET)
        os.sendfile(first, second, None, 500)
        os.close(second)
        os.link(f"{name}-new", f"{name}-linked")
        os.rename(f"{name}-new", name)
        os.unlink(f"{name}-linked")
        os.mkdir(f"{name}-folder")
        os.rmdir(f"{name}-folder")
        os.write(log, mark)
        os.close(os.open(name, os.O_WRONLY | os.O_TRUNC))

def live(own_end_s):
    for name in os.listdir():
        (os.rmdir if os.path.isdir(name) else os.unlink)(name)
    threading.Thread(target=work, args=("one",), daemon=True).start()
    threading.Thread(target=work, args=("other",), daemon=True).start()
    time.sleep(own_end_s or 10)
    os.kill(os.getpid(), 9)

for line in sys.stdin:
    pid = os.fork()
    if not pid:
        live(float(line))
    print(pid, flush=True)
    print(os.waitpid(pid, 0)[1], flush=True)
"""
"""Starts a writer for each line, and prints its process id and its end. A writer changes files
without pause, in two threads. It is killed, or kills itself after some time, at most 10 s."""
PARENT = """
import os, subprocess, sys, threading

os.chdir(sys.argv[1])
child = "import os; os.write(os.open('child', os.O_WRONLY | os.O_CREAT), b'child')"
fd = os.open("parent", os.O_WRONLY | os.O_CREAT)
os.write(fd, b"before ")
subprocess.run([sys.executable, "-I", "-S", "-c", child], check=True)
os.write(fd, b"after ")

def write():
    while not done.is_set():
        os.write(fd, b"meanwhile ")

done = threading.Event()
writing = threading.Thread(target=write)
writing.start()
for number in range(50):
    pid = os.fork()
    if not pid:
        try:
            os.write(os.open(f"forked{number}", os.O_WRONLY | os.O_CREAT), b"forked")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
done.set()
writing.join()
"""


def size_of(entry: Entry) -> int:
    """In the log, in bytes."""
    return HEADER.size + len(os.fsencode(entry.path)) + len(os.fsencode(entry.path2)) + len(entry.data)


def end_life(writers: subprocess.Popen[str], recording: Recording, life_s: float, *, by_itself: bool) -> None:
    """Start a writer. It gets kill -9 so long after its first records, or kills itself."""
    assert writers.stdin is not None
    assert writers.stdout is not None
    before = recording.log.stat().st_size
    print(life_s if by_itself else 0, file=writers.stdin, flush=True)
    pid = int(writers.stdout.readline())
    if not by_itself:
        deadline = time.monotonic() + PATIENCE_S
        while recording.log.stat().st_size == before:
            assert time.monotonic() < deadline
            time.sleep(0.0005)
        time.sleep(life_s)
    with nullcontext() if by_itself else recording.between_calls():
        if not by_itself:
            os.kill(pid, signal.SIGKILL)
        assert int(writers.stdout.readline()) == signal.SIGKILL


@pytest.mark.parametrize(("by_itself", "lives"), [(False, 200), (True, 100)], ids=["killed", "by itself"])
def test_kill_9_loses_no_record(by_itself: bool, lives: int, home: Path) -> None:
    """Regression: a kill could come between a change of a file and its record. The next life built
    on that change, and a replay had a hole there."""
    (home / "data").mkdir()
    recording = Recording(home / "data", home / "record.log")
    arguments = [str(recording.directory), str(recording.log), MARK.hex()]
    environment = {**os.environ, **recording.environment()}
    chooser, disk, read, wrong = random.Random(1), Disk(), 0, []
    with subprocess.Popen(
        [*PYTHON, WRITERS, *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writers:
        for life in range(lives):
            end_life(writers, recording, chooser.uniform(1e-6, LONGEST_LIFE_S), by_itself=by_itself)
            for entry in read_log(recording.log, read):
                disk.apply(entry)
                read += size_of(entry)
            different = differences(disk.latest(), recording.directory)
            if different or read < recording.log.stat().st_size:
                wrong.append((life, different))
                disk, read = Disk(recording.directory), recording.log.stat().st_size
    recording.close()
    assert not wrong, f"{len(wrong)} of {lives} kills: {wrong}"


def test_several_processes_share_a_recording(home: Path) -> None:
    """Regression: each numbered its files from 1, so changes of one became those of another. And a
    child that was forked during a call of another thread waited forever."""
    (home / "data").mkdir()
    recording = Recording(home / "data", home / "record.log")
    environment = {**os.environ, **recording.environment()}
    subprocess.run(
        [*PYTHON, PARENT, str(recording.directory)], env=environment, check=True, timeout=PATIENCE_S
    )
    disk = Disk()
    for entry in recording.entries():
        disk.apply(entry)
    recording.close()
    assert differences(disk.latest(), home / "data") == []
    assert {"parent", "child", "forked49"} <= disk.latest().keys()


def test_only_functions_of_libc_are_exported() -> None:
    """Any other name could stand in for one of the recorded process."""
    table = subprocess.run(
        ["nm", "-D", "--defined-only", str(recorder_library())], capture_output=True, text=True, check=True
    )
    names = [line.split()[-1] for line in table.stdout.splitlines()]
    libc = ctypes.CDLL(None)
    assert {"write", "fsync", "renameat2"} <= set(names)
    assert [name for name in names if not hasattr(libc, name)] == []
