"""The format kbroker-groups. Spark finds the source by this package's name. Imports stay trivial,
because an import error in one such package hides the sources of all."""

from kbroker_spark.table_source import TableSource


class DefaultSource(TableSource):
    format = "kbroker-groups"
    module = "kbroker_spark.groups_table"
