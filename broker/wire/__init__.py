"""The records of the topics, and their columnar encoding. Start reading at `records`.

No Kafka here: bytes in, bytes out.
"""
