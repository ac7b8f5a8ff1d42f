"""The forms in which events leave guard, one module each, each with `render(event) -> bytes`: one line, no newline.

- `event`: our own, the line as it is stored
- `ocsf`: Open Cybersecurity Schema Framework 1.5.0
- `ecs`: Elastic Common Schema 8.11
- `cef`: ArcSight Common Event Format 0
- `falcosidekick`: the JSON that Falcosidekick takes from Falco

A module is imported when a feed asks for its form.
"""

from typing import Final

NAMES: Final = ("event", "ocsf", "ecs", "cef", "falcosidekick")
