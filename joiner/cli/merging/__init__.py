"""``joiner merge``: writes the union of the replicas' outputs to topics of its own, exactly once.

For each kind of output (``topics.out``, ``late``, ``unmatched`` and ``rejected``), the topics of all replicas are
merged into ``<topic>.merged``, by the protocol of `joiner.library.merging`. A transaction contains the messages and, in
the topic ``<application>.merged.state``, the positions up to which the replicas were read. Start reading at `merger`.
"""
