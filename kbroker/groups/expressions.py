"""Regular expressions of clients, in RE2's syntax: bounded in length, in program size and in
memory, and cached.

RE2 matches in time that is linear in the text, but each character may cost as much as the program
is long. Expressions of a few characters may have a program of megabytes (`\\pL{0,1000}`). Both
compiling and matching let other threads run, so the broker does them in a thread
(kbroker/broker/groups/expressions.py).

This module must not know what is matched.
"""

from __future__ import annotations

from typing import Any, Final

from kbroker.bounded_cache import BoundedCache
from kbroker.errors import ErrorCode, KafkaError

MAX_LENGTH: Final = 4096
"""Characters: a choice between some hundred names of topics."""
MAX_INSTRUCTIONS: Final = 10_000
"""Of the compiled program. A choice between names takes about one for each character."""
MEMORY_BYTES: Final = 512 << 10
"""Of one expression: its program, and the states that matching adds."""
CACHED_BYTES: Final = 32 << 20


class Expressions:
    """Remembers compiled expressions, and why others were refused."""

    def __init__(self) -> None:
        self._known: BoundedCache[str, Any] = BoundedCache(CACHED_BYTES)

    def __len__(self) -> int:
        return len(self._known)

    def is_known(self, pattern: str) -> bool:
        """Whether `compiled` costs one look-up."""
        return len(pattern) > MAX_LENGTH or self._known.get(pattern) is not None

    def compiled(self, pattern: str) -> Any:  # noqa: ANN401 - google-re2 has no types
        """Its `fullmatch(text)` returns None if the text does not match. Raises
        INVALID_REGULAR_EXPRESSION with the reason."""
        known = self._known.get(pattern)
        if known is None:
            known = compile_pattern(pattern)
            self.add(pattern, known)
        if isinstance(known, str):
            raise KafkaError(ErrorCode.invalid_regular_expression, known)
        return known

    def add(self, pattern: str, known: Any) -> None:  # noqa: ANN401
        """The result of `compile_pattern`."""
        if len(pattern) <= MAX_LENGTH:
            size = len(known) if isinstance(known, str) else MEMORY_BYTES
            self._known.put(pattern, known, 4 * len(pattern) + size)


def compile_pattern(pattern: str) -> Any:  # noqa: ANN401
    """The compiled expression, or the reason why there is none. Takes up to a fifth of a second."""
    if len(pattern) > MAX_LENGTH:
        return _refusal(f"{pattern[:40]}...", f"it has {len(pattern)} characters, and {MAX_LENGTH} may be")
    import re2  # Imported here, as most brokers never see an expression.

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MEMORY_BYTES
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        return _refusal(pattern, error.args[0].decode() if isinstance(error.args[0], bytes) else str(error))
    finally:
        re2.purge()  # Its own cache has 128 of any size.
    if compiled.programsize > MAX_INSTRUCTIONS:
        return _refusal(pattern, "pattern too large - its repetitions multiply")
    return compiled


def _refusal(pattern: str, reason: str) -> str:
    return f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {reason}."
