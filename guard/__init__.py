"""guard: kernel-level guardrails beneath coding agents on shared Linux machines."""

__version__ = "0.1.0"
