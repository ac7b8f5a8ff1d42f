"""A day's work on a login node with real tools: no denial, or the one overlay to add is named in it."""
