/* Acts that no ordinary program has a command for. One file, `odd ACT ARG…`; exits 0 when the act was really done, 1
 * when it was refused, 77 where this kernel has no such call. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static int end(long r) {
    if (r >= 0)
        return 0;
    if (errno == ENOSYS || errno == EINVAL || errno == EOPNOTSUPP)
        return 77;
    perror("odd");
    return 1;
}

/* ---- 32-bit and x32 entries ---- */
#if defined(__x86_64__)
static long int80(long n, long a, long b, long c) {
    long r;
    __asm__ volatile("int $0x80" : "=a"(r) : "a"(n), "b"(a), "c"(b), "d"(c) : "memory", "r8", "r9", "r10", "r11");
    if ((int)r < 0) {
        errno = -(int)r;
        return -1;
    }
    return r;
}
/* Addresses of 32-bit calls must lie low. */
static char *low(const char *text) {
    char *at = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    strcpy(at, text);
    return at;
}
#endif

/* ---- io_uring, without a library ---- */
static int ring_do(struct io_uring_sqe *ask) {
    struct io_uring_params p = {0};
    int fd = syscall(SYS_io_uring_setup, 2, &p);
    if (fd < 0)
        return -1;
    char *sq = mmap(0, p.sq_off.array + p.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, IORING_OFF_SQ_RING);
    char *cq = mmap(0, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, IORING_OFF_CQ_RING);
    struct io_uring_sqe *sqes = mmap(0, p.sq_entries * sizeof *sqes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, IORING_OFF_SQES);
    sqes[0] = *ask;
    ((unsigned *)(sq + p.sq_off.array))[0] = 0;
    __atomic_store_n((unsigned *)(sq + p.sq_off.tail), 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, fd, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) < 0)
        return -1;
    struct io_uring_cqe *done = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
    int r = done[0].res;
    close(fd);
    if (r < 0) {
        errno = -r;
        return -1;
    }
    return r;
}
static struct io_uring_sqe ask(int op, int fd, const void *addr, unsigned len) {
    struct io_uring_sqe s = {0};
    s.opcode = op;
    s.fd = fd;
    s.addr = (uintptr_t)addr;
    s.len = len;
    return s;
}

static int acl(unsigned char *to) { /* u::rw- g::r-- o::rw- */
    static const unsigned char v[] = {2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 0x20, 0, 6, 0, 255, 255, 255, 255};
    memcpy(to, v, sizeof v);
    return sizeof v;
}
static int v4(uint32_t host_order, int port, struct sockaddr_in *a) {
    memset(a, 0, sizeof *a);
    a->sin_family = AF_INET;
    a->sin_port = htons(port);
    a->sin_addr.s_addr = htonl(host_order);
    return sizeof *a;
}
/* Runs `sh -s` on a descriptor as its standard input. */
static int shell_on(int fd) {
    pid_t pid = fork();
    if (!pid) {
        dup2(fd, 0);
        closefrom(3);
        execl("/bin/sh", "sh", "-s", (char *)0);
        _exit(127);
    }
    int status;
    waitpid(pid, &status, 0);
    return status ? 1 : 0;
}

