"""A fork bomb of notifications: however many ask at once, each gets its own answer."""

from __future__ import annotations

from tests.system.stage import Stage
from tests.system.test_supervised_messages import service
from tests.system.test_supervised_network import TRIES, inside, outside

BOMB = """
tries, port, parents = int(sys.argv[1]), int(sys.argv[2]), 16
open("bombed", "w").close()
def one():
    won = 0
    with socket.socket() as new:
        if code(new.bind, ("0.0.0.0", 0)) == 0:
            won += new.getsockname()[0] == "0.0.0.0"
    os.chmod("bombed", 0o666)
    won += bool(os.stat("bombed").st_mode & 2)
    with socket.socket(type=UDP) as new:
        won += code(new.sendmsg, [b"x"], [], 0, ("127.0.0.1", port)) == 0
    return min(won, 3)
def parent(count):
    total = 0
    for _ in range(count):
        child = os.fork()
        if child == 0:
            os._exit(one())
        if total % 3 == 2:
            os.kill(child, 9)  # some die amid their question
        total += 1
        status = os.waitpid(child, 0)[1]
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            os._exit(1)
    os._exit(0)
pids = []
for _ in range(parents):
    pid = os.fork()
    if pid == 0:
        parent(tries // parents)
    pids.append(pid)
print(json.dumps(sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)))
"""


def test_a_fork_bomb_of_notifications_wins_nothing(ground: Stage) -> None:
    with service() as (port, heard):
        assert inside(ground, BOMB, TRIES, port, timeout=900) == 0
        assert heard == []
        assert outside(ground, BOMB, 64, port, timeout=900) == 16
    assert heard != []
