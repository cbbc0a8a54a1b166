"""The errors of the data sources: one line each, which says what to do. Spark shows the line within
a traceback.

Spark pickles errors between its processes, so these hold only their text and plain values. This
module must not know the code that raises them.
"""

from __future__ import annotations

AFTER_LOSS = "Set the option failOnDataLoss to false to continue without it, or choose other offsets"
"""The advice in the text of a DataLoss. A program on top of these sources may replace it."""


class SourceError(ValueError):
    """The options are invalid, or the directory cannot be read as requested. The text is one
    line."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))


class DataLoss(SourceError):
    """Requested records no longer exist (retention, DeleteRecords, a deleted topic). `resume` is
    the offset at which reading resumes with failOnDataLoss=false; None if the range has no more
    records."""

    def __init__(self, text: str, resume: int | None = None) -> None:
        super().__init__(text)
        self.resume = resume

    def __reduce__(self) -> tuple[type[DataLoss], tuple[str, int | None]]:
        return type(self), (str(self), self.resume)
