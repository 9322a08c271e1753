"""Runs the service until it is stopped."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Final

import uvicorn

from broker.settings import SettingsError
from control.access.login import Login, TokenOfRun
from control.access.users import Users
from control.app import make_app
from control.facts.watcher import Watcher
from joiner.runtime.clock import SystemClock

if TYPE_CHECKING:
    from control.settings import ControlSettings, Settings

_DRAIN_S: Final = 2
"""How long to wait for the answers to open requests when the service stops."""

_CLOSE_S: Final = 2.0

_log = logging.getLogger(__name__)


def serve(applications: Sequence[Settings]) -> int:
    """Serve until SIGTERM or Ctrl-C, and return the exit status.

    Raises `SettingsError` if the users file or the certificate cannot be used, and OSError if the address is taken.
    """
    clock, settings = SystemClock(), applications[0].control
    is_over_tls = settings.tls_certificate_file is not None or settings.behind_tls_proxy
    directory = TokenOfRun() if settings.users_file is None else Users(settings.users_file)
    with _listening(settings) as listening:
        address = listening.getsockname()
        # Cookies ignore ports, so another service on this host must not use the same name.
        cookie = f"lsb-session-{address[1]}"
        login = Login(directory, settings.session_life / 1e9, cookie, clock, is_over_tls=is_over_tls)
        watchers = {one.application.name: Watcher(one, clock) for one in applications}
        app = make_app(watchers, login, frozenset(settings.hosts))
        server = _Server(_config(app, settings))
        server.stop_on_signals()
        for watcher in watchers.values():
            watcher.start()
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        scheme = "https" if settings.tls_certificate_file is not None else "http"
        _log.info("listening on %s://%s:%d", scheme, host, address[1])
        if isinstance(directory, TokenOfRun):
            # Not a log line: logs are collected, and this is for the person who started the service.
            sys.stderr.write(f"no control.users_file: this token is valid until the service stops: {directory.token}\n")
            sys.stderr.flush()
        try:
            server.run([listening])
        finally:
            for watcher in watchers.values():
                watcher.close(_CLOSE_S)
    return 0


class _Server(uvicorn.Server):
    def stop_on_signals(self) -> None:
        """Stop cleanly on SIGTERM or SIGINT; if the same signal arrives again, exit immediately."""

        def handle(number: int, _frame: FrameType | None) -> None:
            self.should_exit = True
            signal.signal(number, signal.SIG_DFL)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handle)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone: uvicorn would raise them again at the end, so that the exit status is not 0."""
        yield


def _config(app: object, settings: ControlSettings) -> uvicorn.Config:
    certificate, key = settings.tls_certificate_file, settings.tls_key_file
    try:
        if certificate is not None:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"control.tls_certificate_file or tls_key_file cannot be used: {error}") from error
    return uvicorn.Config(
        app,  # type: ignore[arg-type] # an ASGI application
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=_DRAIN_S,
        limit_concurrency=500,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )


def _listening(settings: ControlSettings) -> socket.socket:
    host, _, port = settings.listen.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {settings.listen}: {error.strerror}") from error
