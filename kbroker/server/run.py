"""Runs a broker and its listeners until a signal: what `kbroker start` calls. Also sets up the
allocator of the process.

The order of a stop: requests first, then the admin HTTP endpoint, then the broker (open_broker).
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import resource
import signal
import socket
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from kbroker.broker.broker import Broker, open_broker
from kbroker.broker.options import ReadyInfo, StartOptions
from kbroker.errors import OperatorError
from kbroker.server.connection_limits import check_open_files
from kbroker.server.listener import Door, Server
from kbroker.server.sasl import sasl_of
from kbroker.server.terminal import HangUp, meaning_of_hang_up
from kbroker.server.tls import ListenerTls, tls_of
from kbroker.settings.listeners import Listener, admin_listener, plain_listener

if TYPE_CHECKING:
    from kbroker.server.admin_http import AdminHttp

logger = logging.getLogger(__name__)

_GRACE_S = 10.0
_ADMIN_GRACE_S = 1.0
_BACKLOG = 1024

KEEP_BYTES = 16 << 20
"""Freed memory at the end of the heap that stays with the process."""
_MAP_FROM_BYTES = 4 << 20
"""Blocks of at least this size have a mapping each, and are returned to the system at once."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_TRIM_EVERY_S = 2.0
_TRIM_FROM_BYTES = 4 << 20
"""Holes are returned after the process has grown by so much: 5 ms for a heap of 60 MB."""
_MEMORY = "/proc/self/statm"

Certificates = list[ListenerTls]


async def serve(options: StartOptions, stop: trio.Event, certificates: Certificates | None = None) -> None:
    """Open a broker and serve it until `stop` is set. Then requests that have arrived are answered,
    everything written is synced, and the broker is closed. Cancelling skips the answers, not the
    closing. `certificates`: gets those of the listeners."""
    with ExitStack() as sockets:
        doors = [
            _open_door(sockets, options, each)
            for each in options.listeners or (plain_listener(options.listen, options.advertise),)
        ]
        options.config.forget("sasl.jaas.config")
        admin_door = _open_admin_door(sockets, options)
        if certificates is not None:
            certificates += [door.tls for door in (*doors, admin_door) if door is not None and door.tls]
        first = doors[0].listener
        assert first is not None
        bound = replace(options, listen=first.address, advertise=first.advertised)
        async with open_broker(bound) as broker:
            admin_url = None if admin_door is None else _url_of(admin_door)
            server = Server(broker, admin_url)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.serve, *doors)
                admin = _open_admin(broker, admin_door)
                if admin is not None:
                    nursery.start_soon(admin.serve)
                listeners = tuple(door.listener for door in doors if door.listener is not None)
                options.on_ready(ReadyInfo(*first.address, admin_url, listeners))
                _notify_ready()
                await stop.wait()
                await server.stop(_GRACE_S)
                if admin is not None:
                    await admin.stop(_ADMIN_GRACE_S)
                nursery.cancel_scope.cancel()


def bind(address: tuple[str, int], option: str = "--listen") -> socket.socket:
    """A listening socket. Raises OperatorError if the address is not available; `option` names the
    option or setting that gave it."""
    host, port = address
    try:
        info = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(info[0], info[1])
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(info[4])
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise OperatorError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another address with {option}"
        ) from error
    listener.setblocking(False)
    return listener


def _open_door(sockets: ExitStack, options: StartOptions, listener: Listener) -> Door:
    """Bind a listener. Its address is then the real one: port 0 means any free port. Raises
    OperatorError."""
    tls, sasl = tls_of(options.config, listener), sasl_of(options.config, listener)
    sock = sockets.enter_context(bind(listener.address, "listeners" if options.listeners else "--listen"))
    host, port = sock.getsockname()[:2]
    address = (listener.address[0] or host, port)
    bound = replace(listener, address=address, advertised=listener.advertised or address)
    return Door(sock, bound, tls, sasl)


def _open_admin_door(sockets: ExitStack, options: StartOptions) -> Door | None:
    """Likewise for `--admin`."""
    if options.admin is None:
        return None
    listener = admin_listener(options.config, options.admin)
    tls = tls_of(options.config, listener)
    return Door(sockets.enter_context(bind(options.admin, "--admin")), listener, tls)


def _url_of(door: Door) -> str:
    host, port = door.sock.getsockname()[:2]
    scheme = "http" if door.tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _open_admin(broker: Broker, door: Door | None) -> AdminHttp | None:
    """Imported only with --admin: it takes time and memory."""
    if door is None or broker.options.admin is None:
        return None
    from kbroker.server.admin_access import AdminAccess
    from kbroker.server.admin_actions import AdminActions
    from kbroker.server.admin_forms import AdminForms
    from kbroker.server.admin_http import AdminHttp
    from kbroker.server.admin_views import AdminViews

    access = AdminAccess(broker, door.sock.getsockname()[1], door.tls)
    view = AdminActions(access, AdminForms(access).views(), AdminViews(broker).views())
    names = (broker.options.admin[0], *broker.options.admin_names)
    return AdminHttp(door.sock, view, names, kafka=f"{broker.host}:{broker.port}", tls=door.tls)


