"""The monitor: every agent tree of the node, seen from the kernel.

`facts` is what a backend saw, `source` how it is asked and told; `backends` choose and load. What a fact means is
decided above (`lineage`, `rules`), from these values alone.
"""
