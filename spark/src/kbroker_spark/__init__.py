"""What the data sources share: reading a data directory, decoding record batches into Arrow
columns, planning offset ranges."""
