"""Do the rows at the end of a chain of applications come out, each once?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.chain import chain, results
from tests.integration.joiner_application import seeded_entries


@pytest.mark.slow
def test_a_watermark_at_the_start_of_a_chain_releases_the_rows_at_its_end(kafka: str, tmp_path: Path) -> None:
    with chain(kafka, tmp_path) as made:
        entries = seeded_entries(8, 900)
        joiners = [app.start() for app in made]
        made.first.produce(entries[:600])
        made.first.wait_until_through()
        # The application in the middle dies while results and watermarks arrive.
        joiners[1].kill()
        made.first.produce(entries[600:])
        joiners[1] = made.second.start()
        for app in made:
            app.wait_until_through()
        waiting = len(results(made.second, "table"))
        powers = made.release()
        assert waiting < powers > 60
        assert [joiner.stop() for joiner in joiners] == [0, 0, 0]
        made.verify()
