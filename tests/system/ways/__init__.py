"""Every distinct way out of a session that we know of, tried with the mask, without it, and without guard."""
