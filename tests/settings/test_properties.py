"""Files of name=value lines, read as java.util.Properties reads them."""

from __future__ import annotations

import pytest

from kbroker.errors import OperatorError
from kbroker.settings.properties import read_properties


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("# a=b\n! c=d\n\n   \n", {}),
        ("a=b", {"a": "b"}),
        ("  a  =  b c  ", {"a": "b c  "}),
        ("a:b\nc d\ne", {"a": "b", "c": "d", "e": ""}),
        ("a=b=c:d # e", {"a": "b=c:d # e"}),
        ("a=one \\\n   two \\\n   three\nb=c", {"a": "one two three", "b": "c"}),
        ("a=x\\\\\nb=c", {"a": "x\\", "b": "c"}),
        ("a=x\\\\\\\ny", {"a": "x\\y"}),
        ('a=\\u00e4\\n\\t\\=\\:\\"\\q', {"a": '\u00e4\n\t=:"q'}),
        ("a\\=b\\ c=d", {"a=b c": "d"}),
        ("a=b\\", {"a": "b"}),
        ("a=b\\\n# c", {"a": "b# c"}),
        ("a=b\r\nc=d\r\n", {"a": "b", "c": "d"}),
    ],
)
def test_properties(text: str, found: dict[str, str]) -> None:
    assert read_properties(text, "f") == found


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a=b\n=c", r"f:2: this line has no name; write name=value"),
        ("a=b\n#\nc=d\na=e", r"f:4: a is given more than once"),
        ("x=\\\n y\na=1\na=2", r"f:4: a is given"),
    ],
)
def test_lines_that_are_refused(text: str, line: str) -> None:
    with pytest.raises(OperatorError, match=line):
        read_properties(text, "f")


def test_two_escapes_may_be_one_character() -> None:
    assert read_properties(r"a=\ud83d\ude00 \u00e9 é", "here") == {"a": "\U0001f600 é é"}


@pytest.mark.parametrize("line", [r"sasl.password=canary\ud800", r"sasl.password=\ude00\ud83dcanary"])
def test_half_a_character_is_refused_without_the_value(line: str) -> None:
    with pytest.raises(OperatorError) as failure:
        read_properties(f"# a comment\n{line}", "here")
    assert str(failure.value) == (
        "here:2: a \\u escape is one half of a character; write both, or the character"
    )
