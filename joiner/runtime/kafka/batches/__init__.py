"""Reads the input in batches, as columns or as objects; groups them by unit and topic; verifies gaps in the offsets.

It also gets the schemas that messages name (`registry`). Start reading at `reader`. This package may import `clients`
and `transaction` from `joiner.runtime.kafka`, and the calls into the native client library from `broker.kafka`.
"""
