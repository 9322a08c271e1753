"""``python -m joiner``."""

from joiner.run.cli import main

if __name__ == "__main__":
    main()
