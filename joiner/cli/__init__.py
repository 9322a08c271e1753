"""The command line of the joiner. It may import every package; no package imports it. Start with `main`."""
