"""Grants that deserve a second look, as rows: what `guard policy lint` warns of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from guard.policy.model import Item, Policy, Setting
from guard.policy.paths import below


@dataclass(frozen=True)
class Danger:
    """A place that should rarely be granted.

    Args:
        keys: of the grant.
        place: a grant of it, or of anything above it, is meant; with `beneath` also what lies below.
        why: what can be done with it.
        beneath: whether grants of what lies below are meant too.
        always: whether a reason on the entry itself, or being an overlay's, does not answer the warning.
    """

    keys: tuple[str, ...]
    place: str
    why: str
    beneath: bool = False
    always: bool = False

    def meets(self, path: str) -> bool:
        """Whether a grant of this path is meant."""
        return below(path, self.place) or (self.beneath and below(self.place, path))


_WRITE = ("files.write",)
_ANY = ("files.read", "files.write")
_SOCKET = ("unix.allow",)
_TMP, _VAR_TMP = "/tmp", "/var/tmp"  # noqa: S108 - named to warn of them
_SYSTEM = "the system's own programs and settings lie there"

DANGERS = (
    Danger(_WRITE, "{home}", "dotfiles, and so every later login, can be changed", always=True),
    Danger(_WRITE, "/home", "every home lies there", always=True),
    Danger(_WRITE, "/root", "root's home", beneath=True, always=True),
    *(
        Danger(_WRITE, place, _SYSTEM, beneath=True, always=True)
        for place in ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/boot", "/etc")
    ),
    *(
        Danger(_WRITE, place, "guard's own state and configuration lie there", beneath=True, always=True)
        for place in ("/etc/guard", "/var/lib/guard", "{home}/.config/guard")
    ),
    Danger(_WRITE, _TMP, "other programs' files and sockets lie there; {tmp} is the session's own"),
    Danger(_WRITE, _VAR_TMP, "other programs' files lie there; {tmp} is the session's own"),
    Danger(_WRITE, "/dev", "devices are granted by files.devices"),
    Danger(_WRITE, "/proc", "settings of processes and of the kernel can be changed", beneath=True),
    Danger(_WRITE, "/sys", "settings of the kernel can be changed", beneath=True),
    Danger(_WRITE, "{home}/bin", "programs found by PATH can be replaced", beneath=True),
    Danger(_WRITE, "{home}/.local/bin", "programs found by PATH can be replaced", beneath=True),
    Danger(_WRITE, "{home}/.config/systemd", "user services start from there", beneath=True),
    Danger(_WRITE, "{home}/.config/autostart", "programs start from there at login", beneath=True),
    *(
        Danger(_ANY, place, "credentials lie there", beneath=True)
        for place in (
            "{home}/.ssh",
            "{home}/.gnupg",
            "{home}/.aws",
            "{home}/.azure",
            "{home}/.config/gcloud",
            "{home}/.config/gh",
            "{home}/.kube",
            "{home}/.docker",
            "{home}/.netrc",
            "{home}/.git-credentials",
        )
    ),
    *(
        Danger(("files.devices",), place, why, beneath=True, always=True)
        for place, why in (
            ("/dev/mem", "the machine's memory"),
            ("/dev/kmem", "the kernel's memory"),
            ("/dev/sd*", "whole disks"),
            ("/dev/nvme*", "whole disks"),
        )
    ),
    Danger(("files.devices",), "/dev/pts", "the user's other terminals can be read and typed into"),
    *(
        Danger(_SOCKET, place, why, beneath=True)
        for place, why in (
            ("/run/docker.sock", "Docker's API is root"),
            ("/var/run/docker.sock", "Docker's API is root"),
            ("/run/containerd", "containerd's API is root"),
            ("/run/podman", "Podman starts containers outside of the tree"),
            ("/run/user/{uid}/podman", "Podman starts containers outside of the tree"),
            ("/run/user/{uid}/bus", "systemd-run starts programs outside of the tree"),
            ("/run/user/{uid}/systemd", "systemd starts programs outside of the tree"),
            ("/run/dbus/system_bus_socket", "system services act for the user"),
            (f"{_TMP}/tmux-{{uid}}", "tmux runs commands outside of the tree"),
            (f"{_TMP}/.X11-unix", "X11 clients see and send every key"),
            ("/run/munge", "with munge a job can be submitted, which runs outside of the tree"),
            ("/var/run/munge", "with munge a job can be submitted, which runs outside of the tree"),
        )
    ),
)


def dangers_of(
    policy: Policy, own: dict[str, Setting], whole: dict[str, Setting]
) -> Iterator[tuple[Item, str, Danger]]:
    """Find a policy's dangerous grants: (entry, key, danger).

    Args:
        policy: the file.
        own: what it sets itself, with the site's variables.
        whole: with all that it extends, for the places that are denied anyway.
    """
    denied = [str(item.value) for item in whole["files.deny"].items] if "files.deny" in whole else []
    for name, setting in own.items():
        for item in setting.items:
            path = str(item.value)
            own_reason = item.origin.reason != setting.origin.reason
            for danger in DANGERS:
                if name not in danger.keys or not danger.meets(path):
                    continue
                if not danger.always and (own_reason or policy.kind == "overlay"):
                    continue
                # A denied place stays closed, whatever grants it.
                if any(below(deny, danger.place) for deny in denied):
                    continue
                yield item, name, danger
                break
