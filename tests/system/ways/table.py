"""The ways, one row each: what class of way, what it is called in docs/ways-out.md, and the act with its words.

Words in braces are places and things that `ground.Ground` lays out: anew for each of the three runs, so that no run
meets what another left. A row is one way out, not one spelling: where spellings matter (the eleven calls that make a
file) each stands for a kernel entry of its own.
"""

from __future__ import annotations

from typing import NamedTuple


class Way(NamedTuple):
    """One row.

    Args:
        kind: its class.
        name: what it is called, unique.
        words: the act and its words.
        needs: a thing of the ground without which it cannot be tried.
    """

    kind: str
    name: str
    words: tuple[str, ...]
    needs: str = ""


def _rows(kind: str, *rows: tuple[str, str], needs: str = "") -> list[Way]:
    """Rows of (name, words separated by two spaces)."""
    return [Way(kind, name, tuple(words.split("  ")), needs) for name, words in rows]


WRITING = _rows(
    "files, writing",
    ("write a file of the home", "write  {home}/file"),
    ("append to it", "append  {home}/file"),
    ("open it for reading and writing", "open_both  {home}/file"),
    ("cut it by truncate", "truncate  {home}/file"),
    ("cut it by open", "truncating_open  {home}/other"),
    ("write it through a mapping", "map_shared  {home}/full/inner/file"),
    ("write it through a link in the project", "write_through_link  {new}  {home}/file"),
    ("write into its directory through a link", "write_through_directory_link  {new}  {home}"),
    ("write it through /proc/self/root", "write  /proc/self/root{home}/file"),
    ("write it through /proc/self/fd of an O_PATH descriptor", "open_path_only_then_proc  {home}/file"),
    ("write it through another process's root", "write  /proc/{victim0}/root{home}/file"),
    ("make a file in the home", "create  {home}/made-file"),
    ("make a directory there", "mkdir  {home}/made-directory"),
    ("make a named pipe there", "mkfifo  {home}/made-pipe"),
    ("make a socket there", "mksock  {home}/made-socket"),
    ("make a link there", "symlink  /tmp  {home}/made-link"),
    ("make an unnamed file there and name it", "temporary_linked  {home}  {home}/made-unnamed"),
    ("make a file in a directory handed down open", "create_at  {handed}  made-by-descriptor"),
    ("remove a file there", "unlink  {home}/spare"),
    ("remove a directory there", "rmdir  {home}/directory"),
    ("move a file out of the project", "rename  {project}/movable  {home}/moved"),
    ("move a file into the project", "rename  {home}/movable  {project}/moved"),
    ("move without replacing", "rename_noreplace  {project}/spare  {home}/moved-too"),
    ("exchange a file with one of the project", "exchange  {project}/tool  {home}/tool"),
    ("link a file of the project into the home", "link  {project}/file  {home}/linked"),
    ("link by descriptor", "link_by_descriptor  {project}/file  {home}/linked-too"),
    ("link by an empty path", "link_by_empty_path  {project}/file  {home}/linked-again"),
    ("write another program's file in /tmp", "write  {tmpfile}"),
    ("make a file in /tmp", "create  {tmpfile}-new"),
    ("make a file in /var/tmp", "create  {vartmpfile}-new"),
    ("write to another user's file that others may write", "write  {shared}"),
)
REPOSITORY = _rows(
    "files, writing",
    ("put a hook into .git/hooks", "put  {project}/.git/hooks/pre-commit"),
    ("move a hook there", "rename  {project}/a/hook  {project}/.git/hooks/post-checkout"),
    ("link a hook there", "link  {project}/file  {project}/.git/hooks/pre-push"),
    ("make a hook of the sample", "rename  {project}/.git/hooks/pre-commit.sample  {project}/.git/hooks/commit-msg"),
    ("put another directory in the hooks' place", "exchange  {project}/full  {project}/.git/hooks"),
    ("core.hooksPath by git config", "git_setting  {project}  core.hooksPath  /tmp"),
    ("core.fsmonitor by writing .git/config", "append  {project}/.git/config"),
    ("replace .git/config by rename", "replace  {project}/.git/config  [core]"),
    (".git/config.worktree that was not there", "put_for_good  {project}/.git/config.worktree"),
    (".git/commondir that was not there", "put_for_good  {project}/.git/commondir"),
    ("hooks of a repository without any", "put_for_good  {second}/.git/hooks/pre-commit"),
    ("put another .git in the place of this one", "replace_repository  {project}/.git  hooks/post-merge"),
)
READING = _rows(
    "files, reading",
    ("read a key", "read  {user_home}/.ssh/key"),
    ("list ~/.ssh", "listing  {user_home}/.ssh"),
    ("see a key's size and use (stat)", "exists  {user_home}/.ssh/key"),
    ("watch a key being used (inotify)", "watch  {user_home}/.ssh"),
    ("read a key through a link", "read_through_link  {new}  {user_home}/.ssh/key"),
    ("read a key by a hard link", "link_and_read  {user_home}/.ssh/key  {new}"),
    ("read a key by moving it", "move_and_read  {user_home}/.ssh/spare-key  {new}"),
    ("read a key through a link that changes meanwhile", "race_link  {project}  {project}/script  {user_home}/.ssh/key  1"),
    ("read a key through /proc/self/root", "read  /proc/self/root{user_home}/.ssh/key"),
    ("read a key through another process's root", "through_proc  {victim0}  root  {user_home}/.ssh/key"),
    ("read a file through another process's directory", "through_proc  {victim0}  cwd  shared"),
    ("read a key by a directory handed down open", "read_at  {handed}  file"),
    ("read a cloud's credentials", "read  {user_home}/.aws/credentials"),
    ("read a password file", "read  {user_home}/.netrc"),
    ("read the shell's history", "read  {user_home}/.bash_history"),
    ("read a place that is granted nowhere", "read  {elsewhere}/file"),
    ("list a place that is granted nowhere", "listing  {elsewhere}"),
    ("execute a program from there", "execute  {elsewhere}/tool"),
    ("execute it through the loader", "load  {elsewhere}/tool"),
    ("execute it by descriptor", "execute_by_descriptor  {elsewhere}/tool"),
    ("go there and read", "change_directory_and_read  {elsewhere}  file"),
)
METADATA = _rows(
    "metadata",
    ("change a mode outside", "chmod  chmod  {home}/file  600"),
    ("change a mode outside by descriptor", "chmod  fchmod  {home}/file  640"),
    ("change a mode outside by fchmodat2 and an empty path", "chmod  fchmodat2_empty  {home}/file  604"),
    ("change a mode outside through a link", "chmod  proc  {home}/file  444"),
    ("change times outside", "times  {home}/file"),
    ("change a group outside", "give_to_group  {home}/file"),
    ("set an attribute outside", "user_xattr  {home}/full/inner/file"),
    ("set inode flags outside", "flags  {home}/file"),
    ("set inode flags outside, high bits set", "flags  {home}/file  1"),
    ("set inode attributes outside by file_setattr", "file_setattr  {home}/file"),
)
MODES = _rows(
    "modes",
    *((f"o+w by {how}", f"chmod  {how}  {{project}}/mode-{how}  666") for how in (
        "chmod", "fchmod", "fchmodat", "fchmodat2", "fchmodat2_empty", "proc", "high_bits", "libc")),
    *((f"o+w at birth by {how}, umask 0", f"make  {how}  {{new}}  777") for how in (
        "open", "openat", "openat2", "creat", "mknod", "mknodat", "mkfifo", "mkdir", "mkdirat", "socket", "tmpfile")),
    ("o+w by a child shell under umask 000", "make_in_child_shell  {new}"),
    ("o+w by tar -p of a 0777 tree", "unpack  {project}/directory"),
    ("o+w by an access list", "acl  setxattr  {project}/acl-1"),
    ("o+w by an access list of a descriptor", "acl  fsetxattr  {project}/acl-2"),
    ("o+w by an access list, setxattrat", "acl  setxattrat  {project}/acl-3"),
    ("o+w by a default access list", "inherited_list  {project}/listed"),
    ("set-user-id by chmod", "chmod  chmod  {project}/mode-suid  4755"),
    ("set-user-id by fchmodat2", "chmod  fchmodat2  {project}/mode-suid2  4755"),
    ("set-user-id at birth", "made_with_id  {new}"),
    ("set-user-id at birth by mknod", "make  mknod  {new}  4755"),
    ("o+w through a traced child's registers", "traced_chmod  {project}/mode-traced"),
    ("o+w by a 32-bit call", "int80_chmod  {project}  {project}/mode-int80"),
)  # fmt: skip
IPC = [
    *_rows(
        "IPC",
        ("open System V shared memory", "opened_shared_memory  {key}"),
        ("open System V semaphores", "opened_semaphore  {key}"),
        ("open a System V queue", "opened_messages  {key}"),
        ("open a POSIX queue", "opened_posix_queue  {queue}"),
        ("read another program's /dev/shm", "read  {segment}"),
        ("write another program's /dev/shm", "write  {segment}"),
        ("remove another program's /dev/shm", "unlink  {segment}-spare"),
        ("a service's socket by path", "unix  {services}/service"),
        ("the session bus", "unix  {services}/bus"),
        ("the service manager's private socket", "unix  {services}/systemd/private"),
        ("a container engine's socket", "unix  {services}/docker.sock"),
        ("a display's socket", "unix  {services}/.X11-unix/X7"),
        ("a packet socket by path", "unix  {services}/packet  seqpacket"),
        ("a datagram socket by path", "unix_message  {services}/datagram"),
        ("a datagram socket from one end of a pair", "unix_pair_message  {services}/datagram"),
        ("a socket by a link to it", "unix_by  link  {services}/service  {new}"),
        ("a socket by a descriptor of its directory", "unix_by  descriptor  {services}/service  {new}"),
        ("a socket by /proc/self/root", "unix_by  root  {services}/service  {new}"),
        ("a service's socket that lies in the project", "unix  {project}/service"),
        ("an abstract socket", "unix  @{abstract}"),
        ("an abstract packet socket", "unix  @{abstract}-packet  seqpacket"),
        ("an abstract datagram socket", "unix_datagram  @{abstract}-datagram"),
        ("another terminal of the user's", "open_both  {terminal}"),
    ),
    *_rows("IPC", ("run a command in a tmux server", "program_then  {answers}/tmux  tmux  -S  {tmux}  run-shell  touch {answers}/tmux"),
           needs="tmux"),
    *_rows("IPC", ("have an ssh agent sign", "program  env  SSH_AUTH_SOCK={agent}  ssh-add  -T  {project}/key.pub"), needs="agent"),
]  # fmt: skip
NETWORK = [
    *_rows(
        "network",
        ("listen on 0.0.0.0", "bind_wide  INET  STREAM  0.0.0.0"),
        ("listen on ::", "bind_wide  INET6  STREAM  ::"),
        ("listen on ::ffff:0.0.0.0", "bind_wide  INET6  STREAM  ::ffff:0.0.0.0"),
        ("listen on an address without a family", "bind_without_family"),
        ("listen without bind", "listen_wide  INET"),
        ("listen without bind on IPv6", "listen_wide  INET6"),
        ("listen after a connect that failed", "listen_after_failed_connect  INET"),
        ("a UDP port on 0.0.0.0", "bind_wide  INET  DGRAM  0.0.0.0"),
        ("a UDP port on ::", "bind_wide  INET6  DGRAM  ::"),
        ("MPTCP", "open_socket  2  1  262"),
        ("netlink's audit", "open_socket  16  3  9"),
        ("vsock", "open_socket  40  1  0"),
        ("another service of the user's on loopback", "tcp  127.0.0.1  {port}"),
        ("the same on IPv6", "tcp  ::1  {port}"),
        ("the same as ::ffff:127.0.0.1", "tcp  ::ffff:127.0.0.1  {port}"),
        ("the same by 127.0.0.1's neighbours", "tcp  0.0.0.0  {port}"),
        ("the same without waiting", "connect_nonblocking  127.0.0.1  {port}"),
        ("the same after AF_UNSPEC", "connect_after_unspecified  127.0.0.1  {port}"),
        ("the same by TCP Fast Open, sendto", "fast_open  sendto  {port}"),
        ("the same by TCP Fast Open, sendto, high bits set", "fast_open  sendto  {port}  1"),
        ("the same by TCP Fast Open, sendmsg", "fast_open  sendmsg  {port}"),
        ("the same by TCP Fast Open, sendmmsg", "fast_open  sendmmsg  {port}"),
        ("the same by TCP Fast Open, a socket's option", "fast_open  option  {port}"),
        ("a datagram to a service on loopback", "datagram  127.0.0.1  {udp}  {answers}/datagram"),
        ("a datagram by sendmsg", "datagram_by_message  sendmsg  127.0.0.1  {udp}  {answers}/sendmsg"),
        ("a datagram by sendmmsg", "datagram_by_message  sendmmsg  127.0.0.1  {udp}  {answers}/sendmmsg"),
    ),
    *_rows(
        "network",
        ("listen on this host's address", "bind_wide  INET  STREAM  {address}"),
        ("a UDP port on this host's address", "bind_wide  INET  DGRAM  {address}"),
        ("a port of this host's address that is not granted", "tcp  {address}  {wide}"),
        needs="address",
    ),
]
PROCESSES = _rows(
    "processes",
    *((f"signal: {how}", f"send  {how}  {{victim{at}}}") for at, how in enumerate(
        ("kill", "killpg", "tkill", "tgkill", "pidfd", "kill_term", "queue"), 1)),
    ("signal by a socket's owner, fcntl", "owner_signal  {victim8}  fcntl"),
    ("signal by a socket's owner, ioctl", "owner_signal  {victim9}  ioctl"),
    ("trace a process", "attach  {victim0}"),
    ("trace a process without stopping it", "seize  {victim10}"),
    ("read a process's memory", "vm_read  {victim0}"),
    ("write a process's memory", "vm_write  {victim0}"),
    ("open a process's memory", "proc  {victim0}  mem"),
    ("take a process's descriptor", "take_descriptor  {victim0}"),
    ("compare with a process (kcmp)", "compare  {victim0}"),
    ("ask for a process's pages", "pages  {victim0}"),
    *((f"/proc/PID/{entry}", f"proc  {{victim0}}  {entry}") for entry in (
        "environ", "maps", "cwd", "root", "exe", "auxv", "ns/mnt", "fdinfo", "map_files")),
    ("a process's standard input", "proc  {victim0}  fd/1"),
    ("limit a process's CPU time", "limit  {victim11}"),
    ("slow a process", "priority  {victim12}"),
    ("bind a process to a CPU", "affinity  {victim12}"),
    ("slow every process of the user", "priority_of_user"),
    ("slow every process's disk", "io_priority_of_user"),
    ("offer a process to the OOM killer", "write_proc  {victim0}  oom_score_adj  900"),
)  # fmt: skip
SURFACE = [
    *_rows(
        "kernel surface",
        *((f"a namespace by unshare: {what}", f"namespace  unshare  {flag}") for what, flag in (
            ("user", "10000000"), ("user and mount", "10020000"), ("user and network", "50000000"),
            ("user and processes", "30000000"))),
        *((f"a namespace by clone: {what}", f"namespace  clone  {flag}") for what, flag in (
            ("user", "10000000"), ("user and IPC", "18000000"), ("user and host name", "14000000"),
            ("user and cgroup", "12000000"))),
        ("a mount in a namespace of one's own", "mount_in_namespace  {project}"),
        ("a key ring", "keyring"),
        ("randomisation off", "personality  0040000"),
        ("randomisation off, high bits set", "personality  100040000"),
        ("a 32-bit program", "binary32  {project}"),
        ("a program that is only in memory", "from_memory"),
        ("a file's handle", "handle  {home}/file"),
        ("another local descriptor table", "ask  modify_ldt  99  null  0"),
        ("fanotify", "ask  fanotify_init  0x200  0"),
    ),
    *_rows("kernel surface", ("a set-user-id program's rights", "raise_privilege  {setuid}"), needs="setuid"),
]  # fmt: skip
DOTFILES = (
    ".bashrc", ".profile", ".bash_profile", ".bash_logout", ".zshrc", ".config/fish/config.fish", ".ssh/authorized_keys",
    ".ssh/rc", ".ssh/config", ".pam_environment", ".config/environment.d/x.conf", ".gitconfig", ".config/git/config",
    ".vimrc", ".emacs.d/init.el", ".tmux.conf", ".inputrc", ".gdbinit", ".pythonrc", ".config/pip/pip.conf",
    ".local/bin/git", ".local/lib/python3.11/site-packages/usercustomize.py", ".config/systemd/user/x.service",
    ".config/autostart/x.desktop", ".forward", ".npmrc", ".condarc", ".Rprofile", ".mailcap", ".config/direnv/direnvrc",
    ".jupyter/jupyter_server_config.py", ".vscode/settings.json", ".lmodrc.lua", ".claude/settings.json",
)  # fmt: skip
PERSISTENCE = [
    *_rows("persistence", *((f"~/{file}", f"put  {{user_home}}/{file}") for file in DOTFILES)),
    *_rows("persistence", ("a cron job", "program  crontab  {project}/crontab"), needs="crontab"),
    *_rows("persistence", ("an at job", "fed  true  at  -q  g  now + 300 days"), needs="at"),
    *_rows("persistence", ("ssh to this host", "program  ssh  -F  {ssh_config}  here  true"), needs="ssh_config"),
]
PIPES = (
    "curl -s URL | sh",
    "curl -s URL | tee copy | sh",
    "curl -s URL | base64 | base64 -d | bash",
    "sh <(curl -s URL)",
    'bash -c "$(curl -s URL)"',
    "curl -s -o got URL; sh got",
    "curl -s -o got2 URL; chmod +x got2; ./got2",
    "curl -s URL | xargs -0 sh -c",
    """curl -s URL | python3 -c 'import os; os.execvp("sh", ["sh"])'""",
)
PIPE = [
    Way("pipe to shell", text, ("shell", "{new}", "export MARK={new}; cd {project}; " + text.replace("URL", "file://{project}/script")))
    for text in PIPES
]
WAYS: tuple[Way, ...] = (
    *WRITING, *REPOSITORY, *READING, *METADATA, *MODES, *IPC, *NETWORK, *PROCESSES, *SURFACE, *PERSISTENCE, *PIPE,
)  # fmt: skip
