"""The databases and streams that results can be written to. The setting ``db_connector.sink`` chooses one.

A sink implements `db_connector.sinks.sink.Sink`. In a database, a result that is written again replaces itself or is
left out, so the service may write any batch twice.
"""
