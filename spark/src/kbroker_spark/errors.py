"""What the data sources refuse, as one line that says what to do. Spark puts a traceback around it;
the line is in its text.

Pickled by Spark between its processes, so these hold nothing but their text. This module must not
know what raises them.
"""

from __future__ import annotations

AFTER_LOSS = "Set the option failOnDataLoss to false to go on without it, or choose other offsets"
"""What to do about a DataLoss, in its text; a program on these sources may have a word of its own
for it."""


class SourceError(ValueError):
    """Options, a directory or its content that cannot be read as asked. The text is one line."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))


class DataLoss(SourceError):
    """Records that were asked for are not there any more: retention, DeleteRecords, a deleted
    topic. `resume` is the offset from which on reading can go on with failOnDataLoss=false; None:
    there is nothing left of the range."""

    def __init__(self, text: str, resume: int | None = None) -> None:
        super().__init__(text)
        self.resume = resume

    def __reduce__(self) -> tuple[type[DataLoss], tuple[str, int | None]]:
        return type(self), (str(self), self.resume)
