"""The ledger's tables, one SQLite file at the site.

`alias` joins the fingerprints of one secret (a rotation of the site's key gives it a second one); everything else
points at an alias, so that joining two never moves a row. Times are µs since 1970, received ones included.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = 1

TABLES: Final = """
CREATE TABLE IF NOT EXISTS folded (id BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cursor (source TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS alias (
  id INTEGER PRIMARY KEY, key_id TEXT NOT NULL, fingerprint TEXT NOT NULL, secret INTEGER NOT NULL,
  UNIQUE (key_id, fingerprint));
CREATE INDEX IF NOT EXISTS alias_secret ON alias (secret);
CREATE INDEX IF NOT EXISTS alias_fingerprint ON alias (fingerprint);
CREATE TABLE IF NOT EXISTS sighting (
  alias INTEGER NOT NULL REFERENCES alias (id), host TEXT NOT NULL, uid INTEGER NOT NULL, user TEXT NOT NULL,
  source TEXT NOT NULL, path TEXT NOT NULL, spot TEXT NOT NULL, session TEXT NOT NULL, claim INTEGER NOT NULL,
  baseline INTEGER NOT NULL, kind TEXT NOT NULL, length INTEGER NOT NULL, strict INTEGER NOT NULL,
  honeytoken INTEGER NOT NULL, harness TEXT NOT NULL, job TEXT NOT NULL, line INTEGER NOT NULL,
  offset INTEGER NOT NULL, audience INTEGER NOT NULL, happened_first INTEGER NOT NULL,
  happened_last INTEGER NOT NULL, observed_first INTEGER NOT NULL, observed_last INTEGER NOT NULL,
  received_first INTEGER NOT NULL, received_last INTEGER NOT NULL, count INTEGER NOT NULL,
  PRIMARY KEY (alias, host, uid, user, source, path, spot, session, claim, baseline)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS sighting_user ON sighting (user);
CREATE TABLE IF NOT EXISTS action (
  id TEXT PRIMARY KEY, alias INTEGER NOT NULL REFERENCES alias (id), time INTEGER NOT NULL, verb TEXT NOT NULL,
  who TEXT NOT NULL, reason TEXT NOT NULL, ticket TEXT NOT NULL, at INTEGER NOT NULL, until INTEGER NOT NULL,
  told INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS action_untold ON action (told) WHERE told = 0;
CREATE INDEX IF NOT EXISTS action_alias ON action (alias);
CREATE TABLE IF NOT EXISTS pending (
  id TEXT PRIMARY KEY, digits TEXT NOT NULL, holder TEXT NOT NULL, time INTEGER NOT NULL, verb TEXT NOT NULL,
  who TEXT NOT NULL, reason TEXT NOT NULL, ticket TEXT NOT NULL, at INTEGER NOT NULL,
  until INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sent (
  alias INTEGER NOT NULL REFERENCES alias (id), what TEXT NOT NULL, recipient TEXT NOT NULL, clock INTEGER NOT NULL,
  time INTEGER NOT NULL, PRIMARY KEY (alias, what, recipient, clock)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS sent_time ON sent (time);
CREATE TABLE IF NOT EXISTS tally (
  day TEXT NOT NULL, host TEXT NOT NULL, control TEXT NOT NULL, rule TEXT NOT NULL, verdict TEXT NOT NULL,
  severity TEXT NOT NULL, harness TEXT NOT NULL, user TEXT NOT NULL, events INTEGER NOT NULL,
  facts INTEGER NOT NULL,
  PRIMARY KEY (day, host, control, rule, verdict, severity, harness, user)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gauge (
  day TEXT NOT NULL, host TEXT NOT NULL, name TEXT NOT NULL, harness TEXT NOT NULL, value INTEGER NOT NULL,
  PRIMARY KEY (day, host, name, harness)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS loss (
  day TEXT NOT NULL, host TEXT NOT NULL, stage TEXT NOT NULL, count INTEGER NOT NULL,
  PRIMARY KEY (day, host, stage)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS status (
  host TEXT NOT NULL, control TEXT NOT NULL, status TEXT NOT NULL, time INTEGER NOT NULL,
  PRIMARY KEY (host, control)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS change (
  id TEXT PRIMARY KEY, time INTEGER NOT NULL, host TEXT NOT NULL, rule TEXT NOT NULL, who TEXT NOT NULL,
  message TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS access (
  id INTEGER PRIMARY KEY, time INTEGER NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS hold (user TEXT PRIMARY KEY, reason TEXT NOT NULL, who TEXT NOT NULL,
  time INTEGER NOT NULL) WITHOUT ROWID;
"""
