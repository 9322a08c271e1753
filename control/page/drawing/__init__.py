"""The drawing of a topology: where everything is, and how it looks. Without NiceGUI."""
