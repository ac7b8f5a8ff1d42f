"""`guard key`: the site's fingerprint key, made once and installed on every node."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Annotated

import typer

from guard.errors import EXIT_FOUND, GuardError, StateError
from guard.redact import fingerprint, lists
from guard.redact.client import Client

app = typer.Typer(no_args_is_help=True, help="The site's fingerprint key.")


def _fail(error: Exception) -> typer.Exit:
    sys.stderr.write(f"guard key: {error}\n")
    return typer.Exit(error.exit_code if isinstance(error, GuardError) else 3)


def _at(context: typer.Context, config: str) -> str:
    from guard.cli import Places

    # The full command line takes `--config` out wherever it stands; this application by itself has its own.
    places = context.obj
    if config or isinstance(places, Places):
        os.environ["GUARD_CONFIG_DIR"] = config or places.config
    return fingerprint.site_path()


_Config = Annotated[str, typer.Option("--config", help="Configuration directory.")]


@app.command()
def init(context: typer.Context, config: _Config = "") -> None:
    """Make the site's key on one node; the other nodes get the same file by `guard key install`."""
    path = _at(context, config)
    try:
        key = fingerprint.new_key("site")
        fingerprint.store(path, [key], replace=False)
    except (GuardError, OSError) as error:
        raise _fail(error) from None
    sys.stderr.write(f"made {path}\ncarry it to every node over a protected way; there: guard key install FILE\n")
    sys.stdout.write(f"{key.key_id}\n")


@app.command()
def install(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help="The key file of the first node; - reads standard input.")],
    replace: Annotated[bool, typer.Option("--replace", help="Take the place of a different key.")] = False,
    config: _Config = "",
) -> None:
    """Install the site's key on this node."""
    path = _at(context, config)
    try:
        if file == "-":
            text = sys.stdin.read(65536)
        else:
            with open(file, encoding="ascii") as source:
                text = source.read(65536)
        keys = fingerprint.parse(text, "site")
        present = fingerprint.site_keys()
        known = present is not None and (
            present[0].key_id == keys[0].key_id or any(k.key_id == present[0].key_id for k in keys[1:])
        )
        if present is not None and not known and not replace:
            raise StateError(
                f"{path} holds another key ({present[0].key_id})",
                "exposures of the two never merge; --replace if that is meant",
            )
        fingerprint.store(path, keys, replace=True)
    except UnicodeDecodeError:
        raise _fail(StateError(f"{file} is no key file", "take the file that guard key init made")) from None
    except (GuardError, OSError) as error:
        raise _fail(error) from None
    sys.stdout.write(f"{keys[0].key_id}\n")


@app.command()
def status(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    config: _Config = "",
) -> None:
    """Tell which key is in force here; exit 1 when this node has no site key."""
    path = _at(context, config)
    try:
        keys = fingerprint.site_keys()
    except (GuardError, OSError) as error:
        raise _fail(error) from None
    hidden = keys is None and os.geteuid() != 0 and os.path.exists(path)
    service = Client().status()
    key_id = keys[0].key_id if keys else service.get("key_id")
    facts = {
        "path": path,
        "installed": keys is not None or hidden,
        "key_id": key_id,
        "overlap": [{"key_id": k.key_id, "until": k.until} for k in (keys or [])[1:]],
        "service": service or None,
    }
    if as_json:
        sys.stdout.write(json.dumps(facts) + "\n")
    elif key_id:
        sys.stdout.write(f"site key   {key_id}\n")
        for key in (keys or [])[1:]:
            sys.stdout.write(f"overlap    {key.key_id} until {time.strftime('%Y-%m-%d', time.gmtime(key.until))}\n")
        sys.stdout.write(f"service    {'runs' if service else 'does not run'}\n")
    elif hidden:
        sys.stdout.write("site key   installed, root's alone\nservice    does not run: exposures are marked local\n")
    else:
        sys.stdout.write("site key   none: exposures found here are marked local and match nothing elsewhere\n")
        sys.stdout.write("           install the site's with guard key install FILE, or make it with guard key init\n")
    if not facts["installed"] and not key_id:
        raise typer.Exit(EXIT_FOUND)


@app.command()
def rotate(
    context: typer.Context,
    overlap: Annotated[
        float, typer.Option("--overlap", help="Days in which exposures carry both fingerprints.")
    ] = 30.0,
    config: _Config = "",
) -> None:
    """Make the site's next key; carry the file to every node again."""
    path = _at(context, config)
    try:
        keys = fingerprint.site_keys()
        if keys is None:
            raise StateError(
                f"there is no key at {path} to rotate, or it may not be read",
                "guard key init makes the first, as root",
            )
        fingerprint.store(path, fingerprint.rotate(keys, "site", overlap, time.time()), replace=True)
        keys = fingerprint.site_keys() or []
    except (GuardError, OSError) as error:
        raise _fail(error) from None
    sys.stderr.write(f"made the next key in {path}; install this file on every node within the overlap\n")
    sys.stdout.write(f"{keys[0].key_id}\n")


@app.command()
def honeytoken(
    context: typer.Context,
    label: Annotated[str, typer.Option("--label", help="Where it was laid out; for the reader of the alert.")] = "",
    config: _Config = "",
) -> None:
    """Read a honeytoken's value from standard input and list its fingerprint: wherever it is seen, that is critical."""
    _at(context, config)
    try:
        keys = fingerprint.site_keys()
        if keys is None:
            raise StateError("no site key is installed here", "make one with `guard key init`")
        value = sys.stdin.buffer.read(65536).strip()
        if len(value) < 8:
            raise StateError("a honeytoken has at least 8 characters", "give its value on standard input")
        name = keys[0].of(value)
        path = lists.add_honeytoken(name, label)
    except (GuardError, OSError) as error:
        raise _fail(error) from None
    sys.stderr.write(f"listed in {path}; carry that file to every node\n")
    sys.stdout.write(f"{name}\n")
