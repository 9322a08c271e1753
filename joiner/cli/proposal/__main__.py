"""Runs ``python -m joiner.cli.proposal``."""

from joiner.cli.proposal.command import main

if __name__ == "__main__":
    main()
