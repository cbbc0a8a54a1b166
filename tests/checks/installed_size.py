"""The installed size of kbroker: `python -m tests.checks.installed_size [EXTRA ...]`.

One line for each distribution that `pip install kbroker` (or `kbroker[EXTRA]`) installs, largest
first: the size of its files, and the distributions that require it. An editable install, as in a
checkout, counts as nothing.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def closure(root: str, extras: Iterable[str]) -> Iterator[tuple[str, set[str]]]:
    """Each distribution that `root` installs here, and the names of those that require it. A
    requirement that is not installed raises PackageNotFoundError."""
    users: dict[str, set[str]] = {root: set()}
    left = deque([(root, tuple(extras))])
    done = set(left)
    while left:
        name, wanted = left.popleft()
        for required in map(Requirement, distribution(name).requires or ()):
            if required.marker is not None and not any(
                required.marker.evaluate({"extra": extra}) for extra in ("", *wanted)
            ):
                continue
            user_of = canonicalize_name(required.name)
            users.setdefault(user_of, set()).add(name)
            if (step := (user_of, tuple(sorted(required.extras)))) not in done:
                done.add(step)
                left.append(step)
    yield from users.items()


def size_bytes(installed: Distribution) -> int:
    files = (installed.locate_file(file) for file in installed.files or ())
    return sum(path.stat().st_size for path in map(Path, map(str, files)) if path.is_file())


def main() -> None:
    try:
        found = dict(closure("kbroker", sys.argv[1:]))
    except PackageNotFoundError as missing:
        sys.exit(f"{missing.name} is not installed here: install kbroker with these extras first")
    sizes = {name: size_bytes(distribution(name)) for name in found}
    for name in sorted(found, key=sizes.__getitem__, reverse=True):
        print(f"{sizes[name] / 1e6:8.1f} MB  {name:24} {', '.join(sorted(found[name]))}".rstrip())
    print(f"{sum(sizes.values()) / 1e6:8.1f} MB  {len(found)} distributions")


if __name__ == "__main__":
    main()
