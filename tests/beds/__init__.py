"""Servers that tests need beside them, real ones, on loopback, started and ended by the test."""
