"""What is there against what must be there: outputs, events of a recording, points in the database.

May import `model` and `found`. Begin with `outputs`.
"""
