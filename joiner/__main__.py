"""``python -m joiner`` runs the command `joiner`."""

from joiner.cli.main import main

if __name__ == "__main__":
    main()
