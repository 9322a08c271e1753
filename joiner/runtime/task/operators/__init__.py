"""The operators of a unit: its joins and aligns. Each has its held records, and the effects of a batch.

They share one interface (`operator`), so a unit treats all of them alike.
"""
