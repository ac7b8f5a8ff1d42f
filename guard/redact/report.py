"""Exposures: one sighting a record, never a byte of the value; JSON Lines, SARIF, or filed."""

from __future__ import annotations

import json
import os
import time
from types import TracebackType
from typing import Final, Self

from guard.errors import GuardError
from guard.redact import lists
from guard.redact.exposed import Surroundings
from guard.redact.files import Output
from guard.redact.fingerprint import own_folder, state_dir
from guard.redact.marking import Marks
from guard.redact.opinion import in_baseline, read_baseline, second_opinion
from guard.redact.rules.advice import advice_for
from guard.redact.scan import Scanner
from guard.redact.stream import Observer, Sighting

_OPINIONS: Final = 500
"""A second opinion is asked for so many sightings a run; it costs milliseconds each."""


class Report:
    """Collects the exposures of a run.

    Args:
        path: where `--report` goes; empty for nowhere. `*.sarif` gives SARIF 2.1.0.
        record: whether the exposures are filed in the state directory too.
        baseline: whether they are marked as known from before.
        marks: gives the fingerprints.
        known: a detect-secrets baseline; what it lists is no finding.
        scanner: of the run; with it what is filed tells who could read the place, and since when.
    """

    def __init__(
        self,
        path: str,
        record: bool,
        baseline: bool,
        marks: Marks,
        scanner: Scanner | None = None,
        known: str = "",
    ) -> None:
        self.count = 0
        self._known = _baseline(known)
        self.collected: list[dict[str, object]] = []
        self._marks = marks
        self._baseline = baseline
        self._opinions = _OPINIONS if path else 0
        self._lists = lists.load()
        self._more = Surroundings(scanner) if record and scanner is not None else None
        self._collect = not path and not record
        self._sarif = path.endswith(".sarif")
        self._output = Output(path) if path else None
        self._file = _exposures() if record else -1

    def collector(self) -> Report:
        """Return a report that only collects, for a child with fewer rights."""
        inner = Report("", False, self._baseline, self._marks)
        inner._lists = self._lists  # root's files: the child could not read them
        inner._more = self._more
        inner._known = self._known
        return inner

    def take(self, rows: list[dict[str, object]]) -> None:
        """Take over what a collector gathered."""
        for row in rows:
            self._add(row)

    def observer(self, path: str) -> Observer:
        """Return what a redactor tells its sightings in `path` to."""
        name = "<stdin>" if path == "-" else os.path.abspath(path)

        def observe(sighting: Sighting) -> None:
            self._add(self._row(name, sighting))

        return observe

    def _row(self, name: str, sighting: Sighting) -> dict[str, object]:
        span = sighting.span
        identity = self._marks.identity(span)
        row: dict[str, object] = {
            "fingerprint": identity.fingerprint if identity else None,
            "key_id": identity.key_id if identity else None,
            "kind": span.kind,
            "incident": span.incident,
            "confidence": span.confidence,
            "partial": span.partial,
            "file": name,
            "source": name,
            "line": sighting.line,
            "offset": sighting.offset,
            "length": sighting.length,
            "advice": advice_for(span.kind),
        }
        if self._more is not None:
            row |= self._more.about(name, sighting, identity.fingerprint if identity else "")
        if identity is not None and identity.former:
            row["former"] = [{"key_id": key, "fingerprint": value} for key, value in identity.former]
        if self._lists.honeytokens:
            row["fingerprint"] = row["fingerprint"] or self._marks.honeytoken(span, self._lists)
        self._lists.judge(row, time.time())
        if self._known and in_baseline(span.value, self._known):
            row["known"] = True
        if self._baseline:
            row["baseline"] = True
        if self._opinions:
            self._opinions -= 1
            seen = second_opinion(sighting.text)
            if seen is not None:
                row["second_opinion"] = seen
        return row

    def _add(self, row: dict[str, object]) -> None:
        self.count += not (row.get("allowed") or row.get("known"))
        if self._collect or self._sarif:
            self.collected.append(row)
        if self._output is not None and not self._sarif:
            self._output.write((json.dumps(row) + "\n").encode())
        if self._file >= 0:
            os.write(self._file, _filed(row))

    def __enter__(self) -> Self:
        if self._output is not None:
            self._output.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file >= 0:
            os.close(self._file)
        if self._output is not None:
            if self._sarif and kind is None:
                self._output.write(json.dumps(sarif(self.collected), indent=1).encode() + b"\n")
            self._output.__exit__(kind, error, trace)


def _now() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06d}Z"


def _baseline(path: str) -> frozenset[str]:
    if not path:
        return frozenset()
    try:
        return read_baseline(path)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise GuardError(f"{path} is no baseline", "make one with detect-secrets scan > .secrets.baseline") from None


def _filed(row: dict[str, object]) -> bytes:
    return (json.dumps({"time": _now(), "origin": "user", **row}) + "\n").encode()


def file_rows(rows: list[dict[str, object]]) -> None:
    """File exposures in the state directory of who runs this.

    Args:
        rows: as a report writes them.

    Raises:
        OSError: they cannot be written.
        StateError: the directory is another's.
    """
    handle = _exposures()
    try:
        os.write(handle, b"".join(map(_filed, rows)))
    finally:
        os.close(handle)


def _exposures() -> int:
    """Open the node-local file of exposures, which the events service adopts."""
    folder = own_folder(state_dir())
    return os.open(
        os.path.join(folder, "exposures.jsonl"),
        os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
        0o600,
    )


def sarif(rows: list[dict[str, object]]) -> dict[str, object]:
    """Return exposures as a SARIF 2.1.0 log (OASIS, sarif-schema-2.1.0.json)."""
    kinds = sorted({str(row["kind"]) for row in rows})
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "guard",
                        "rules": [
                            {
                                "id": kind,
                                "shortDescription": {"text": f"exposed {kind}"},
                                "help": {"text": advice_for(kind)},
                            }
                            for kind in kinds
                        ],
                    }
                },
                "results": [_result(row) for row in rows],
            }
        ],
    }


def _result(row: dict[str, object]) -> dict[str, object]:
    result: dict[str, object] = {
        "ruleId": row["kind"],
        "level": "error" if row["incident"] else "warning",
        "message": {"text": f"a {row['kind']} stands here; {row['advice']}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": str(row["file"]).lstrip("/")},
                    "region": {
                        "startLine": row["line"],
                        "byteOffset": row["offset"],
                        "byteLength": row["length"],
                    },
                }
            }
        ],
    }
    if row["fingerprint"]:
        result["fingerprints"] = {str(row["key_id"]): row["fingerprint"]}
    return result
