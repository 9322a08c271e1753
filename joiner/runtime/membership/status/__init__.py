"""The status of an application, for tools: who serves its units, and how far each unit has got.

Start with `summary`, which defines what is known about a unit.
"""
