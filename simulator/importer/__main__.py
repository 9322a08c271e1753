"""Runs ``python -m simulator.importer``."""

from simulator.importer.command import main

if __name__ == "__main__":
    main()
