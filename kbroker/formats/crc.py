"""CRC-32C: the compiled function of the package crc32c, without the rest of the package.

The package imports a command line and looks up its own version: argparse, importlib.metadata, email
and zipfile, which nothing else in a broker needs. They take a twentieth of a start.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from crc32c import crc32c


def _compiled() -> Callable[..., int]:
    package = find_spec("crc32c")
    places = package.submodule_search_locations if package else None
    spec = PathFinder.find_spec("crc32c._crc32c", places)
    if spec is None or spec.loader is None:  # a version of the package that is made up of other files
        from crc32c import crc32c

        return crc32c
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[..., int] = module.crc32c
    return found


if not TYPE_CHECKING:
    crc32c = _compiled()

__all__ = ["crc32c"]
