"""The records of the topics, and their columnar encoding. Start with `records`.

No Kafka here: bytes in, bytes out.
"""
