"""Try a list of ways, each in a child of its own, and print what each came to.

    tried.py PLACE FILE

PLACE holds the acts (`act.pyc`, `deeds.py`); FILE is a JSON list of [act, word...]; the answer is a JSON list of
0 (it got out), an errno, or one of the codes of `act`. Standard library only, as `act`.
"""

import json
import os
import signal
import sys

SECONDS = 20


def main(place, file):
    sys.path.insert(0, place)
    import act
    import deeds  # noqa: F401 - puts its acts beside those of `act`

    with open(file, encoding="utf-8") as given:
        ways = json.load(given)
    print(json.dumps([attempt(act, words) for words in ways]))


def attempt(act, words):
    child = os.fork()
    if child == 0:
        code = act.CRASHED
        try:
            signal.alarm(SECONDS)
            os.setsid()
            for fd in range(3):
                os.dup2(os.open(os.devnull, os.O_RDWR), fd)
            sys.argv[1:] = words
            code = act.main()
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
