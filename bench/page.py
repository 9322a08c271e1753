"""Measures how soon the control service's page shows a large application under load, and what keeping it open costs.

``python -m bench.page --report docs/evidence/bench_page`` starts a temporary Kafka broker, a joiner with 64 units that
continuously joins records of 10,000 things, the control service, and a browser (Chromium, on the ``PATH``). It writes
``.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from playwright.sync_api import Browser, Page, sync_playwright

from bench.growth import memory_of
from bench.harness.pipeline import FIRST_MS, Application, about, make_sender, make_topic, own_kafka, send
from bench.harness.report import spread, table, write
from broker.partitioner import partition_of
from broker.settings import KafkaSettings
from control.access.users import add_user
from control.roles import Role

UNITS: Final = 64
THINGS: Final = 10_000
RATE: Final = 2_000
"""Records a second while the page is open."""

_DATA: Final = "page.data"
_NAME, _PASSWORD = "otto", "measure the page"  # for a service that runs during one benchmark
_SEEN_MS: Final = 120_000
_START_S: Final = 60.0
_LOOK_S: Final = 0.05
_ALL_RUN: Final = """
units => {
  const rows = [...document.querySelectorAll("tr")].map(row => row.innerText.replace(/\\s/g, " "));
  return rows.filter(text => /process one.*running/.test(text)).length === units;
}
"""
_HAS_TEXT: Final = "text => document.body.innerText.includes(text)"
_LONG_TASKS: Final = """
() => { window.longTasks = [];
        new PerformanceObserver(list => list.getEntries().forEach(one => window.longTasks.push(one.duration)))
          .observe({entryTypes: ["longtask"]}); }
"""


class Service(NamedTuple):
    """A running control service. ``process`` is its process id, and ``session`` a cookie."""

    port: int
    process: int
    session: str

    def seconds_and_bytes_of(self, path: str) -> tuple[float, int]:
        """Send a request. Return how long the answer took, in seconds, and its size in bytes."""
        began_s = time.perf_counter()
        body = _ask(self.port, "GET", f"/api/v1/{path}", {"Cookie": self.session})[1]
        return time.perf_counter() - began_s, len(body)

    def core_seconds(self) -> float:
        """Return the CPU time that the service has used."""
        used = Path(f"/proc/{self.process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK")


def records(start: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield input records, alternating between the two streams, for one thing after another."""
    for number in range(start, start + count):
        thing, quantity = f"R{number // 2 % THINGS}", ("torque", "speed")[number % 2]
        at_ms = FIRST_MS + number // (2 * THINGS) * 1_000 + number % 2
        yield {"thing": thing, "quantity": quantity, "phenomenonTime": at_ms, "result": number % 7, "id": str(number)}


@contextlib.contextmanager
def flowing(kafka: KafkaSettings, first: int) -> Iterator[None]:
    """Send `RATE` records a second, starting with record number ``first``."""
    stop, producer = threading.Event(), make_sender(kafka)

    def feed() -> None:
        number, began_s = first, time.monotonic()
        while not stop.wait(_LOOK_S):
            due = first + int((time.monotonic() - began_s) * RATE)
            for record in records(number, due - number):
                send(producer, _DATA, partition_of(record["thing"].encode(), UNITS), record)
            number = due
            producer.poll(0)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        producer.flush()


@contextlib.contextmanager
def serving(config: Path, folder: Path) -> Iterator[Service]:
    """Run the control service."""
    users, log = folder / "users", folder / "control.log"
    add_user(users, _NAME, Role.OPERATOR, _PASSWORD)
    environment = os.environ | {
        "LSB_CONTROL__LISTEN": "127.0.0.1:0",
        "LSB_CONTROL__USERS_FILE": str(users),
        "LSB_LOG": "text",
    }
    with log.open("w") as out:
        command = [sys.executable, "-m", "control", "run", "--config", str(config)]
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)  # noqa: S603 - our own service
    try:
        port = int(_logged(process, log, r"listening on http://127\.0\.0\.1:(\d+)"))
        login = json.dumps({"name": _NAME, "password": _PASSWORD})
        headers, _ = _ask(port, "POST", "/api/v1/session", {"Content-Type": "application/json"}, login)
        yield Service(port, process.pid, headers["Set-Cookie"].partition(";")[0])
    finally:
        process.terminate()
        process.wait()


def _ask(
    port: int, method: str, path: str, headers: dict[str, str], body: str | None = None
) -> tuple[http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_S)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
    if answer.status != http.HTTPStatus.OK:
        raise RuntimeError(f"{method} {path}: {answer.status} {content[:500]!r}")
    return answer.headers, content


def _logged(process: subprocess.Popen[bytes], log: Path, pattern: str) -> str:
    until_s = time.monotonic() + _START_S
    while (found := re.search(pattern, log.read_text())) is None:
        if process.poll() is not None or time.monotonic() > until_s:
            raise RuntimeError(f"the control service has not started: {log.read_text()[-2000:]}")
        time.sleep(_LOOK_S)
    return found[1]


