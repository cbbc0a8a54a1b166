"""DeleteTopics: names and ids of the same topic, duplicate rows, and odd requests."""

from __future__ import annotations

from tests.differential.script import Session, script
from tests.differential.scripts.base_topics import UNKNOWN, ZERO, delete, metadata


@script("BASE-18")
def a_name_and_an_id(s: Session) -> None:
    one, two, three = s.topic(), s.topic(), s.topic()
    delete(s, (one.name, ZERO), (None, one.topic_id), (None, one.topic_id))
    delete(s, (one.name, ZERO), (one.name, ZERO), (None, one.topic_id), (two.name, ZERO))
    delete(s, (one.name, one.topic_id), (three.name, ZERO))
    delete(s, (one.name, two.topic_id), (None, one.topic_id))
    s.until(lambda: s.gone(one) and s.gone(three), "the broker knows of the deletions")
    metadata(s, (None, one.name), (None, two.name), (None, three.name))


@script("BASE-18")
def rows_listed_twice(s: Session) -> None:
    one, two = s.topic(), s.topic()
    missing = f"{s.name}-missing"
    delete(s, (None, ZERO), (None, ZERO))
    delete(s, (one.name, one.topic_id), (one.name, one.topic_id))
    delete(s, (missing, ZERO), (missing, ZERO), (None, UNKNOWN), (None, UNKNOWN))
    delete(s, *[(one.name, ZERO)] * 3, *[(None, two.topic_id)] * 3)
    delete(s, *[(one.name, ZERO)] * 3, (None, one.topic_id))
    for version in (1, 5):
        s.call("delete_topics", version, topic_names=[two.name, two.name, missing], timeout=30_000)
    s.until(lambda: s.gone(one), "the broker knows of the deletion")
    metadata(s, (None, one.name), (None, two.name))


@script("BASE-18")
def good_rows_beside_bad_ones(s: Session) -> None:
    one, two, three = s.topic(), s.topic(), s.topic()
    delete(s, (None, ZERO), (one.name, ZERO), ("a b", ZERO), ("", ZERO))
    delete(s, (f"{s.name}-missing", UNKNOWN), (None, two.topic_id), (None, UNKNOWN))
    delete(s, (one.name, ZERO), (two.name, three.topic_id), (None, two.topic_id))
    s.until(lambda: s.gone(one) and s.gone(two), "the broker knows of the deletions")
    metadata(s, (None, one.name), (None, two.name), (None, three.name))
