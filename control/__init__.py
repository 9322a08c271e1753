"""The control service: shows operators what an application does, over HTTP.

It owns nothing. It reads the topics of an application like any other consumer, so that its death stops nothing and
several of them do no harm. Start reading at `facts.watcher` (what is known), `access.guard` (who may ask) and `app`.
"""
