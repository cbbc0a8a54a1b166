"""Assignors, which give partitions to members: the SPI and the built-in ones."""
