"""The connector: turns events from MQTT into records in Kafka, and loses nothing that it acknowledged to MQTT.

    events.py           payload -> records or refusals              pure
    acknowledgement.py  which messages may be acknowledged          pure
    watermarks.py       which silent quantities get a watermark     pure
    session.py          the connection to the MQTT broker
    bridge.py           the service: receives, sends, acknowledges
    progress.py         counts, and their log lines
    metrics.py          its metrics

The pure modules use no socket, clock, log or thread.
"""
