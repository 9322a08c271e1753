"""The connector: events from MQTT become records in Kafka, and nothing that MQTT acknowledged is lost.

    events.py           payload -> records or refusals    pure
    acknowledgement.py  what may be acknowledged, when    pure
    watermarks.py            which silent quantity gets a watermark pure
    session.py          the connection to the MQTT broker
    bridge.py           the service: takes, sends, acknowledges
    metrics.py          what it tells of itself

The pure modules know no socket, clock, log or thread.
"""
