"""Runs the service until it is stopped."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import ssl
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import uvicorn

from broker.settings import SettingsError
from control.access.guard import Guard
from control.access.login import Login, TokenOfRun
from control.access.users import Users
from control.actions.desk import Desk
from control.app import make_app
from control.facts.watcher import Watcher
from control.page.frame import mount_pages
from control.page.pages import PLACES
from control.settings import split_address
from joiner.runtime.clock import SystemClock

if TYPE_CHECKING:
    from control.settings import ControlSettings, Settings
    from joiner.runtime.clock import Clock

_DRAIN_S: Final = 2
"""How long to wait for open requests to be answered when the service stops."""

_CLOSE_S: Final = 2.0

_log = logging.getLogger(__name__)


def serve(applications: Sequence[Settings]) -> int:
    """Serve until SIGTERM or Ctrl-C, and return the exit status.

    Raises `SettingsError` if the users file, the certificate or the address cannot be used.
    """
    clock, settings = SystemClock(), applications[0].control
    # Uvicorn logs each refused WebSocket with its address, which identifies a page.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    directory = TokenOfRun() if settings.users_file is None else Users(settings.users_file)
    is_over_tls = settings.tls_certificate_file is not None or bool(settings.proxies)
    with _listening(settings) as listening, ExitStack() as at_the_end:
        host, port = listening.getsockname()[:2]
        # Cookies ignore ports, so another service on this host must not use the same name.
        login = Login(directory, settings.session_life / 1e9, f"lsb-session-{port}", clock, is_over_tls=is_over_tls)
        watchers = {one.application.name: Watcher(one, clock, one.endpoints()) for one in applications}
        desks = {name: Desk(watcher, clock) for name, watcher in watchers.items()}
        app = make_app(watchers, desks, login)
        mount_pages(app, PLACES, watchers, desks, login)
        server = _Server(_config(Guard(app, login, frozenset(settings.hosts)), settings))
        server.stop_on_signals(desks.values())
        following: list[Watcher | Desk] = [*desks.values(), *watchers.values()]
        at_the_end.callback(_close, following, clock)
        for one in following:
            one.start()
        scheme = "https" if settings.tls_certificate_file is not None else "http"
        if isinstance(directory, TokenOfRun):
            _hand_over(directory.token, at_the_end)
        _log.info("listening on %s://%s:%d", scheme, f"[{host}]" if ":" in host else host, port)
        server.run([listening])
    return 0


def _close(following: Iterable[Watcher | Desk], clock: Clock) -> None:
    """Stop all watchers and desks, and wait for them until a common deadline."""
    until_s = clock.monotonic_s() + _CLOSE_S
    for one in following:
        one.stop()
    for one in following:
        one.join(max(0.0, until_s - clock.monotonic_s()))


def _hand_over(token: str, at_the_end: ExitStack) -> None:
    """Print the token to a terminal. Otherwise write it to a file, because the output may be collected as a log."""
    if sys.stderr.isatty():
        sys.stderr.write(f"no control.users_file: log in as admin with this token, valid until exit: {token}\n")
        return
    number, name = tempfile.mkstemp(prefix="lsb-control-", suffix=".token")
    at_the_end.callback(Path(name).unlink, missing_ok=True)
    with os.fdopen(number, "w", encoding="ascii") as file:
        file.write(f"{token}\n")
    _log.info("no control.users_file: log in as admin with the token in %s, valid until exit", name)


class _Server(uvicorn.Server):
    def stop_on_signals(self, desks: Iterable[Desk]) -> None:
        """Stop cleanly on SIGTERM or SIGINT; if the same signal arrives again, exit immediately.

        ``desks``: stopped at once, because open requests may be waiting for them.
        """

        def handle(number: int, _frame: FrameType | None) -> None:
            self.should_exit = True
            for desk in desks:
                desk.stop()
            signal.signal(number, signal.SIG_DFL)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handle)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone. Uvicorn would raise them again on exit, so the exit status would not be 0."""
        yield


def _config(app: Guard, settings: ControlSettings) -> uvicorn.Config:
    certificate, key = settings.tls_certificate_file, settings.tls_key_file
    try:
        if certificate is not None:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"control.tls_certificate_file and tls_key_file cannot be used: {error}; the key must belong to the "
            "certificate and have no password"
        ) from error
    return uvicorn.Config(
        app,
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=bool(settings.proxies),
        forwarded_allow_ips=settings.proxies,
        timeout_graceful_shutdown=_DRAIN_S,
        limit_concurrency=500,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )


def _listening(settings: ControlSettings) -> socket.socket:
    host, port = split_address(settings.listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise SettingsError(f"cannot listen on {settings.listen}: {why}; choose another control.listen") from error
