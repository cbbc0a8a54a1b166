"""Named tuples made in one step, for code that makes one for each record or request.

Calling a NamedTuple class takes two Python calls, its maker takes none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T", bound=tuple[Any, ...])
F = TypeVar("F", bound=tuple[Any, ...])


def maker(made: type[T], fields: type[F]) -> Callable[[F], T]:
    """A function from the tuple of all fields to `made`. `fields`: the type of that tuple, for the
    type checker only; a call checks nothing."""
    return partial(tuple.__new__, made)
