"""A flood loses no alert that has room, and what it loses is counted to the last one and told."""

from __future__ import annotations

import subprocess
import time

import pytest

from tests.conftest import LONG
from tests.monitor.running import WAIT, Monitor, events_service, running

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("kernel_side"), pytest.mark.timeout(600)]
MANY = 100_000 if LONG else 6_000
ALERTS = 200
OUTSIDE = "127.93.0.0/16"
"""Of loopback, which every host has, and told to the monitor as outside: connecting a UDP socket sends nothing."""
FLOOD = r"""
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    long telemetry = atol(argv[1]), alerts = atol(argv[2]), told = 0;
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    char name[32];
    struct timespec begin, end;
    for (long i = 0; i < 1000; i++) {
        sprintf(name, "f%ld", i);
        close(open(name, O_CREAT | O_WRONLY, 0600));
    }
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long i = 0; i < telemetry || told < alerts; i++) {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(1000 + i % 2)};
        to.sin_addr.s_addr = htonl(0x7f5d0001);
        if (i < telemetry && connect(s, (void *)&to, sizeof to)) return 1;
        if (told * telemetry <= i * alerts && told < alerts) {
            sprintf(name, "f%ld", told++ % 1000);
            if (chmod(name, 0666)) return 1;
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.3f\n", end.tv_sec - begin.tv_sec + (end.tv_nsec - begin.tv_nsec) / 1e9);
    return 0;
}
"""


def flood(made: Monitor, telemetry: int, alerts: int) -> tuple[int, float]:
    """Let an agent do so many acts, as fast as it can: its pid, and how many seconds that took."""
    _build(made)
    root = made.act(f"{made.place}/flood {telemetry} {alerts} > {made.place}/took")
    made.until(lambda event: event["rule"] == "tree-stop", root, seconds=300)
    return root, float((made.place / "took").read_text())


def _build(made: Monitor) -> None:
    source = made.place / "flood.c"
    source.write_text(FLOOD)
    subprocess.run(["gcc", "-O2", "-o", str(made.place / "flood"), str(source)], check=True)


def lost(made: Monitor, stage: str) -> int:
    """What was told as lost at a stage, once all that was counted has been told."""
    deadline = time.monotonic() + WAIT
    while True:
        counted = made.metric(f'lost_total{{stage="{stage}"}}')
        rows = [e["detail"] for e in made.events() if e["rule"] == "loss" and e["detail"]["stage"] == stage]
        if sum(row["count"] for row in rows) == counted:
            return counted
        assert time.monotonic() < deadline, f"{counted} were lost, and told are {rows}"
        time.sleep(0.1)


def test_of_a_flood_of_alerts_what_was_told_and_what_was_lost_is_what_there_was() -> None:
    with running() as made:
        _, took = flood(made, 0, MANY)
        gone = lost(made, "alerts")
        modes = [e for e in made.events() if e["rule"] == "world-writable"]  # of a node on which others may act, too
        told = sum(1 + e["detail"].get("more", 0) for e in modes)
        print(f"{MANY} alerts in {took} s: {told} told in {len(modes)} events, {gone} lost")
        assert told + gone == made.metric('facts_total{kind="Mode"}') >= MANY
        assert made.metric('lost_total{stage="outlet"}') == 0


@pytest.mark.parametrize("service", [False, True], ids=["own spool", "events service"])
def test_a_flood_of_telemetry_loses_no_alert_and_its_own_loss_is_counted(service: bool) -> None:
    with running("--external", OUTSIDE) as made:
        if service:
            with events_service(made):
                _telemetry(made, folded=True)
        else:
            _telemetry(made, folded=False)


def _telemetry(made: Monitor, *, folded: bool) -> None:
    root, took = flood(made, MANY, ALERTS)
    gone = lost(made, "telemetry")
    events = made.events(root)
    alerts = [e for e in events if e["rule"] == "world-writable"]
    told = {e["detail"]["path"].rsplit("/", 1)[1] for e in alerts}
    heard = sum(e["detail"].get("count", 1) + e["detail"].get("more", 0) for e in events if e["rule"] == "connect-outside")
    print(f"{MANY} facts in {took} s: {heard} told, {gone} lost; of {ALERTS} alerts {len(told)} told")
    assert told == {f"f{number}" for number in range(ALERTS)}
    assert lost(made, "alerts") == 0
    assert made.metric('facts_total{kind="Connect"}') >= MANY
    if folded:  # the service folds, and rations what is for the log: it tells so itself
        assert not [e for e in made.events() if e["rule"] == "events-lost" and e["detail"].get("stage") == "producer"]
    else:
        assert heard + gone >= MANY


def test_one_tree_s_flood_hides_neither_what_another_does_nor_what_it_hands_out_itself() -> None:
    with running("--external", OUTSIDE) as made:
        _build(made)
        for name in ("sbatch", "crontab"):
            stand_in = made.place / name
            stand_in.write_text("#!/bin/sh\nexit 0\n")
            stand_in.chmod(0o755)
        alerts = made.begin(f"while [ ! -e {made.place}/enough ]; do {made.place}/flood 0 3000; done > /dev/null")
        telemetry = made.begin(
            f"while [ ! -e {made.place}/enough ]; do {made.place}/flood 20000 0; {made.place}/crontab x; done > /dev/null"
        )
        quiet = made.begin(
            f"for i in $(seq 20); do touch q$i; chmod 666 q$i; {made.place}/sbatch job$i; sleep 0.1; done"
        )
        quiet.wait(120)
        (made.place / "enough").touch()
        for process in (alerts, telemetry):
            process.wait(120)
            made.until(lambda event: event["rule"] == "tree-stop", process.pid, seconds=300)
        made.until(lambda event: event["rule"] == "tree-stop", quiet.pid, seconds=300)
        said = [event["rule"] for event in made.events(quiet.pid)]
        assert said.count("world-writable") == 20
        assert said.count("hand-off") == 20
        assert lost(made, "alerts") > 0
        assert lost(made, "telemetry") > 0
        assert "hand-off" in [event["rule"] for event in made.events(telemetry.pid)]
