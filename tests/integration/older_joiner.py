"""Runs a joiner of the release whose units the consumer group assigned; see `tests.simulation.older_release`."""

from __future__ import annotations

from joiner.cli.main import main
from joiner.runtime.runners import process
from tests.simulation.older_release import OlderMembership

if __name__ == "__main__":
    setattr(process, "SiteMembership", OlderMembership)  # noqa: B010 - mypy rejects a plain assignment
    main()
