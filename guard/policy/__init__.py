"""The policy core: TOML in, plan out. Pure, and tested without a kernel."""
