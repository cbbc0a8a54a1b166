"""What SIGHUP means to a program that serves until a signal.

The system sends it when the terminal of a session is closed: then the program is to stop. A program
without a terminal, a daemon, gets it from an operator: by custom it then reads its files again.
"""

from __future__ import annotations

import os
import signal
from enum import Enum


class HangUp(Enum):
    STOP = "stop"
    RELOAD = "reload"
    IGNORED = "ignored"
    """As nohup wants it."""


def meaning_of_hang_up() -> HangUp:
    """Call it at the start: later, a terminal that has been closed looks like none. A terminal that
    is closed may send SIGHUP twice, as the shell does and as the system does."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return HangUp.IGNORED
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return HangUp.RELOAD
    return HangUp.STOP
