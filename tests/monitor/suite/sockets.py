"""Sockets that others can reach, and those that nobody can."""

from .case import Case

_PY = "/usr/bin/python3 -c 'import socket,sys\n{}'"
DONE = "[ -e done ]"
SOON = "for i in $(seq $W); do [ -e done ] && break; sleep 1; done; [ -e done ]"


def server(lines: str) -> str:
    return _PY.format(lines.strip() + '\nopen("done","w")')


def tcp(address: str, family: str = "AF_INET", more: str = "") -> str:
    return server(
        f's=socket.socket(socket.{family})\n{more}\ns.bind(("{address}",$port))\ns.listen()'.replace("\n\n", "\n")
    )


BIND = {"rule": "bind-outside", "enforced": "bind", "proof": DONE}
LISTEN = {"rule": "listen-outside", "enforced": "listen", "proof": DONE}

CASES = (
    Case("bind-any", tcp("0.0.0.0"), **BIND),
    Case("bind-any-empty", tcp(""), **BIND),
    Case("bind-address", tcp("203.0.113.5"), **BIND),
    Case("bind-any6", tcp("::", "AF_INET6"), **BIND),
    Case("bind-v6only", tcp("::", "AF_INET6", "s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)"), **BIND),
    Case("bind-dual-stack", tcp("::", "AF_INET6", "s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)"), **BIND),
    Case("bind-mapped-any", tcp("::ffff:0.0.0.0", "AF_INET6"), **BIND),
    Case("bind-mapped-address", tcp("::ffff:203.0.113.5", "AF_INET6"), **BIND),
    Case("bind-udp", server('socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(("0.0.0.0",$port))'), **BIND),
    Case(
        "bind-udp-multicast",
        server('socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(("224.0.0.251",$port))'),
        **BIND,
    ),
    Case("bind-reuseport", tcp("0.0.0.0", more="s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)"), **BIND),
    Case("bind-mptcp", "$odd mptcp $port && touch done", **BIND),
    Case(
        "bind-http-server",
        "/usr/bin/python3 -u -m http.server $port > out 2>&1 & for i in $(seq $W); do grep -q 0.0.0.0 out && touch done && break; kill -0 $! 2>/dev/null || break; sleep 0.5; done; kill $!",
        **BIND,
    ),
    Case(
        "bind-node",
        'timeout $W node -e \'require("net").createServer().listen($port, () => { require("fs").writeFileSync("done",""); process.exit() })\'',
        **BIND,
    ),
    Case(
        "bind-perl",
        "perl -MIO::Socket::INET -e 'IO::Socket::INET->new(LocalPort=>$port, Listen=>1, ReuseAddr=>1) or exit 1; open F, \">done\"'",
        **BIND,
    ),
    Case("bind-ring", "$odd ring-bind $port && touch done", **BIND),
    Case("bind-int80", "$odd int80-listen $port && touch done", **BIND),
    Case("listen-port-0", server('s=socket.socket()\ns.bind(("0.0.0.0",0))\ns.listen()'), **LISTEN),
    Case("listen-unbound", "$odd listen-unbound && touch done", **LISTEN),
    Case("listen-port-0-v6", server('s=socket.socket(socket.AF_INET6)\ns.bind(("::",0))\ns.listen()'), **LISTEN),
    Case(
        "bind-detached",
        "(setsid " + tcp("0.0.0.0") + " &); sleep 0.6",
        rule="bind-outside",
        enforced="bind",
        proof=SOON,
    ),
    # ---- that must stay silent ----
    Case("quiet-loopback", tcp("127.0.0.1"), proof=DONE),
    Case("quiet-loopback-other", tcp("127.0.0.77"), proof=DONE),
    Case("quiet-loopback6", tcp("::1", "AF_INET6"), proof=DONE),
    Case("quiet-loopback-mapped", tcp("::ffff:127.0.0.1", "AF_INET6"), proof=DONE),
    Case("quiet-loopback-port-0", server('s=socket.socket()\ns.bind(("127.0.0.1",0))\ns.listen()'), proof=DONE),
    Case("quiet-unix", server('s=socket.socket(socket.AF_UNIX)\ns.bind("sock")\ns.listen()'), proof=DONE),
    Case(
        "quiet-unix-abstract",
        server('s=socket.socket(socket.AF_UNIX)\ns.bind("\\0guard-suite-$port")\ns.listen()'),
        proof=DONE,
    ),
    Case(
        "quiet-udp-client",
        server(
            's=socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.bind(("0.0.0.0",0))\ns.sendto(b"x",("127.0.0.1",9))'
        ),
        proof=DONE,
    ),
    Case(
        "quiet-udp-unbound",
        server('s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.sendto(b"x",("127.0.0.1",9))'),
        proof=DONE,
    ),
    Case("quiet-client-bound-port-0", server('s=socket.socket()\ns.bind(("0.0.0.0",0))'), proof=DONE),
    Case("quiet-netlink", "ip -o link > /dev/null && touch done", proof=DONE),
    Case("quiet-client", "curl -s $D > d && touch done", proof=DONE),
    Case(
        "quiet-private-namespace",
        "unshare -rn sh -c '/sbin/ip link set lo up; exec " + tcp("0.0.0.0").replace("'", "'\\''") + "'",
        proof=DONE,
    ),
    Case(
        "quiet-bind-refused",
        "/usr/bin/python3 -c 'import socket; socket.socket().bind((\"198.51.100.9\", 0))' 2>/dev/null; touch done",
        proof=DONE,
    ),
)
