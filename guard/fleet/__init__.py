"""A site of many nodes: what came in from them, which of them are silent, and what of their streams is missing.

- `lines`: an event out of whatever carried it: JSON lines, RFC 5424, rsyslog's files, an archive, a spool
- `store`: the site's table of received events, by id, with who sent them
- `judge`: silence, gaps, a weaker backend, a lost control, a sender that is not who it says
- `alerts`: what was judged, as events
- `heartbeat`: what a node says of itself every five minutes
"""