def run(options: StartOptions) -> int:
    """Serve until a signal: the first SIGTERM or SIGINT finishes the requests in flight and closes,
    the second ends the process at once. SIGHUP closes in the same way if the process has a
    terminal; otherwise certificates are read again, and `options.on_reload` is called.

    Returns 0. Raises OperatorError if the broker cannot start.
    """
    check_open_files()
    keep_freed_memory()
    # Prints the stack of every thread on stderr: for a broker that does not answer.
    faulthandler.register(signal.SIGQUIT)
    trio.run(_serve_until_signal, options)
    return 0


async def _serve_until_signal(options: StartOptions) -> None:
    stop = trio.Event()
    refused: list[OperatorError] = []
    certificates: Certificates = []
    hang_up = meaning_of_hang_up()

    async def serve_and_leave(nursery: trio.Nursery) -> None:
        try:
            await serve(options, stop, certificates)
        except OperatorError as error:
            refused.append(error)
        nursery.cancel_scope.cancel()

    handled = [signal.SIGTERM, signal.SIGINT]
    if hang_up is not HangUp.IGNORED:
        handled.append(signal.SIGHUP)
    with trio.open_signal_receiver(*handled) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_and_leave, nursery)
            nursery.start_soon(return_freed_memory)
            async for number in signals:
                if number == signal.SIGHUP:
                    if hang_up is HangUp.RELOAD:
                        await _reload(options, certificates)
                        continue
                    if stop.is_set():  # A closed terminal may send it twice.
                        continue
                if stop.is_set():
                    logger.warning("second signal: ending at once")
                    os._exit(128 + number)
                logger.info("received %s: closing", signal.Signals(number).name)
                stop.set()
    if refused:
        raise refused[0]


async def _reload(options: StartOptions, certificates: Certificates) -> None:
    logger.info("received SIGHUP: reading the certificates and the log level again")
    options.on_reload()
    for each in certificates:
        await trio.to_thread.run_sync(each.reload_if_changed)


def _notify_ready() -> None:
    """Notify systemd if it started this process (sd_notify): send READY=1 to the datagram socket
    that it names."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        try:
            notify.sendto(b"READY=1", address)
        except OSError as error:
            logger.warning("sd_notify failed: %s", error)


def keep_freed_memory() -> bool:
    """Make the C library keep some of the memory that the process has freed, for all threads
    together. Returns whether it has glibc's mallopt and took the settings; nothing depends on it.

    glibc returns each large block (128 KiB or more) to the system when it is freed, and maps a new
    one for the next request of a megabyte. The kernel then clears and maps every page again: more
    than half of the cost of producing in batches of 1 MB (2.1 ms a megabyte, 0.8 without).

    By default glibc gives a thread an arena of its own, and each arena would keep that much.
    Threads that read parked batches kept 35 MB so. Python's threads take turns anyway, so one arena
    is enough.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError) as error:
        logger.debug("the C library's allocator stays as it is: %s", error)
        return False
    settings = (_M_MMAP_THRESHOLD, _MAP_FROM_BYTES), (_M_TRIM_THRESHOLD, KEEP_BYTES), (_M_ARENA_MAX, 1)
    return all([mallopt(*each) for each in settings])


async def return_freed_memory() -> None:
    """Return pages within the heap that hold nothing any more, after the process has grown. Runs
    until it is cancelled, or ends where the C library is not glibc.

    glibc returns only the end of its heap by itself. Batches of many sizes leave holes: after a
    million jobs were parked in 20 s, 20 to 35 MB stayed with the process until a restart.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
        memory_fd = os.open(_MEMORY, os.O_RDONLY)  # Kept: later there may be no file to spare.
    except (AttributeError, OSError) as error:
        logger.debug("freed memory within the heap stays with the process: %s", error)
        return
    try:
        least_bytes = _anonymous_bytes(memory_fd)
        while True:
            await trio.sleep(_TRIM_EVERY_S)
            now_bytes = _anonymous_bytes(memory_fd)
            if now_bytes > least_bytes + _TRIM_FROM_BYTES:
                await trio.to_thread.run_sync(trim, KEEP_BYTES)
                least_bytes = _anonymous_bytes(memory_fd)
            else:
                least_bytes = min(least_bytes, now_bytes)
    finally:
        os.close(memory_fd)


def _anonymous_bytes(memory_fd: int) -> int:
    """Memory of the process that no file backs."""
    _, resident, shared, *_ = map(int, os.pread(memory_fd, 256, 0).split())
    return (resident - shared) * resource.getpagesize()
