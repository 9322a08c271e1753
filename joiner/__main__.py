"""``python -m joiner``."""

from joiner.cli.main import main

if __name__ == "__main__":
    main()
