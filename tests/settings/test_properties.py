"""Files of name=value lines, read as java.util.Properties reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbroker.errors import OperatorError
from kbroker.settings.properties import as_properties, read_properties, read_text

KAFKA = Path(__file__).parent / "kafka"


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
        ("a=b\n#\nc=\\u12", r"f:3: \\u needs four hexadecimal digits; write \\\\ for a backslash"),
        ("x=\\\n y\n=2", r"f:3: this line has no name"),
        ("a=b\nc=d\0", r"f:2: the character NUL is in no name and no value"),
        ("a\\u0000=b", r"f:1: the character NUL is in no name and no value"),
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


def test_a_file_is_read_as_java_reads_it() -> None:  # CFG-54
    """syntax.json is what java.util.Properties of Java 17 reads from the file: every separator,
    escape, comment, continued line and line end, and a character of Latin-1."""
    found = read_properties(read_text(KAFKA / "syntax.properties"), "f")
    assert found == json.loads((KAFKA / "syntax.json").read_text())


def test_utf_8_with_and_without_a_byte_order_mark(tmp_path: Path) -> None:
    """Java would read it as Latin-1; no person means that."""
    for text in ("name=Größe", "\ufeffname=Größe"):
        (tmp_path / "f").write_text(text, "utf-8")
        assert read_properties(read_text(tmp_path / "f"), "f") == {"name": "Größe"}


def test_utf_16_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("name=value", "utf-16")
    with pytest.raises(OperatorError, match=r"f:1: the character NUL .* text in UTF-8 or ISO-8859-1"):
        read_properties(read_text(tmp_path / "f"), "f")


@pytest.mark.parametrize(
    "value", ["", "a b", " two blanks ", "\tx", "a\\b\\\\c", "a\r\nb\n", "#=:!", "Größe"]
)
def test_what_is_written_is_read(value: str) -> None:
    assert read_properties(as_properties({"a.b": value, "c": "d"}), "f") == {"a.b": value, "c": "d"}


def test_the_last_value_of_a_name_applies() -> None:
    assert read_properties("a=1\nb=2\na=3", "f") == {"a": "3", "b": "2"}
