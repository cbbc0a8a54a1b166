"""The format kbroker-groups. Spark looks here for a source by name; imports stay trivial: an error
in one such package hides them all."""

from kbroker_spark.table_source import TableSource


class DefaultSource(TableSource):
    format = "kbroker-groups"
    module = "kbroker_spark.groups_table"
