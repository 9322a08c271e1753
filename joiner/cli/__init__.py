"""The joiner's command line. It may import any package, and no package imports it. Start reading at `main`."""
