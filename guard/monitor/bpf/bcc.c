/* The backend for kernels without BTF: compiled on the node by bcc, from its kernel's headers. Small on purpose:
 * ancestry, modes by system call, binds and listens. guard/monitor/bcc_backend.py puts wire.h in front of it. */
#ifndef GUARD_STUB
#include <linux/binfmts.h>
#include <linux/cred.h>
#include <linux/fdtable.h>
#include <linux/fs.h>
#include <linux/fs_struct.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <net/sock.h>
#endif
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
/* By offset and through raw bytes: bcc rewrites every dereference of a pointer that it believes to know, wrongly where
 * a macro holds it; and a const field would be taken for what it was initialised with. */
#define READ(TYPE, FROM, FIELD)                                                                                        \
    ({                                                                                                                 \
        union {                                                                                                        \
            char raw[sizeof(((struct TYPE *)0)->FIELD)];                                                               \
            typeof(((struct TYPE *)0)->FIELD) value;                                                                   \
        } read_ = {};                                                                                                  \
        bpf_probe_read_kernel(read_.raw, sizeof read_.raw, (void *)(FROM) + __builtin_offsetof(struct TYPE, FIELD));   \
        read_.value;                                                                                                   \
    })
#define IS_HARNESS 1
#define CREATED 0x100000
#define swapped(x) __builtin_bswap16(x)

struct proc {
    u64 start, root_start;
    u32 root, flags;
};
struct name {
    char text[32];
};
BPF_HASH(procs, u32, struct proc, 65536);
BPF_HASH(names, struct name, u32, 2048);
BPF_PERCPU_ARRAY(counters, u64, 40);
BPF_RINGBUF_OUTPUT(alerts, 64);
BPF_RINGBUF_OUTPUT(telemetry, 256);

static __always_inline void count(u32 which, s64 by) {
    int index = which;
    u64 *value = counters.lookup(&index);
    if (value)
        *value += by;
}
static __always_inline void fill(struct head *h, u32 kind, struct proc *p, struct task_struct *t) {
    struct task_struct *leader = READ(task_struct, t, group_leader), *parent = READ(task_struct, t, real_parent);
    const struct cred *cred = READ(task_struct, t, real_cred);
    h->time = bpf_ktime_get_boot_ns();
    h->start = READ(task_struct, leader, GUARD_START);
    h->kind = kind;
    h->pid = READ(task_struct, t, tgid);
    h->ppid = READ(task_struct, parent, tgid);
    h->uid = 0;
    bpf_probe_read_kernel(&h->uid, 4, (void *)cred + __builtin_offsetof(struct cred, uid));
    h->root = p ? p->root : 0;
    h->root_start = p ? p->root_start : 0;
    h->harness = p ? p->flags & IS_HARNESS : 0;
    h->verdict = 0;
    h->pad = 0;
    bpf_get_current_comm(h->comm, 16);
}
static __always_inline u32 program(const char *at) {
    struct name n = {};
    bpf_probe_read_kernel_str(n.text, 32, at);
    u32 *value = names.lookup(&n);
    return value ? *value : 0;
}
/* The last component of a path in kernel memory: its place is found backwards over at most 64 bytes of its end. */
static __always_inline u32 program_at_end(const char *path) {
    char text[128] = {};
    int last = 0, i;
    bpf_probe_read_kernel_str(text, 127, path);
#pragma unroll
    for (i = 0; i < 126; i++)
        if (text[i] == '/')
            last = i + 1;
    return program(path + last);
}

static __always_inline int fill_exec(struct exec_record *e, struct proc *p, struct task_struct *t, u32 kind,
                                     const void *name, const void *path, u64 begin, u64 total, u64 room) {
    count(K_EXEC, 1);
    if (!e) {
        count(C_LOST_TELEMETRY, 1);
        return 0;
    }
    fill(&e->h, K_EXEC, p, t);
    e->program = kind;
    e->by = e->fed = e->written_by = e->sid = e->tty = e->pad = 0;
    e->name[0] = e->path[0] = 0;
    bpf_probe_read_kernel_str(e->name, 32, name);
    bpf_probe_read_kernel_str(e->path, WORDS, path);
    u64 take = total < room ? total : room;
    asm volatile("" : "+r"(take)); /* keep the bound next to the use */
    if (take > room)
        take = room;
    e->argv_length = take;
    e->unseen = total - take;
    if (take && bpf_probe_read_user(e->argv, take, (void *)begin)) {
        count(C_LOST_ARGV, 1);
        e->argv_length = 0;
        e->unseen = total;
    }
    return 1;
}

