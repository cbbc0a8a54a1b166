"""The format kbroker-state. Spark finds the source by this package's name. Imports stay trivial,
because an import error in one such package hides the sources of all."""

from kbroker_spark.table_source import TableSource


class DefaultSource(TableSource):
    format = "kbroker-state"
    module = "kbroker_spark.state_table"
