"""Events: what is stored of a session. The launcher writes its own lines (guard.confine.state)."""
