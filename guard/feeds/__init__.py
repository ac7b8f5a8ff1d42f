"""Feeds: from the spool to what a site has. One file a destination, imported only where it is configured.

A destination is a `Sink` (guard.feeds.sink): it takes a batch and says which events are acknowledged. What drives it
(guard.feeds.runner), the cursor (guard.feeds.source), and the process around each feed (guard.feeds.processes) are
the same for all.
"""