int process_exec(struct bpf_raw_tracepoint_args *ctx) {
    struct task_struct *t = (void *)ctx->args[0];
    struct linux_binprm *bprm = (void *)ctx->args[2];
    u32 pid = READ(task_struct, t, tgid);
    struct proc *p = procs.lookup(&pid);
    const char *path = READ(linux_binprm, bprm, filename);
    struct file *file = READ(linux_binprm, bprm, file);
    struct dentry *dentry = READ(file, file, f_path.dentry);
    const unsigned char *name = READ(dentry, dentry, d_name.name);
    struct mm_struct *mm = READ(task_struct, t, mm);
    u64 begin = READ(mm_struct, mm, arg_start), end = READ(mm_struct, mm, arg_end), total = end - begin;
    u32 kind = program((const char *)name) | program_at_end(path);
    if ((kind & (P_CODE | P_HINT)) && total) { /* `python3 /opt/bin/aider`: the word after the first */
        char word[128] = {};
        long n = bpf_probe_read_user_str(word, 127, (void *)begin);
        if (n > 0 && n < total) {
            int last = 0, i;
            bpf_probe_read_user_str(word, 127, (void *)(begin + n));
#pragma unroll
            for (i = 0; i < 126; i++)
                if (word[i] == '/')
                    last = i + 1;
            struct name of = {};
            bpf_probe_read_user_str(of.text, 32, (void *)(begin + n + last));
            u32 *value = names.lookup(&of);
            if (value)
                kind |= *value & (P_HARNESS | P_HINT | P_TRUSTED);
        }
    }
    if (!p) {
        if (!(kind & P_HARNESS))
            count(C_EXECS, 1);
        if (kind & P_SCHEDULER)
            count(C_SCHEDULER, 1);
        if (!(kind & (P_HARNESS | P_HINT)))
            return 0;
        if (kind & P_HARNESS) {
            struct proc fresh = {};
            struct task_struct *leader = READ(task_struct, t, group_leader);
            fresh.start = fresh.root_start = READ(task_struct, leader, GUARD_START);
            fresh.root = pid;
            fresh.flags = IS_HARNESS;
            if (procs.update(&pid, &fresh))
                count(C_LOST_TREES, 1);
            else
                count(C_LABELLED, 1);
            p = procs.lookup(&pid);
        }
    } else {
        p->flags = kind & P_HARNESS ? IS_HARNESS : 0;
    }
    /* A map may not be named inside of a macro here: written out. */
    if (total <= 512) {
        struct exec_record *e = telemetry.ringbuf_reserve(sizeof(struct exec_record) + 512);
        if (fill_exec(e, p, t, kind, name, path, begin, total, 512))
            telemetry.ringbuf_submit(e, 0);
    } else if (total <= 4096) {
        struct exec_record *e = telemetry.ringbuf_reserve(sizeof(struct exec_record) + 4096);
        if (fill_exec(e, p, t, kind, name, path, begin, total, 4096))
            telemetry.ringbuf_submit(e, 0);
    } else {
        struct exec_record *e = telemetry.ringbuf_reserve(sizeof(struct exec_record) + 16384);
        if (fill_exec(e, p, t, kind, name, path, begin, total, 16384))
            telemetry.ringbuf_submit(e, 0);
    }
    return 0;
}
int process_fork(struct bpf_raw_tracepoint_args *ctx) {
    struct task_struct *parent = (void *)ctx->args[0], *child = (void *)ctx->args[1];
    u32 from = READ(task_struct, parent, tgid), to = READ(task_struct, child, tgid);
    if (from == to)
        return 0;
    struct proc *p = procs.lookup(&from);
    if (!p)
        return 0;
    struct proc fresh = *p;
    fresh.start = READ(task_struct, child, GUARD_START);
    fresh.flags = 0;
    if (procs.update(&to, &fresh)) {
        count(C_LOST_TREES, 1);
        return 0;
    }
    count(C_LABELLED, 1);
    struct fork_record *e = telemetry.ringbuf_reserve(sizeof(struct fork_record));
    count(K_FORK, 1);
    if (!e) {
        count(C_LOST_TELEMETRY, 1);
        return 0;
    }
    fill(&e->h, K_FORK, p, parent);
    e->child_start = fresh.start;
    e->child = to;
    e->pad = 0;
    telemetry.ringbuf_submit(e, 0);
    return 0;
}
int process_exit(struct bpf_raw_tracepoint_args *ctx) {
    struct task_struct *t = (void *)ctx->args[0];
    u32 pid = READ(task_struct, t, tgid);
    struct proc *p = procs.lookup(&pid);
    struct signal_struct *signal = READ(task_struct, t, signal);
    if (!p || READ(signal_struct, signal, live.counter))
        return 0;
    struct exit_record *e = telemetry.ringbuf_reserve(sizeof(struct exit_record));
    count(K_EXIT, 1);
    if (e) {
        fill(&e->h, K_EXIT, p, t);
        e->status = READ(task_struct, t, exit_code);
        e->pad = 0;
        telemetry.ringbuf_submit(e, 0);
    } else {
        count(C_LOST_TELEMETRY, 1);
    }
    procs.delete(&pid);
    count(C_LABELLED, -1);
    return 0;
}

