"""A process that tries wrong passwords: `python -m tests.server.guesser PORT PER_SECOND THREADS`.

It prints a number for each attempt that it has sent, and ends when its input does. A process of its
own, since it would take turns with the client that measures.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from contextlib import suppress

from tests.server.sasl_world import authenticate_frame, handshake_frame, plain_token


def guess(port: int, user: str, pause_s: float, stop: threading.Event) -> None:
    sent = handshake_frame() + authenticate_frame(plain_token(user, "wrong"))
    due_s = time.monotonic()
    while not stop.is_set():
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
            sock.sendall(sent)
        sys.stdout.write("1\n")
        sys.stdout.flush()
        due_s += pause_s
        stop.wait(max(0.0, due_s - time.monotonic()))


def main(port: int, per_second: float, count: int) -> None:
    stop = threading.Event()
    threads = [
        threading.Thread(target=guess, args=(port, ("alice", "nobody")[each % 2], count / per_second, stop))
        for each in range(count)
    ]
    for each in threads:
        each.start()
    sys.stdin.read()
    stop.set()
    for each in threads:
        each.join()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
