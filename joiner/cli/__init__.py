"""The command line of the joiner. May import everything; nothing imports it. Begin with `main`."""