class Visit:
    """A browser window with a logged-in user, and what it receives. `close` closes it."""

    def __init__(self, browser: Browser, service: Service) -> None:
        """Log in, and wait until all units are shown as running.

        ``first_s`` is how long this took, including the password check, which is slow on purpose.
        """
        self._context = browser.new_context(base_url=f"http://127.0.0.1:{service.port}")
        self.page: Page = self._context.new_page()
        self.received = 0
        """What the page has received so far: HTTP bytes as sent, and characters of WebSocket messages before
        compression."""
        watched = self._context.new_cdp_session(self.page)
        watched.send("Network.enable")
        watched.on("Network.loadingFinished", lambda event: self._note(event["encodedDataLength"]))
        watched.on("Network.webSocketFrameReceived", lambda event: self._note(len(event["response"]["payloadData"])))
        self.page.goto("/")
        self.page.get_by_label("Name").fill(_NAME)
        self.page.get_by_label("Password").fill(_PASSWORD)
        self.received, began_s = 0, time.perf_counter()
        self.page.keyboard.press("Enter")
        self.page.wait_for_function(_ALL_RUN, arg=UNITS, timeout=_SEEN_MS)
        self.first_s, self.first_bytes = time.perf_counter() - began_s, self.received

    def switch_s(self, link: str, seen: str, arg: Any) -> float:
        """Open another page by its link. Return how long it takes until the script ``seen`` is true, in seconds."""
        began_s = time.perf_counter()
        self.page.get_by_role("link", name=link).click()
        self.page.wait_for_function(seen, arg=arg, timeout=_SEEN_MS)
        return time.perf_counter() - began_s

    def close(self) -> None:
        """Close the window."""
        self._context.close()

    def _note(self, count: float) -> None:
        self.received += int(count)


def watch(visit: Visit, service: Service, for_s: float) -> dict[str, float]:
    """Leave the page open. Return what arrives, what it costs, and the longest time that the page was busy."""
    visit.page.evaluate(_LONG_TASKS)
    before, spent_s, began_s = visit.received, service.core_seconds(), time.monotonic()
    # The browser's events are handled during the wait.
    visit.page.wait_for_timeout(for_s * 1_000)
    took_s = time.monotonic() - began_s
    busy = visit.page.evaluate("window.longTasks")
    return {
        "received a second (bytes)": (visit.received - before) / took_s,
        "cores": (service.core_seconds() - spent_s) / took_s,
        "longest task of the page (s)": max(busy, default=0.0) / 1_000,
    }


def measure(service: Service, runs: int, watch_s: float) -> dict[str, list[float]]:
    """Open the page ``runs`` times. Return the values of all runs for each measured figure."""
    found: dict[str, list[float]] = {}
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        raise RuntimeError("no browser: apt-get install chromium")
    with sync_playwright() as playwright:
        # The browser's sandbox needs privileges that a container does not have.
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for run in range(runs):
            visit = Visit(browser, service)
            values = {
                "first view (s)": visit.first_s,
                "received for the first view (bytes)": float(visit.first_bytes),
                **watch(visit, service, watch_s),
                "another page (s)": visit.switch_s("Actions", _HAS_TEXT, "What was ordered"),
                "back again (s)": visit.switch_s("Overview", _ALL_RUN, UNITS),
            }
            visit.close()
            for name, path in _PATHS.items():
                took_s, size = service.seconds_and_bytes_of(path)
                values |= {f"{name} (s)": took_s, f"bytes of {name}": float(size)}
            values["memory of the service (MB)"] = memory_of(service.process) / 1024**2
            for name, value in values.items():
                found.setdefault(name, []).append(value)
            print(f"run {run + 1}: {json.dumps({name: round(value, 3) for name, value in values.items()})}", flush=True)
        browser.close()
    return found


_PATHS: Final = {
    "status": "applications/page",
    "topology": "applications/page/topology",
    "keys of one unit": "applications/page/keys?unit=0&limit=50",
    "keys of all units": "applications/page/keys?limit=50",
}


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="how often to open the page (default 5)")
    parser.add_argument("--watch", type=float, default=20.0, help="seconds to leave it open (default 20)")
    parser.add_argument("--records", type=int, default=400_000, help="records joined beforehand (default 400,000)")
    parser.add_argument("--report", type=Path, default=Path(".lsb/bench_page"), help="path of the .json and .md files")
    options = parser.parse_args()
    with own_kafka() as (kafka, folder):
        make_topic(kafka, _DATA, UNITS)
        producer = make_sender(kafka)
        for record in records(0, options.records):
            send(producer, _DATA, partition_of(record["thing"].encode(), UNITS), record)
        producer.flush()
        application = Application(kafka, folder, "page", UNITS, data=_DATA)
        joiner = application.start()
        try:
            application.wait_until_through([joiner])
            with flowing(kafka, options.records), serving(application.config, folder) as service:
                found = measure(service, options.runs, options.watch)
        finally:
            joiner.terminate()
            joiner.wait()
    given = {"units": UNITS, "things": THINGS, "records a second": RATE, "runs": options.runs}
    rows = [(name, spread(values, 0 if "bytes" in name or "MB" in name else 2)) for name, values in found.items()]
    lines = table(["", "min / median / max"], rows)
    write(options.report, "What the page of the control service costs", about() | given, found, lines)
    print(f"first view: {statistics.median(found['first view (s)']):.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
