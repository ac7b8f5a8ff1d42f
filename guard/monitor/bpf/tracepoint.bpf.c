/* The backend for kernels without LSM programs and without trampolines: tp_btf and cgroup hooks.
 *
 * One program at the *exit* of system calls sees what was really done: the registers still hold the arguments, and the
 * value says whether it succeeded, so that O_CREAT on a file that exists is no creation. It costs every process of the
 * node and is attached only while there is a tree (guard/monitor/core.py). It cannot refuse anything; binds are refused
 * by the cgroup hooks. */
#define BY_CALLS
#include "calls.h"
#include "lineage.h"
#include "acts.h"
#include "rings.h"

static __always_inline bool is_acl(u64 name, u32 *by) {
    char n[32] = {};
    if (bpf_probe_read_user_str(n, sizeof n, (void *)name) <= 0)
        return false;
    const char start[] = "system.posix_acl";
    u64 *a = (u64 *)n, *b = (u64 *)start;
    if (a[0] != b[0] || a[1] != b[1])
        return false;
    *by = n[17] == 'd' ? M_DEFAULT_ACL : M_ACL;
    return n[17] == 'a' || n[17] == 'd';
}
/* By a path: the type of an object that exists is looked at by the caller of the ring. */
static __always_inline void mode_by_path(struct proc *p, u64 text, s64 dfd, u32 mode, u32 type, u32 by) {
    struct mode_record *e = mode_record(p, mode, type, -1, by);
    if (!e)
        return;
    bpf_probe_read_user_str(e->text, WORDS, (void *)text);
    relative_to(e, dfd);
    bpf_ringbuf_submit(e, 0);
}
static __always_inline void mode_by_file(struct proc *p, struct file *f, u32 mode, u32 by) {
    struct path at;
    if (!f)
        return;
    BPF_CORE_READ_INTO(&at, f, f_path);
    tell_mode(p, mode, BPF_CORE_READ(f, f_inode, i_mode), -1, by, &at, 0);
}
/* The default ACL of the directory that `text` is made in stands in for the umask; -1: it has none, or `text` names a
 * directory on its way, which is not looked up here. */
static __always_inline int opened_by_default(u64 text, s64 dfd) {
    char name[64] = {};
    struct inode *inode;
    long n = bpf_probe_read_user_str(name, sizeof name, (void *)text);
    for (int i = 0; i < 63; i++) {
        if (!name[i])
            break;
        if (name[i] == '/' && name[i + 1])
            return -1;
    }
    if (n <= 1 || n == sizeof name)
        return -1;
    if (dfd >= 0)
        inode = BPF_CORE_READ(file_of(dfd), f_inode);
    else
        inode = BPF_CORE_READ(me(), fs, pwd.dentry, d_inode);
    if (!bpf_core_field_exists(inode->i_default_acl))
        return -1;
    return acl_in_kernel(BPF_CORE_READ(inode, i_default_acl));
}
static __always_inline void made(struct proc *p, u64 text, s64 dfd, u32 mode, u32 by) {
    u32 umask = BPF_CORE_READ(me(), fs, umask);
    u32 type = by == M_MKDIR ? S_IFDIR : (mode & S_IFMT) ? (mode & S_IFMT) : S_IFREG;
    if (!(mode & S_IWOTH))
        return;
    int acl = opened_by_default(text, dfd);
    if (acl == 0 || (acl < 0 && (umask & S_IWOTH)))
        return;
    mode_by_path(p, text, dfd, acl > 0 ? mode : mode & ~umask, type, by);
}
/* /proc/PID/mem, opened for writing. */
static __always_inline void memory_opened(struct proc *p, struct file *f) {
    struct dentry *d = BPF_CORE_READ(f, f_path.dentry);
    const unsigned char *text = BPF_CORE_READ(d, d_name.name);
    char name[12] = {};
    u32 pid = 0;
    bpf_probe_read_kernel_str(name, 5, text);
    if (name[0] != 'm' || name[1] != 'e' || name[2] != 'm' || name[3] ||
        BPF_CORE_READ(f, f_inode, i_sb, s_magic) != PROC_SUPER_MAGIC)
        return;
    text = BPF_CORE_READ(d, d_parent, d_name.name);
    bpf_probe_read_kernel_str(name, sizeof name, text);
    for (int i = 0; i < 10; i++) {
        if (!name[i])
            break;
        if (name[i] < '0' || name[i] > '9')
            return; /* not a process's: /dev/mem */
        pid = pid * 10 + (name[i] - '0');
    }
    tell_hold(p, pid);
}
static __always_inline void opened(struct proc *p, s64 fd, u64 path) {
    struct file *f = file_of(fd);
    if (!f)
        return;
    u32 how = BPF_CORE_READ(f, f_mode), flags = BPF_CORE_READ(f, f_flags);
    if (how & FMODE_WRITE) {
        authored(p, f);
        memory_opened(p, f);
    } else {
        script_opened(p, f, path);
    }
    if (!(how & FMODE_CREATED) && (flags & O_TMPFILE_BIT) != O_TMPFILE_BIT)
        return;
    u32 mode = BPF_CORE_READ(f, f_inode, i_mode);
    if (mode & S_IWOTH)
        mode_by_file(p, f, mode, M_OPEN);
}
static __always_inline struct sock *sock_of(u64 fd) {
    struct file *f = file_of(fd);
    if (!f || (BPF_CORE_READ(f, f_inode, i_mode) & S_IFMT) != S_IFSOCK)
        return 0;
    struct socket *s = BPF_CORE_READ(f, private_data);
    return BPF_CORE_READ(s, sk);
}
static __always_inline void bound(struct proc *p, u64 fd) {
    struct sock *sk = sock_of(fd);
    if (!sk || BPF_CORE_READ(sk, __sk_common.skc_family) != AF_UNIX)
        return; /* addresses: the cgroup hooks */
    struct path at;
    BPF_CORE_READ_INTO(&at, (struct unix_sock *)sk, path);
    if (!at.dentry)
        return;
    u32 mode = BPF_CORE_READ(at.dentry, d_inode, i_mode);
    if (mode & S_IWOTH)
        tell_mode(p, mode, mode, -1, M_BIND, &at, 0);
}
static __always_inline void listening(struct proc *p, u64 fd) {
    struct sock *sk = sock_of(fd);
    u32 family, a[4] = {}, port;
    if (sk && listens_outside(sk, &family, a, &port))
        tell_socket(p, K_LISTEN, sk, family, a, port, V_OBSERVED);
}
static __always_inline void connected(struct proc *p, u64 fd) {
    struct sock *sk = sock_of(fd);
    u32 family, a[4] = {}, port;
    if (sk && connects_outside(sk, &family, a, &port))
        tell_connect(p, sk, family, a, port);
}
/* A copy that shares its blocks, as cp(1) makes on XFS and Btrfs. */
static __always_inline void cloned(struct proc *p, u64 to, u64 from) {
    do_read(p, (u64)file_of(from), -1, 0, 0);
    do_write(p, (u64)file_of(to), 0, 0);
}
static __always_inline void read_vector(u64 at, u64 *base, u64 *length) {
    struct {
        u64 base, length;
    } v = {};
    bpf_probe_read_user(&v, sizeof v, (void *)at);
    *base = v.base;
    *length = v.length;
}

