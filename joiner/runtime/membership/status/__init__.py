"""The status of an application, for tools: who serves its units, and how far they are.

Start with `summary`, which defines what is known of a unit.
"""