static __always_inline struct file *file_of(struct task_struct *t, u32 fd) {
    struct files_struct *files = READ(task_struct, t, files);
    struct fdtable *table = READ(files_struct, files, fdt);
    struct file **all = READ(fdtable, table, fd), *f = 0;
    if (fd >= READ(fdtable, table, max_fds))
        return 0;
    bpf_probe_read_kernel(&f, sizeof f, all + fd);
    return f;
}
static __always_inline int tell_mode(struct proc *p, struct task_struct *t, u32 mode, u32 type, u32 by, u64 text,
                                     struct file *f) {
    struct mode_record *e = alerts.ringbuf_reserve(sizeof(struct mode_record));
    count(K_MODE, 1);
    if (!e) {
        count(C_LOST_ALERTS, 1);
        return 0;
    }
    fill(&e->h, K_MODE, p, t);
    e->mode = mode & 07777;
    e->type = type & 0170000;
    e->before = -1;
    e->by = by;
    e->io_uring = e->walked = 0;
    e->unsure = by == M_MKDIR || by == M_MKNOD; /* the directory's default ACL may stand in for the umask */
    e->cut = 1; /* a relative path's directory is not looked up here */
    e->text[0] = 0;
    if (text) {
        bpf_probe_read_user_str(e->text, WORDS, (void *)text);
    } else if (f) {
        struct dentry *d = READ(file, f, f_path.dentry);
        const unsigned char *name = READ(dentry, d, d_name.name);
        bpf_probe_read_kernel_str(e->text, WORDS, name);
    }
    alerts.ringbuf_submit(e, 0);
    return 0;
}
static __always_inline int tell_socket(struct proc *p, struct task_struct *t, u32 kind, struct file *f) {
    if (!f)
        return 0;
    struct inode *inode = READ(file, f, f_inode);
    if ((READ(inode, inode, i_mode) & 0170000) != 0140000)
        return 0;
    struct socket *s = READ(file, f, private_data);
    struct sock *sk = READ(socket, s, sk);
    u32 a[4] = {};
    u16 family = READ(sock, sk, __sk_common.skc_family), port = READ(sock, sk, __sk_common.skc_num);
    if (family == 2) {
        a[2] = __builtin_bswap32(0xffff);
        a[3] = READ(sock, sk, __sk_common.skc_rcv_saddr);
    } else if (family == 10) {
        bpf_probe_read_kernel(a, 16, (void *)sk + __builtin_offsetof(struct sock, __sk_common.skc_v6_rcv_saddr));
    } else {
        return 0;
    }
    bool mapped = !a[0] && !a[1] && a[2] == __builtin_bswap32(0xffff);
    if ((mapped && (a[3] & 0xff) == 127) || (!a[0] && !a[1] && !a[2] && a[3] == __builtin_bswap32(1)))
        return 0;
    struct socket_record *e = alerts.ringbuf_reserve(sizeof(struct socket_record));
    count(kind, 1);
    if (!e) {
        count(C_LOST_ALERTS, 1);
        return 0;
    }
    fill(&e->h, kind, p, t);
    e->family = family;
    e->type = READ(socket, s, type);
    e->protocol = 0;
    e->port = port;
    struct net *net = READ(sock, sk, __sk_common.skc_net.net);
    e->private_net = READ(net, net, ns.inum) != GUARD_NET;
    e->pad = 0;
    __builtin_memcpy(e->address, a, 16);
    alerts.ringbuf_submit(e, 0);
    return 0;
}
/* Attached only while there is a tree. 64-bit calls of x86-64. */
int call_done(struct bpf_raw_tracepoint_args *ctx) {
    u32 pid = bpf_get_current_pid_tgid() >> 32;
    struct proc *p = procs.lookup(&pid);
    long ret = ctx->args[1];
    if (!p || ret < 0)
        return 0;
    struct pt_regs *regs = (void *)ctx->args[0];
    struct task_struct *t = (void *)bpf_get_current_task();
    long number = READ(pt_regs, regs, orig_ax);
    u64 a0 = READ(pt_regs, regs, di), a1 = READ(pt_regs, regs, si), a2 = READ(pt_regs, regs, dx);
    struct fs_struct *fs = READ(task_struct, t, fs);
    u32 closed = READ(fs_struct, fs, umask);
    struct dentry *here = READ(fs_struct, fs, pwd.dentry);
    struct inode *directory = READ(dentry, here, d_inode);
    s64 acl = (s64)READ(inode, directory, i_default_acl);
    if (acl && acl != -1) /* a default ACL stands in for the umask: what it makes is not told */
        closed |= 2;
    if (number == 90 && (a1 & 2))
        return tell_mode(p, t, a1, 0, M_CHMOD, a0, 0);
    if (number == 91 && (a1 & 2))
        return tell_mode(p, t, a1, 0, M_CHMOD, 0, file_of(t, a0));
    if ((number == 268 || number == 452) && (a2 & 2))
        return tell_mode(p, t, a2, 0, M_CHMOD, a1, 0);
    if (number == 83 && (a1 & ~closed & 2))
        return tell_mode(p, t, a1 & ~closed, 0040000, M_MKDIR, a0, 0);
    if (number == 258 && (a2 & ~closed & 2))
        return tell_mode(p, t, a2 & ~closed, 0040000, M_MKDIR, a1, 0);
    if (number == 133 && (a1 & ~closed & 2))
        return tell_mode(p, t, a1 & ~closed, a1, M_MKNOD, a0, 0);
    if (number == 259 && (a2 & ~closed & 2))
        return tell_mode(p, t, a2 & ~closed, a2, M_MKNOD, a1, 0);
    if (number == 2 || number == 85 || number == 257 || number == 437) {
        struct file *f = file_of(t, ret);
        if (!f || (closed & 2))
            return 0;
        struct inode *inode = READ(file, f, f_inode);
        u32 mode = READ(inode, inode, i_mode);
        if ((mode & 2) && ((READ(file, f, f_mode) & CREATED) || (READ(file, f, f_flags) & 020000000)))
            return tell_mode(p, t, mode, mode, M_OPEN, 0, f);
        return 0;
    }
    if (number == 49) {
        struct {
            u16 family, port;
        } asked = {};
        bpf_probe_read_user(&asked, sizeof asked, (void *)a1);
        return asked.port ? tell_socket(p, t, K_BIND, file_of(t, a0)) : 0;
    }
    if (number == 50)
        return tell_socket(p, t, K_LISTEN, file_of(t, a0));
    return 0;
}
