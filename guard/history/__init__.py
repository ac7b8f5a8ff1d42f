"""Shell histories: a secret is taken out of a line before the shell stores it (docs/shells.md)."""
