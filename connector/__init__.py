"""The connector: turns MQTT messages into Kafka records, and never loses a message that it has acknowledged.

    formats/            topic and payload -> records and refusals   pure
    templates.py        which topics have which format              pure
    acknowledgement.py  which messages may be acknowledged          pure
    watermarks.py       which silent quantities get a watermark     pure
    batches.py          records of many events -> Arrow messages    pure
    session.py          the connection to the MQTT broker
    bridge.py           the service: receives, sends, acknowledges
    progress.py         counters and their log lines
    metrics.py          the connector's Prometheus metrics

The pure modules open no sockets, read no clocks, write no logs and start no threads.
"""