/* Reading and writing, by far the most calls. The value: it was one of them. */
static __always_inline bool data_call(struct proc *p, struct call *c, s64 ret) {
    u64 base = 0, length = 0;
    switch (c->number) {
    case NR_read:
    case NR_pread64:
    case NR_recvfrom:
        if (ret > 0)
            do_read(p, (u64)file_of(c->a[0]), c->a[0], c->a[1], ret);
        return true;
    case NR_readv:
    case NR_preadv:
    case NR_preadv2:
    case NR_recvmsg:
    case NR_recvmmsg:
        if (ret > 0)
            do_read(p, (u64)file_of(c->a[0]), c->a[0], 0, 0);
        return true;
    case NR_write:
    case NR_pwrite64:
    case NR_sendto:
        if (ret > 0)
            do_write(p, (u64)file_of(c->a[0]), c->a[1], ret);
        return true;
    case NR_writev:
    case NR_pwritev:
    case NR_pwritev2:
        if (ret > 0) {
            if (c->entry == ENTRY_USUAL)
                read_vector(c->a[1], &base, &length);
            do_write(p, (u64)file_of(c->a[0]), base, length);
        }
        return true;
    case NR_sendmsg:
    case NR_sendmmsg:
        if (ret > 0)
            do_write(p, (u64)file_of(c->a[0]), 0, 0);
        return true;
    case NR_sendfile:
        if (ret > 0) {
            do_read(p, (u64)file_of(c->a[1]), -1, 0, 0);
            do_write(p, (u64)file_of(c->a[0]), 0, 0);
        }
        return true;
    case NR_splice:
    case NR_copy_file_range:
        if (ret > 0) {
            do_read(p, (u64)file_of(c->a[0]), -1, 0, 0);
            do_write(p, (u64)file_of(c->a[2]), 0, 0);
        }
        return true;
    case NR_tee:
        if (ret > 0) {
            do_read(p, (u64)file_of(c->a[0]), -1, 0, 0);
            do_write(p, (u64)file_of(c->a[1]), 0, 0);
        }
        return true;
    case NR_vmsplice: { /* into a pipe or out of it: the end that was given tells */
        struct file *f = file_of(c->a[0]);
        if (ret > 0 && f) {
            read_vector(c->a[1], &base, &length);
            if (BPF_CORE_READ(f, f_mode) & FMODE_WRITE)
                do_write(p, (u64)f, base, length);
            else
                do_read(p, (u64)f, c->a[0], base, length);
        }
        return true;
    }
    case NR_mmap:
        if (ret > 0 || ret < -4095)
            if (c->entry == ENTRY_USUAL && (s32)c->a[4] >= 0)
                do_map(p, (u64)file_of(c->a[4]), c->a[2], c->a[3]);
        return true;
    }
    return false;
}
static __always_inline void act_call(struct proc *p, struct call *c, s64 ret) {
    u32 by = 0;
    if (c->number == NR_connect && (ret == 0 || ret == -EINPROGRESS)) {
        connected(p, c->a[0]);
        return;
    }
    if (ret < 0)
        return;
    switch (c->number) {
#ifdef NR_open
    case NR_open:
    case NR_creat:
        opened(p, ret, c->a[0]);
        break;
#endif
    case NR_openat:
    case NR_openat2:
        opened(p, ret, c->a[1]);
        break;
#ifdef NR_chmod
    case NR_chmod:
        if (c->a[1] & S_IWOTH)
            mode_by_path(p, c->a[0], -1, c->a[1], 0, M_CHMOD);
        break;
    case NR_mkdir:
        made(p, c->a[0], -1, c->a[1], M_MKDIR);
        break;
    case NR_mknod:
        made(p, c->a[0], -1, c->a[1], M_MKNOD);
        break;
#endif
    case NR_fchmod:
        if (c->a[1] & S_IWOTH)
            mode_by_file(p, file_of(c->a[0]), c->a[1], M_CHMOD);
        break;
    case NR_fchmodat:
    case NR_fchmodat2:
        if (c->a[2] & S_IWOTH)
            mode_by_path(p, c->a[1], (s32)c->a[0], c->a[2], 0, M_CHMOD);
        break;
    case NR_mkdirat:
        made(p, c->a[1], (s32)c->a[0], c->a[2], M_MKDIR);
        break;
    case NR_mknodat:
        made(p, c->a[1], (s32)c->a[0], c->a[2], M_MKNOD);
        break;
    case NR_setxattr:
    case NR_lsetxattr:
        if (is_acl(c->a[1], &by) && acl_opens(c->a[2], c->a[3]))
            mode_by_path(p, c->a[0], -1, S_IWOTH, 0, by);
        break;
    case NR_fsetxattr:
        if (is_acl(c->a[1], &by) && acl_opens(c->a[2], c->a[3]))
            mode_by_file(p, file_of(c->a[0]), S_IWOTH, by);
        break;
    case NR_setxattrat: { /* struct xattr_args: value, size, flags */
        u64 words[2] = {};
        bpf_probe_read_user(words, sizeof words, (void *)c->a[4]);
        if (is_acl(c->a[3], &by) && acl_opens(words[0], (u32)words[1]))
            mode_by_path(p, c->a[1], (s32)c->a[0], S_IWOTH, 0, by);
        break;
    }
    case NR_bind:
        bound(p, c->a[0]);
        break;
    case NR_listen:
        listening(p, c->a[0]);
        break;
    case NR_ptrace:
        if (c->a[0] == PTRACE_ATTACH || c->a[0] == PTRACE_SEIZE)
            tell_hold(p, c->a[1]);
        break;
    case NR_ioctl:
        if ((u32)c->a[1] == TIOCSTI)
            tell_typed(p);
        else if ((u32)c->a[1] == FICLONE)
            cloned(p, c->a[0], c->a[2]);
        else if ((u32)c->a[1] == FICLONERANGE) {
            s64 from = -1; /* struct file_clone_range begins with it */
            bpf_probe_read_user(&from, sizeof from, (void *)c->a[2]);
            cloned(p, c->a[0], from);
        }
        break;
    case NR_process_vm_readv:
    case NR_process_vm_writev:
        tell_hold(p, c->a[0]);
        break;
#ifdef NR_stat
    case NR_stat:
    case NR_lstat:
#endif
    case NR_fstatat:
    case NR_statx:
    case NR_getdents64:
        if (++p->calls % 1000 == 0)
            tell_number(p, K_WALK, p->calls, 0, 0);
        break;
    }
}

SEC("tp_btf/sys_exit") int BPF_PROG(call_done, struct pt_regs *regs, long ret) {
    struct proc *p = current_proc(); /* everybody else leaves here */
    if (!p)
        return 0;
    struct call c = {};
    read_call(&c, regs);
    if (c.entry != ENTRY_USUAL && !(p->flags & F_RAW)) {
        p->flags |= F_RAW;
        tell_number(p, K_RAW, c.number32, c.entry, c.program32);
    }
    if (!data_call(p, &c, ret))
        act_call(p, &c, ret);
    return 0;
}
