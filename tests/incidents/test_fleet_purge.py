"""An account's records leave every node of a fleet by one documented line, and the site sees which have not done it."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from guard.fleet.lines import Found
from guard.fleet.store import Store
from tests.conftest import GUARD, ROOT_HERE
from tests.incidents.made import event, exposure
from tests.incidents.test_desk_cli import HOUR, Office

NOW = int(time.time() * 1_000_000)
USER = "zebulon"


class Node(Office):
    """A node with a spool of its own, whose commands run under its own name."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir()
        super().__init__(folder)
        self.name = name
        tree = {"user": USER, "uid": 4711, "session": "s"}
        self.spool(
            exposure(name, NOW - HOUR, path=f"/home/{USER}/x", at_tree=tree, at_host=name),
            event("bind", "bind", NOW - HOUR, tree=tree, message=f"{USER} bound", host=name),
            event("bind", "bind", NOW - HOUR, tree={"user": "alice", "uid": 5}, host=name),
        )

    def run(self, *words: str, input: str = "") -> subprocess.CompletedProcess[str]:
        environment = {"PATH": "/usr/bin:/bin", "GUARD_STATE_DIR": str(self.state), "GUARD_CONFIG_DIR": str(self.config)}
        inside = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name, GUARD]
        return subprocess.run([*inside, *words], input=input, capture_output=True, text=True, env=environment, check=False, timeout=90)


@pytest.mark.root
@pytest.mark.skipif(not ROOT_HERE, reason="needs root: gives each node a name of its own")
def test_after_a_purge_over_three_nodes_only_its_record_is_left(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    site = Office(tmp_path / "site")
    nodes = {name: Node(tmp_path / name, name) for name in ("node1", "node2", "node3")}

    def gather() -> None:
        site.guard("incidents", "ingest", "--no-alerts", *(str(node.state / "spool") for node in nodes.values()))

    def left(code: int) -> list[str]:
        return site.guard("privacy", "nodes", "--user", USER, code=code).splitlines()

    gather()
    site.guard("privacy", "hold", "--user", USER, "--reason", "case 3")
    assert "legal hold" in site.run("privacy", "nodes", "--user", USER).stderr
    site.guard("privacy", "release", "--user", USER)
    assert site.guard("privacy", "export", "--user", USER).count(USER) >= 6
    done = site.run("privacy", "purge", "--user", USER, "--yes")
    assert f"guard privacy nodes --user {USER} | pdsh" in done.stderr
    assert left(1) == ["node1", "node2", "node3"]
    for name in ("node1", "node3"):
        nodes[name].guard("privacy", "purge", "--user", USER, "--yes")
    gather()
    assert left(1) == ["node2"], "what a node has not done is seen, and so is what it has"
    nodes["node2"].guard("privacy", "purge", "--user", USER, "--yes")
    gather()
    assert left(0) == []
    assert len(site.guard("privacy", "nodes", "--user", "alice", code=1).splitlines()) == 3
    assert len(site.guard("privacy", "nodes", "--user", USER, "--since", "0d", code=1).splitlines()) == 3
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert USER.encode() not in path.read_bytes(), path
    for node in nodes.values():
        assert not (node.state / "ledger.db").exists(), "a node begins no ledger for that"
        assert node.guard("events", "--json").count("alice") == 1
        assert node.guard("events", "--rule", "privacy-purged", "--json").count("privacy-purged") == 1
        assert "whole" in node.guard("events", "--verify")


def test_a_name_that_is_no_hosts_is_given_to_no_other_program(tmp_path: Path) -> None:
    site = Office(tmp_path)
    site.guard("incidents", "list")
    with Store(str(site.state / "site.db")) as store:
        for host in ("node1", "-Rexec", "a b", "x[1-9]", "c;reboot", "$(x)"):
            row = event("session", "start", NOW - HOUR, host=host)
            store.receive([Found(row, json.dumps(row).encode(), "")], NOW / 1e6)
    assert site.guard("privacy", "nodes", "--user", USER, code=1) == "node1\n"
