"""Shell lines of a page, run unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

_SETUP = f'set -eu -o pipefail; kbroker() {{ "{sys.executable}" -m kbroker "$@"; }}\n'


def run_lines(lines: Sequence[str], bootstrap: str) -> str:
    """Returns their output. `kbroker` is the one under test, and its broker the one at
    `bootstrap`."""
    env = {**os.environ, "KBROKER_BOOTSTRAP": bootstrap}
    command = ["bash", "-c", _SETUP + "\n".join(lines)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
