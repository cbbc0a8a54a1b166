"""The stored formats, byte for byte: record batches, keys and values of the state store. Each head
draws its part, and docs/format.md leads to them."""

from kbroker.quick_kio import import_kio_serial_alone

import_kio_serial_alone()
