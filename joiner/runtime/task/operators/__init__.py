"""A unit's operators, that is, its joins and aligns. Each holds records and computes the effects of a batch.

They share one interface (`operator`), so a unit treats all of them alike.
"""
