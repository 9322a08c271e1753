"""The graph of an application: its parts, and what the sites and their instances contribute to it."""
