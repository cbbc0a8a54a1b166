"""The code behind the data sources: reading a data directory, decoding record batches into Arrow
columns, planning offset ranges, tables of stored state."""
