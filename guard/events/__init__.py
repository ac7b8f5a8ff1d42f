"""Events: what happened, after redaction; the only thing that guard stores or sends.

- `model`, `wire`, `producer`: the frozen event, its line of JSON, and who makes it
- `spool`, `reader`, `entry`, `chain`: the node's durable store: one writer, many readers, a cursor a feed
- `sink`: how a producer hands events over to the service's socket
- `privacy`: what of a person is left out before anything is stored
- `budget`: what is stored but not sent: repetitions, floods, exposures known already
- `intake`: what a peer may claim, and what the service puts in its place
- `service`: `guard serve events`
- `forms/`: OCSF, ECS, CEF and Falcosidekick, one file each
"""
