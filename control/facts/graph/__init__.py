"""An application's graph: its parts, and what the sites and their instances add to it."""
