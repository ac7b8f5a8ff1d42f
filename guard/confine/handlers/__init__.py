"""What the supervisor decides, one file a decision, and the table that leads from a system call to it.

A handler gets a `Call` and the `Supervisor`. It copies what the call points to, judges the copy, and then

    returns a number              the call's result: what was asked for has been done by the handler itself
    returns `CONTINUE`            the kernel makes the call: only where registers alone decided
    returns `PENDING`             a thread of the handler's answers later
    raises `Denied`               the call fails with its errno, and an event says why
    raises any other OSError      the call fails with that errno, as the kernel would have failed it

Whatever else goes wrong in a handler is a refusal (EACCES), never a pass.
"""

from guard.confine.handlers.base import Supervisor


def equip(supervisor: "Supervisor", in_memory: bool = False) -> None:
    """Give a supervisor every handler there is; the filter asks only about what the policy needs.

    Args:
        supervisor: answers by them.
        in_memory: whether the code of all of them is in memory already (packaging/bundle). Then only what judges
            the first call, an execve, is made ready now, and the others when the first of their calls comes.
    """
    if not in_memory:
        _others(supervisor)
    from guard.confine.handlers import pipes

    supervisor.use(pipes.handlers(supervisor))
    if in_memory:
        supervisor.use_later(_others)


def _others(supervisor: "Supervisor") -> None:
    from guard.confine.handlers import metadata, modes, network, tasks

    for module in (modes, metadata, network, tasks):
        supervisor.use(module.handlers(supervisor))


__all__ = ["Supervisor", "equip"]
