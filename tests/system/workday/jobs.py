"""What people do all day, one row each: a script of bash that runs in a project and must end with 0."""

from __future__ import annotations

from typing import NamedTuple


class Job(NamedTuple):
    """One row.

    Args:
        name: what is done.
        needs: programs without which it is skipped, by name or path.
        script: what is run; `$HERE` is the project.
        overlays: what the policy adds to login-node.
        says: a word that it must have printed, for what is done must be seen to be done.
        before: what is made ready outside, before.
    """

    name: str
    needs: tuple[str, ...]
    script: str
    overlays: tuple[str, ...] = ()
    says: str = "done"
    before: str = ""


LMOD = "/usr/share/lmod/lmod/init/bash"
POSTGRES = "$(ls -d /usr/lib/postgresql/*/bin | tail -1)"
WIDE = "mkdir -p wide/in; echo x > wide/f; echo y > wide/in/g; chmod -R 0777 wide; find wide -type f -exec chmod 0666 {} +"
NARROW = 'test -z "$(find . -perm -o+w ! -type l)" || { find . -perm -o+w ! -type l; exit 9; }; echo done'

JOBS = (
    Job(
        "Lmod: module avail, load, list, unload",
        (LMOD,),
        f"""
        source {LMOD}
        mkdir -p modules/tool
        printf 'whatis("a tool")\\nprepend_path("PATH", "%s/tool/bin")\\nsetenv("TOOL_HOME", "%s")\\n' $HERE $HERE > modules/tool/1.0.lua
        mkdir -p tool/bin; printf '#!/bin/sh\\necho done\\n' > tool/bin/tool; chmod 755 tool/bin/tool
        module use $HERE/modules
        module --ignore_cache -t avail tool 2>&1 | grep tool/1.0 > /dev/null
        module load tool/1.0
        module -t list 2>&1 | grep tool/1.0 > /dev/null
        test "$TOOL_HOME" = $HERE
        tool
        module unload tool
        ! command -v tool
        """,
    ),
    Job(
        "a build as Spack makes it, in a tree of mode 2775",
        ("gcc", "make", "tar"),
        """
        umask 002
        mkdir -m 2775 opt stage; cd stage
        mkdir -p pkg/src; echo 'int f(void){return 42;}' > pkg/src/f.c
        printf 'int f(void);int main(void){return f()-42;}\\n' > pkg/src/main.c
        printf 'PREFIX=/usr\\nall: libf.so prog\\nlibf.so: src/f.c\\n\\tgcc -shared -fPIC -o $@ $<\\nprog: src/main.c libf.so\\n\\tgcc -o $@ $< -L. -lf -Wl,-rpath,$(PREFIX)/lib\\ninstall: all\\n\\tinstall -d $(PREFIX)/bin $(PREFIX)/lib\\n\\tinstall -m 755 prog $(PREFIX)/bin\\n\\tinstall -m 755 libf.so $(PREFIX)/lib\\n' > pkg/Makefile
        tar czf pkg.tar.gz pkg; sha256sum pkg.tar.gz > sum; rm -r pkg
        sha256sum -c sum; tar xzf pkg.tar.gz; cd pkg
        make -j4 PREFIX=$HERE/opt/pkg-1.0-abcdef
        make install PREFIX=$HERE/opt/pkg-1.0-abcdef
        chmod -R g+w,o-w $HERE/opt; find $HERE/opt -type d -exec chmod g+s {} +
        mkdir -p $HERE/opt/.spack-db; echo '{}' > $HERE/opt/.spack-db/index.json.new
        mv $HERE/opt/.spack-db/index.json.new $HERE/opt/.spack-db/index.json
        ln -s pkg-1.0-abcdef $HERE/opt/view; $HERE/opt/view/bin/prog
        test "$(stat -c %a $HERE/opt)" = 2775 && echo done
        """,
    ),
    Job(
        "a Jupyter kernel",
        ("/usr/lib/python3/dist-packages/ipykernel", "/usr/lib/python3/dist-packages/jupyter_client"),
        """
        export JUPYTER_RUNTIME_DIR=$TMPDIR IPYTHONDIR=$TMPDIR/ipython JUPYTER_CONFIG_DIR=$TMPDIR/c JUPYTER_DATA_DIR=$TMPDIR/d
        cat > kernel.py <<'P'
import sys
from jupyter_client.manager import KernelManager
manager = KernelManager()
manager.start_kernel()
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=60)
said = []
client.execute_interactive("print('do' + 'ne')", timeout=60, output_hook=lambda m: said.append(m["content"].get("text", "")))
client.stop_channels()
manager.shutdown_kernel(now=False)
print("".join(said))
P
        mkdir -p $JUPYTER_DATA_DIR/kernels/python3
        echo '{"argv": ["/usr/bin/python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "p", "language": "python"}' > $JUPYTER_DATA_DIR/kernels/python3/kernel.json
        /usr/bin/python3 kernel.py
        """,
    ),
    Job(
        "the bootstrap of VS Code's server",
        ("node", "tar"),
        """
        commit=0123456789abcdef; root=$HOME/.vscode-server; dir=$root/bin/$commit
        umask 077; mkdir -p $dir $root/data/Machine $root/extensions
        cat > server.js <<'J'
const http = require("http"), fs = require("fs"), os = require("os"), cp = require("child_process"), path = require("path");
const server = http.createServer((q, a) => a.end("done"));
server.listen(0, "127.0.0.1", () => {
  fs.writeFileSync(process.argv[2] + ".port", String(server.address().port));
  console.log("Extension host agent listening on " + server.address().port);
  cp.spawnSync("/bin/sh", ["-c", "uname -m"]);
  fs.watch(process.argv[2] + ".port", () => {});
  const pipe = path.join(os.tmpdir(), "vscode-ipc-1.sock");
  require("net").createServer().listen(pipe);
});
J
        mkdir pack; cp server.js pack/; tar czf $dir/vscode-server.tar.gz -C pack .
        tar xzf $dir/vscode-server.tar.gz -C $dir; rm $dir/vscode-server.tar.gz
        token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n'); echo $token > $root/.$commit.token; chmod 600 $root/.$commit.token
        nohup node $dir/server.js $root/.$commit > $root/.$commit.log 2>&1 < /dev/null &
        echo $! > $root/.$commit.pid
        for i in $(seq 200); do [ -s $root/.$commit.port ] && break; sleep 0.05; done
        curl -s http://127.0.0.1:$(cat $root/.$commit.port)/
        kill $(cat $root/.$commit.pid)
        """,
        ("ide",),
        before="mkdir -p $HOME/.vscode-server",  # a grant of what does not exist is skipped
    ),
    Job(
        "PostgreSQL: initdb, a server, a table",
        ("/usr/lib/postgresql",),
        f"""
        B={POSTGRES}
        $B/initdb -D db -A trust --no-sync > init.log 2>&1 || {{ cat init.log; exit 1; }}
        P=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
        $B/pg_ctl -D db -l log -w -o "-p $P -h 127.0.0.1 -k $TMPDIR -F" start > start.log || {{ cat log; exit 1; }}
        for host in 127.0.0.1 $TMPDIR; do
            $B/psql -h $host -p $P -d postgres -c 'create table if not exists t (a int); insert into t values (1)' -q
        done
        $B/psql -h 127.0.0.1 -p $P -d postgres -Atc 'select count(*) from t'
        $B/pg_ctl -D db -m fast -w stop > stop.log; echo done
        """,
    ),
    Job(
        "Open MPI: two ranks, cross-memory attach",
        ("mpirun", "mpicc"),
        """
        cat > ring.c <<'C'
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int n, char **v) {
    int rank, size; MPI_Init(&n, &v); MPI_Comm_rank(MPI_COMM_WORLD, &rank); MPI_Comm_size(MPI_COMM_WORLD, &size);
    int count = 1 << 20, *a = malloc(4 * count);
    for (int i = 0; i < count; i++) a[i] = rank;
    if (rank == 0) MPI_Send(a, count, MPI_INT, 1, 0, MPI_COMM_WORLD);
    else { MPI_Recv(a, count, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE); printf(a[count - 1] == 0 && size == 2 ? "done\\n" : "wrong\\n"); }
    MPI_Finalize(); return 0;
}
C
        mpicc -o ring ring.c
        export OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=cma OMPI_MCA_rmaps_base_oversubscribe=1
        export OMPI_MCA_plm=isolated OMPI_MCA_btl_vader_verbose=0
        mpirun --oversubscribe -np 2 ./ring
        """,
    ),
    Job(
        "gdb on a program of one's own, and attached to one",
        ("gdb", "gcc"),
        """
        printf '#include <unistd.h>\\nint answer = 41;\\nint main(void) {\\n answer++;\\n for (;;)\\n  sleep(1);\\n}\\n' > p.c; gcc -g -o p p.c
        gdb -nx -batch -ex 'break main' -ex run -ex next -ex 'print answer' -ex kill ./p > out 2>&1; grep -q '= 42' out || { cat out; exit 1; }
        ./p & gdb -nx -batch -p $! -ex 'print answer' > out2 2>&1; kill %1; grep -q '= 42' out2 || { cat out2; exit 1; }
        echo done
        """,
    ),
    Job(
        "strace of a program of one's own, and attached to one",
        ("strace",),
        """
        strace -f -o trace ls / > /dev/null 2>&1 || :; strace -o trace true; grep -q execve trace
        sleep 30 & strace -p $! -o attached & sleep 0.1; for i in $(seq 100); do [ -s attached ] && break; sleep 0.05; done
        kill %1; wait %1 || :; wait %2 || :; grep -q -E 'sleep|restart|SIGTERM' attached; echo done
        """,
    ),
    Job(
        "a node server on a wildcard (rewritten)",
        ("node", "curl"),
        """
        node -e 'const s = require("http").createServer((q, a) => a.end("done")); s.listen(0, () => require("fs").writeFileSync("port", String(s.address().port)))' &
        for i in $(seq 200); do [ -s port ] && break; sleep 0.05; done
        curl -s http://localhost:$(cat port)/; kill %1
        """,
    ),
    Job(
        "tmux inside",
        ("tmux",),
        """
        export TERM=xterm
        tmux -f /dev/null new-session -d -s work 'echo from inside > out; sleep 30'
        tmux split-window -t work 'tty > tty; sleep 30'
        for i in $(seq 200); do [ -s out ] && [ -s tty ] && break; sleep 0.05; done
        tmux list-panes -t work; grep -q /dev/pts/ tty; tmux kill-server; echo done
        """,
    ),
    Job(
        "headless Chromium prints a page",
        ("chromium-headless-shell",),
        """
        export HOME=$TMPDIR
        echo '<script>document.write("do" + "ne")</script>' > page.html
        chromium-headless-shell --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir=$TMPDIR/profile \
            --virtual-time-budget=2000 --dump-dom file://$HERE/page.html 2> errors || { tail -20 errors; exit 1; }
        """,
    ),
    Job("tar of a 0777 tree", ("tar",), f"tar xpf $HERE/wide.tar; test -s wide/in/g; rm wide.tar; {NARROW}",
        before=f"{WIDE}; tar cpf wide.tar wide; rm -r wide"),
    Job("unzip of a 0777 tree", ("unzip", "zip"), f"unzip -q wide.zip; test -s wide/in/g; rm wide.zip; {NARROW}",
        before=f"{WIDE}; zip -qr wide.zip wide; rm -r wide"),
    Job("rsync of a 0777 tree", ("rsync",), f"rsync -a $OUTSIDE/wide .; test -s wide/in/g; {NARROW}",
        before=f"cd $OUTSIDE; {WIDE}"),
    Job("cp -a of a 0777 tree", (), f"cp -a $OUTSIDE/wide .; test -s wide/in/g; {NARROW}", before=f"cd $OUTSIDE; {WIDE}"),
)  # fmt: skip
