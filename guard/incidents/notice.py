"""What is collected, why, who sees it and for how long: worked out of the settings in force, for people to read."""

from __future__ import annotations

import os
from contextlib import suppress

from guard.errors import GuardError
from guard.incidents import settings


def text(state: str, config: str) -> str:
    """Write the notice.

    Args:
        state: the state directory, "" for the usual one.
        config: the configuration directory.

    Raises:
        PolicyError: a settings file does not load; a notice that might be wrong is not given.
    """
    from guard.events import settings as events

    mine, kept = settings.load(config), events.load(config)
    days = kept.limits.max_age_s // 86400
    low, high = kept.privacy.log, kept.privacy.alert
    free = kept.privacy
    ends = f"{mine.keep_days:g} days after they are closed" if mine.keep_days else "until they are erased"
    out = [
        "What guard stores about people on this node",
        "",
        "Collected   of sessions under `guard run`, and of the process trees of coding agents: what was started,",
        "            what was refused or changed, and where a secret was seen. Nothing of a person's own shell but",
        "            a count of programs, without name. No prompts, no answers, no keystrokes, no file's content.",
        "Secrets     are taken out before anything is stored. Of a secret stay its kind, its length, its place and a",
        "            fingerprint under a key of the site's, from which it cannot be had back.",
        f"Arguments   {_argv(high.argv)} for what needs a person's attention, {_argv(low.argv)} for the rest.",
        f"Paths       {_paths(high.paths)} for what needs a person's attention, {_paths(low.paths)} for the rest.",
        "Why         to keep shared machines safe, to find exposed keys before others do, and to tell their holders.",
        "Who sees    root, " + (f"members of {', '.join(kept.readers)}, " if kept.readers else "")
        + "and everybody their own. Reading others' records is recorded and reported.",
        f"How long    events on this node {days} days at most"
        + f"; incidents {ends}.",
        f"Exempt      {len(free.exempt_users)} users and {len(free.exempt_groups)} groups, by root's file.",
        f"Sent to     {', '.join(_feeds(config)) or 'nobody: no feed is set up here'}.",
        f"Mail        {'account holders, then PI and InfoSec, about keys' if mine.mail else 'is switched off'}.",
        "Yours       guard privacy show --mine, guard privacy export --mine, guard incidents mine",
    ]  # fmt: skip
    if mine.contact:
        out += ["", mine.contact]
    return "\n".join(out) + "\n"


def _argv(word: str) -> str:
    return {"none": "nothing", "program": "the program's name", "full": "redacted in full"}.get(word, word)


def _paths(word: str) -> str:
    words = {"hashed": "as a digest", "below-project": "in full below the project, else as a digest", "full": "in full"}
    return words.get(word, word)


def _feeds(config: str) -> list[str]:
    """Return the feeds of this node in words; none where there is no file."""
    from guard.feeds import config as feeds

    path = os.path.join(config, "feeds.toml")
    if not os.path.exists(path):
        return []
    return [f"{feed.name} ({feed.kind})" for feed in feeds.load(path).feeds]


def out_of_reach(user: str, config: str) -> list[str]:
    """Return the places that a purge on this host does not reach, each with what to do there.

    Args:
        user: the account.
        config: the configuration directory.
    """
    from guard.feeds import config as feeds

    order = f"guard privacy purge --user {user} --yes"
    out = [f"the spools of other nodes: guard privacy nodes --user {user} | pdsh -w - {order}"]
    queries = {
        "opensearch": f'POST INDEX/_delete_by_query {{"query": {{"term": {{"tree.user": "{user}"}}}}}}',
        "splunk-hec": f'index=INDEX tree.user="{user}" | delete',
        "nats": "nats stream purge STREAM --subject=SUBJECT.NODE (the stream keeps no index by user)",
    }
    with suppress(GuardError):
        for feed in feeds.load(os.path.join(config, "feeds.toml")).feeds:
            if feed.kind != "archive":
                out.append(f"{feed.name} ({feed.kind}): {queries.get(feed.kind, 'what its receiver keeps')}")
    return out
