"""How a text carries secrets: one module a carrier, chosen by name or line by line (`mixed`).

A carrier turns complete lines into spans. Most texts need nothing but the rules, which know quoting and
escapes at any depth; a carrier adds what only the container knows: that JSON must stay JSON, that one key
came in two `write` calls.
"""

NAMES = ("auto", "text", "jsonl", "strace", "pty", "history")
"""How a text may be said to be read."""
