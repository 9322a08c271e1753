"""The connector: turns MQTT events into Kafka records, and never loses an event that it has acknowledged.

    events.py           payload -> records and refusals             pure
    numbers.py          number payload and topic -> a record        pure
    acknowledgement.py  which messages may be acknowledged          pure
    watermarks.py       which silent quantities get a watermark     pure
    batches.py          records of many events -> Arrow messages    pure
    session.py          the connection to the MQTT broker
    bridge.py           the service: receives, sends, acknowledges
    progress.py         counters and their log lines
    metrics.py          the connector's Prometheus metrics

The pure modules open no sockets, read no clocks, write no logs and start no threads.
"""
