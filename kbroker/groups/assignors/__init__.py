"""Which member is assigned which partitions: the SPI and the built-in assignors."""
