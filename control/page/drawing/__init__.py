"""Draws a topology: where everything goes, and how it looks. Does not use NiceGUI."""
