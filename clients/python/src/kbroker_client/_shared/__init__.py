"""Modules of kbroker that the client has too: links in a checkout, copies in a wheel."""

from .quick_kio import import_kio_alone

import_kio_alone()
