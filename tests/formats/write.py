"""Write data directories of this version as test data: run once for every format version, and
commit the result.

    python -m tests.formats.write tests/formats/v5

For each engine there is one directory of a stopped broker and one of a killed one. NAME.tar.xz
holds the directory as `data`, and as `expected.json` the broker's answers about it and the records
left in its queue. Files in tests/formats/vN are never rewritten once a release can have made such
directories.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kbroker.testing.broker import open_test_broker
from tests.formats.archives import archive
from tests.formats.filling import BROKER_CONFIG, fill, look
from tests.formats.securing import AUTHORIZED, look_at_security, secure

PAIRS = {"segment": "segment", "lmdb": "lmdb", "rocksdb": "rocksdb", "segment+lmdb": "lmdb"}
ENDINGS = ("stopped", "killed")


def write(target: Path, name: str, state_storage: str, ending: str) -> None:
    with open_test_broker(
        storage=name.split("+")[0], state_storage=state_storage, config={**BROKER_CONFIG, **AUTHORIZED}
    ) as broker:
        left = fill(broker)
        secure(broker)
        broker.restart()
        seen = {**look(broker), **look_at_security(broker)}
        if ending == "killed":
            broker.kill()
        else:
            broker.stop()
        expected = broker.log_file.with_name("expected.json")
        expected.write_text(json.dumps({"seen": seen, "left": left}))
        archive(target / f"{name}-{ending}.tar.xz", broker.data_dir, expected)


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for each, state in PAIRS.items():
        for end in ENDINGS:
            write(directory, each, state, end)