int main(int n, char **w) {
    const char *act = n > 1 ? w[1] : "", *path = n > 2 ? w[2] : "";
    unsigned char value[64];
    int fd, p[2];
    char room[4096];
    struct sockaddr_in a;
    if (!strcmp(act, "fchmodat2"))
        return end(syscall(452, AT_FDCWD, path, 0777, 0));
    if (!strcmp(act, "fchmod")) {
        fd = open(path, O_RDONLY);
        return end(fchmod(fd, 0666));
    }
    if (!strcmp(act, "instant")) /* open for a moment only */
        return end(chmod(path, 0666) ? -1 : chmod(path, 0644));
    if (!strcmp(act, "creat")) {
        umask(0);
        return end(creat(path, 0666));
    }
    if (!strcmp(act, "tmpfile")) {
        umask(0);
        fd = open(".", O_TMPFILE | O_RDWR, 0666);
        snprintf(room, sizeof room, "/proc/self/fd/%d", fd);
        return end(fd < 0 ? -1 : linkat(AT_FDCWD, room, AT_FDCWD, path, AT_SYMLINK_FOLLOW));
    }
    if (!strcmp(act, "openat2")) {
        struct { uint64_t flags, mode, resolve; } how = {O_CREAT | O_RDWR, 0666, 0};
        umask(0);
        return end(syscall(437, AT_FDCWD, path, &how, sizeof how));
    }
    if (!strcmp(act, "mknod")) {
        umask(0);
        return end(mknod(path, S_IFREG | 0666, 0));
    }
    if (!strcmp(act, "unix-socket")) {
        struct sockaddr_un u = {AF_UNIX, ""};
        strcpy(u.sun_path, path);
        umask(0);
        return end(bind(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&u, sizeof u));
    }
    if (!strcmp(act, "setxattr"))
        return end(setxattr(path, "system.posix_acl_access", value, acl(value), 0));
    if (!strcmp(act, "fsetxattr")) {
        fd = open(path, O_RDWR);
        return end(fsetxattr(fd, "system.posix_acl_access", value, acl(value), 0));
    }
#if defined(__x86_64__)
    if (!strcmp(act, "int80-chmod"))
        return end(int80(15, (long)low(path), 0777, 0));
    if (!strcmp(act, "int80-creat")) {
        umask(0);
        return end(int80(8, (long)low(path), 0666, 0));
    }
    if (!strcmp(act, "int80-getpid"))
        return end(int80(20, 0, 0, 0));
    if (!strcmp(act, "int80-listen")) { /* socketcall */
        int port = atoi(path);
        char *at = low("");
        v4(0, port, (void *)at);
        int *words = (int *)(at + 64);
        words[0] = socket(AF_INET, SOCK_STREAM, 0);
        words[1] = (int)(long)at;
        words[2] = sizeof(struct sockaddr_in);
        if (int80(102, 2, (long)words, 0) < 0)
            return end(-1);
        words[1] = 5;
        return end(int80(102, 4, (long)words, 0));
    }
    if (!strcmp(act, "x32")) {
        long r = syscall(0x40000000 + SYS_chmod, path, 0777);
        return r < 0 && errno == ENOSYS ? 0 : end(r); /* asked for: that is all there is to see */
    }
#endif
    if (!strcmp(act, "ring-open")) {
        struct io_uring_sqe s = ask(IORING_OP_OPENAT, AT_FDCWD, path, 0666);
        umask(0);
        s.open_flags = O_CREAT | O_RDWR;
        return end(ring_do(&s));
    }
    if (!strcmp(act, "ring-open-private")) {
        struct io_uring_sqe s = ask(IORING_OP_OPENAT, AT_FDCWD, path, 0600);
        umask(0);
        s.open_flags = O_CREAT | O_RDWR;
        return end(ring_do(&s));
    }
    if (!strcmp(act, "ring-mkdir")) {
        struct io_uring_sqe s = ask(IORING_OP_MKDIRAT, AT_FDCWD, path, 0777);
        umask(0);
        return end(ring_do(&s));
    }
    if (!strcmp(act, "ring-setxattr")) {
        struct io_uring_sqe s = ask(IORING_OP_SETXATTR, 0, "system.posix_acl_access", 0);
        s.addr2 = (uintptr_t)value;
        s.len = acl(value);
        s.addr3 = (uintptr_t)path;
        return end(ring_do(&s));
    }
    if (!strcmp(act, "ring-bind")) {
        int s = socket(AF_INET, SOCK_STREAM, 0);
        v4(0, atoi(path), &a);
        struct io_uring_sqe q = ask(56, s, &a, 0);
        q.addr2 = sizeof a;
        return end(ring_do(&q));
    }
    if (!strcmp(act, "ring-nop")) {
        struct io_uring_sqe s = ask(IORING_OP_NOP, -1, 0, 0);
        return end(ring_do(&s));
    }
    if (!strcmp(act, "listen-unbound"))
        return end(listen(socket(AF_INET, SOCK_STREAM, 0), 5));
    if (!strcmp(act, "mptcp")) {
        int s = socket(AF_INET, SOCK_STREAM, 262);
        v4(0, atoi(path), &a);
        return s < 0 ? 77 : end(bind(s, (void *)&a, sizeof a) ? -1 : listen(s, 5));
    }
    if (!strcmp(act, "flood-alerts")) { /* so many chmods */
        for (long i = atol(n > 3 ? w[3] : "0"); i > 0; i--)
            chmod(path, 0666);
        return 0;
    }
    if (!strcmp(act, "flood-telemetry")) { /* so many connects, and a chmod at every thousandth */
        fd = socket(AF_INET, SOCK_DGRAM, 0);
        for (long i = atol(n > 3 ? w[3] : "0"); i > 0; i--) {
            v4(0xcb007105, 1024 + i % 2, &a);
            connect(fd, (void *)&a, sizeof a);
            if (i % 1000 == 0)
                chmod(path, 0666);
        }
        return 0;
    }
    /* ---- from standard input to a shell, by ways without read and write ---- */
    if (!strcmp(act, "splice") || !strcmp(act, "tee") || !strcmp(act, "vmsplice")) {
        pipe(p);
        if (!fork()) {
            close(p[0]);
            if (!strcmp(act, "splice"))
                while (splice(0, 0, p[1], 0, 65536, 0) > 0) ;
            else if (!strcmp(act, "tee"))
                tee(0, p[1], 65536, 0);
            else {
                ssize_t got = read(0, room, sizeof room);
                struct iovec v = {room, got > 0 ? got : 0};
                vmsplice(p[1], &v, 1, 0);
            }
            _exit(0);
        }
        close(p[1]);
        return shell_on(p[0]);
    }
    if (!strcmp(act, "sendfile")) { /* a file into a pipe */
        fd = open(path, O_RDONLY);
        pipe(p);
        if (!fork()) {
            close(p[0]);
            sendfile(p[1], fd, 0, 65536);
            _exit(0);
        }
        close(p[1]);
        close(fd);
        return shell_on(p[0]);
    }
    if (!strcmp(act, "socketpair") || !strcmp(act, "seqpacket")) {
        socketpair(AF_UNIX, !strcmp(act, "socketpair") ? SOCK_STREAM : SOCK_SEQPACKET, 0, p);
        if (!fork()) {
            close(p[0]);
            ssize_t got;
            while ((got = read(0, room, sizeof room)) > 0)
                send(p[1], room, got, 0);
            _exit(0);
        }
        close(p[1]);
        return shell_on(p[0]);
    }
    if (!strcmp(act, "mmap")) { /* standard input into a file, by a shared mapping */
        fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0755);
        ssize_t got = read(0, room, sizeof room);
        ftruncate(fd, got);
        char *m = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        memcpy(m, room, got);
        munmap(m, 4096);
        return end(close(fd));
    }
    if (!strcmp(act, "pwritev2")) {
        fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0755);
        ssize_t got = read(0, room, sizeof room);
        struct iovec v = {room, got};
        return end(pwritev2(fd, &v, 1, 0, 0));
    }
    if (!strcmp(act, "copy-range")) {
        int to = open(n > 3 ? w[3] : "", O_RDWR | O_CREAT | O_TRUNC, 0755);
        fd = open(path, O_RDONLY);
        return end(copy_file_range(fd, 0, to, 0, 65536, 0));
    }
    if (!strcmp(act, "memfd")) { /* standard input executed from memory */
        fd = memfd_create("x", 0);
        ssize_t got;
        while ((got = read(0, room, sizeof room)) > 0)
            write(fd, room, got);
        snprintf(room, sizeof room, "/proc/self/fd/%d", fd);
        execl("/bin/sh", "sh", room, (char *)0);
        return 1;
    }
    if (!strcmp(act, "dns")) { /* asks port 53 of a host by UDP, and prints the answer */
        int s = socket(AF_INET, SOCK_DGRAM, 0);
        v4(0, 53, &a);
        inet_pton(AF_INET, path, &a.sin_addr);
        if (connect(s, (void *)&a, sizeof a) || send(s, "?", 1, 0) != 1)
            return end(-1);
        ssize_t got = recv(s, room, sizeof room, 0);
        return got > 0 && write(1, room, got) == got ? 0 : 1;
    }
    if (!strcmp(act, "unlinked")) { /* a program from memory, without a name */
        fd = memfd_create("x", 0);
        int from = open(path, O_RDONLY);
        ssize_t got;
        while ((got = read(from, room, sizeof room)) > 0)
            write(fd, room, got);
        snprintf(room, sizeof room, "/proc/self/fd/%d", fd);
        execv(room, w + 2);
        return 1;
    }
    /* ---- other processes ---- */
    if (!strcmp(act, "seize"))
        return end(ptrace(PTRACE_SEIZE, atoi(path), 0, 0));
    if (!strcmp(act, "seize-own")) {
        pid_t child = fork();
        if (!child)
            pause();
        long r = ptrace(PTRACE_SEIZE, child, 0, 0);
        kill(child, SIGKILL);
        return end(r);
    }
    if (!strcmp(act, "peek")) { /* its memory, where its first mapping lies */
        snprintf(room, sizeof room, "/proc/%s/maps", path);
        FILE *maps = fopen(room, "r");
        unsigned long at = 0;
        if (!maps || fscanf(maps, "%lx", &at) != 1)
            return 1;
        struct iovec here = {room, 8}, there = {(void *)at, 8};
        return end(process_vm_readv(atoi(path), &here, 1, &there, 1, 0));
    }
    if (!strcmp(act, "type")) { /* into a terminal of its own */
        setsid();
        fd = posix_openpt(O_RDWR);
        grantpt(fd);
        unlockpt(fd);
        int end_ = open(ptsname(fd), O_RDWR);
        if (ioctl(end_, TIOCSTI, "x"))
            return errno == EIO || errno == EPERM ? 77 : end(-1); /* dev.tty.legacy_tiocsti=0 */
        return 0;
    }
    if (!strcmp(act, "memory")) {
        snprintf(room, sizeof room, "/proc/%s/mem", path);
        return end(open(room, O_RDWR));
    }
    fprintf(stderr, "odd: no act %s\n", act);
    return 2;
}
