"""A control service as a child process, for tests on real servers."""

from __future__ import annotations

import http
import io
import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.services import DEADLINE_S, kill, logged, start_service, stop, wait_until

_STOP_S: Final = 10.0
"""Longer than for the services of the pipeline, because it waits for open requests and for its threads."""

_ANSWER_S: Final = 60.0
_RETRY_S: Final = 0.2
_PASSING: Final = ("is not current: ", "not known at the moment: try again")
"""Said of an order that is refused because Kafka has not answered in time."""


class ControlService:
    """A running service. Without a users file, its requests have the token that it has made."""

    def __init__(self, configs: Sequence[Path], log: Path, **environment: str) -> None:
        self.log = log
        given = {"LSB_CONTROL__LISTEN": "127.0.0.1:0", **environment}
        files = [argument for config in configs for argument in ("--config", str(config))]
        self.process: subprocess.Popen[bytes] = start_service("control", "run", *files, environment=given, log=log)
        try:
            self.port = int(logged(self.process, log, r"listening on http://127\.0\.0\.1:(\d+)")[1])
            self.token = ""
            if "LSB_CONTROL__USERS_FILE" not in environment:
                file = logged(self.process, log, r"with the token in (\S+), valid")[1]
                self.token = Path(file).read_text().strip()
        except BaseException:
            self.kill()
            raise

    def get(self, path: str, *, at_once: bool = False) -> Any:
        """Return what the service answers to a request below ``/api/v1``. Raises `urllib.error.HTTPError`.

        Repeats the request as long as something cannot be read now. ``at_once``: return or raise the first answer.
        """
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/api/v1/{path}")
        request.add_header("Authorization", f"Bearer {self.token}")
        return _answer_to(request) if at_once else _last_answer_to(request)

    def order(self, application: str, order: Any, key: str = "", **query: Any) -> Any:
        """Order something, with a new idempotency key unless one is given. Return the action, or the plan of a dry run.

        Repeats the request as long as it is refused for a reason that passes by itself, such as that a service that has
        just started has not read the audit topic yet. Raises `urllib.error.HTTPError` if it is refused for another one.
        """
        path = f"applications/{application}/actions?{urllib.parse.urlencode(query)}"
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/api/v1/{path}", json.dumps(order).encode())
        request.add_header("Authorization", f"Bearer {self.token}")
        request.add_header("Content-Type", "application/json")
        request.add_header("Idempotency-Key", key or uuid.uuid4().hex)
        return _last_answer_to(request)

    def actions(self, application: str) -> list[Any]:
        """Return the last actions, the oldest first."""
        found: list[Any] = self.get(f"applications/{application}/actions")["actions"]
        return found

    def outcome(self, application: str, action: str, deadline_s: float = DEADLINE_S) -> Any:
        """Wait until an action has ended, and return it."""

        def ended() -> list[Any]:
            # A service that has just started does not know the action yet.
            return [one for one in self.actions(application) if one["id"] == action and one["ended_ms"]]

        wait_until(lambda: bool(ended()), f"action {action} has ended", deadline_s)
        return ended()[0]

    def done(self, application: str, action: str, deadline_s: float = DEADLINE_S) -> str:
        """Wait until an action is done, and return its outcome in words. Fail if it has ended otherwise."""
        ended = self.outcome(application, action, deadline_s)
        if ended["state"] != "done":
            pytest.fail(json.dumps(ended, indent=1))
        text: str = ended["text"]
        return text

    def status(self, application: str) -> Any:
        """Return the status of an application, or None if it has never run."""
        return self.get(f"applications/{application}")["status"]

    def served(self, application: str) -> dict[str, list[int]]:
        """Return the units of each instance at the site of plain processes."""
        status = self.status(application)
        found: dict[str, list[int]] = {} if status is None else status["processes"].get("process", {})
        return found

    def all_serve(self, application: str, *instances: str) -> bool:
        """Return whether each of these instances serves units at the site of plain processes."""
        # One request for all of them, because the service limits how many it answers in a second.
        served = self.served(application)
        return all(served.get(instance) for instance in instances)

    def stop(self) -> int:
        """Stop the service and return its exit status."""
        return stop(self.process, deadline_s=_STOP_S)

    def kill(self) -> None:
        """Kill the service."""
        kill(self.process)


def _answer_to(request: urllib.request.Request) -> Any:
    with urllib.request.urlopen(request, timeout=_ANSWER_S) as response:
        return json.load(response)


def _last_answer_to(request: urllib.request.Request) -> Any:
    """Repeat a request as long as it is refused for a reason that passes by itself. Return the answer."""
    found: list[Any] = []

    def is_answered() -> bool:
        try:
            found.append(_answer_to(request))
        except urllib.error.HTTPError as error:
            why = error.read()
            is_passing = error.code == http.HTTPStatus.CONFLICT and any(one in why.decode() for one in _PASSING)
            if error.code != http.HTTPStatus.SERVICE_UNAVAILABLE and not is_passing:
                # Whoever has asked may read the reason as well.
                raise urllib.error.HTTPError(
                    request.full_url, error.code, error.msg, error.headers, io.BytesIO(why)
                ) from error
        return bool(found)

    wait_until(is_answered, f"{request.full_url} is answered", poll_s=_RETRY_S)
    return found[0]


@contextmanager
def control_service(
    config: Path, folder: Path, name: str = "control", *more: Path, **environment: str
) -> Iterator[ControlService]:
    """Run a service that shows the application of each settings file, and kill it at the end if it still runs."""
    service = ControlService([config, *more], folder / f"{name}.log", **environment)
    try:
        yield service
    finally:
        service.kill()
