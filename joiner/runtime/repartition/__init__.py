"""Copies topics that are not partitioned by a stream's key to repartition topics, which are, exactly once.

The joiner needs the records of a thing in the partition that its name determines. Each message of a topic with
``repartition = true`` is copied to that partition of an internal topic, with its value and timestamp unchanged. The
copies and the offsets up to which the originals were copied are committed in one transaction, and the generation of the
consumer group fences processes that have lost their partitions (KIP-447).

Start reading at `repartitioner`. This package may import `kafka`, and the messages of `task`.
"""
