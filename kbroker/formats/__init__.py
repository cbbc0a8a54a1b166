"""The stored formats, byte for byte (docs/format.md): record batches, keys and values of the state
store."""

from kbroker.quick_kio import import_kio_serial_alone

import_kio_serial_alone()
