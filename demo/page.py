"""Starts the demo's control service, and keeps the pipeline running while users look at the page."""

from __future__ import annotations

import os
import re
import time
import webbrowser
from pathlib import Path
from typing import Final

from demo.services import ServiceFailed, Services

_NAME: Final = "control"
_READY: Final = "listening on "
_CHECK_S: Final = 1.0


def open_page(services: Services) -> None:
    """Start the control service, print how to log in, and open the page if this machine has a browser."""
    services.start(_NAME, "control", "run", LSB_CONTROL__LISTEN="127.0.0.1:0")
    services.wait_for(_NAME, _READY)
    logged = services.logged(_NAME)
    address = re.search(rf"{_READY}(\S+)", logged)
    if address is None:
        raise ServiceFailed(f"the control service did not report its address:\n{logged}")
    file = re.search(r"with the token in (\S+),", logged)
    token = "" if file is None else Path(file[1]).read_text(encoding="ascii").strip()
    who = f"name: admin  password: {token}" if token else "log in as a user of control.users_file"
    print(f"the page: {address[1]}  {who}", flush=True)
    # Without a display, a text-mode browser would take over the terminal.
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(address[1])


def keep_open(services: Services) -> None:
    """Wait for Ctrl-C. Raises `ServiceFailed` if a service ends."""
    print("\n== Everything keeps running. Look at the page, and press Ctrl-C to stop", flush=True)
    try:
        while True:
            services.check()
            time.sleep(_CHECK_S)
    except KeyboardInterrupt:
        print()
