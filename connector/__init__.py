"""The connector: turns MQTT events into Kafka records, and never loses an event that it has acknowledged.

    events.py           payload -> records or refusals              pure
    acknowledgement.py  which messages may be acknowledged          pure
    watermarks.py       which silent quantities get a watermark     pure
    session.py          the connection to the MQTT broker
    bridge.py           the service: receives, sends, acknowledges
    progress.py         counters and their log lines
    metrics.py          its metrics

The pure modules use no sockets, clocks, logs or threads.
"""
