"""The redactor: no secret is stored.

Importing this package costs a few standard-library modules; rules, engine and carriers load when they are first used.
"""

from guard.redact.spans import Redacted, program_name, withhold

__all__ = ["Redacted", "program_name", "withhold"]
