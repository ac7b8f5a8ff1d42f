/* The backends that see and refuse the acts themselves: LSM programs, and with -DFMOD_RET the same on the security_*
 * functions, for kernels whose lsm= leaves bpf out. They cost nothing on calls that they do not hook. */
#include "state.h"
#include "calls.h"
#include "lineage.h"
#include "acts.h"
#include "rings.h"

#ifdef FMOD_RET
#define HOOK(NAME)     SEC("fmod_ret/security_" #NAME)
#define MAYBE(NAME)    SEC("?fmod_ret/security_" #NAME)
#define HOOK_BPRM      SEC("fmod_ret/security_bprm_check") /* the function is not called as the hook is */
#else
#define HOOK(NAME)     SEC("lsm/" #NAME)
#define MAYBE(NAME)    SEC("?lsm/" #NAME)
#define HOOK_BPRM      SEC("lsm/bprm_check_security")
#endif

#if defined(__TARGET_ARCH_x86)
#define CALL(NAME) "fentry/__x64_sys_" #NAME
#define DONE(NAME) "fexit/__x64_sys_" #NAME
#else
#define CALL(NAME) "fentry/__arm64_sys_" #NAME
#define DONE(NAME) "fexit/__arm64_sys_" #NAME
#endif

/* An argument as a plain number: a global function takes no kernel pointers. */
static __always_inline u64 argument(unsigned long long *ctx, u32 n) {
    u64 value = 0;
    bpf_probe_read_kernel(&value, sizeof value, ctx + n);
    return value;
}
/* The call that is being served: the hooks do not say. */
static __always_inline void current_call(struct call *c) {
    struct task_struct *t = (struct task_struct *)bpf_get_current_task_btf();
    read_call(c, (struct pt_regs *)bpf_task_pt_regs(t));
}
/* The current process's label; a call by an odd entry is said on the way, once. */
static __always_inline struct proc *in_tree(void) {
    struct proc *p = current_proc();
#if defined(__TARGET_ARCH_x86)
    if (p && !(p->flags & F_RAW)) {
        struct call c = {};
        current_call(&c);
        if (c.entry != ENTRY_USUAL) {
            p->flags |= F_RAW;
            tell_number(p, K_RAW, c.number32, c.entry, c.program32);
        }
    }
#endif
    return p;
}
static __always_inline u32 deny_mode(u32 mode, u32 type) {
    struct config *c = config();
    if ((type & S_IFMT) == S_IFDIR && (mode & 01000))
        return 0; /* sticky: everybody may make, nobody may take away */
    return c ? c->deny_mode : 0;
}

/* ---- modes ---- */
HOOK(path_chmod) int BPF_PROG(chmod_asked, const struct path *path, umode_t mode, int before) {
    if (before)
        return -EPERM; /* refused already */
    struct proc *p = in_tree();
    if (!p || !(mode & S_IWOTH))
        return 0;
    struct path at;
    at.mnt = BPF_CORE_READ((struct path *)path, mnt);
    at.dentry = BPF_CORE_READ((struct path *)path, dentry);
    u32 type = BPF_CORE_READ(at.dentry, d_inode, i_mode);
    u32 denied = deny_mode(mode, type);
    tell_mode(p, mode, type, type & 07777, M_CHMOD, &at, denied);
    return refusal(denied);
}
/* The mode is the one that was asked for: umask or the directory's default ACL come after it. The path is that of the
 * directory; the name is the text, relative to it. */
static __always_inline int made(struct proc *p, struct path *dir, struct dentry *d, u32 mode, u32 type, u32 by) {
    u32 umask = BPF_CORE_READ(me(), fs, umask);
    if (!(mode & S_IWOTH))
        return 0;
    struct path at;
    at.mnt = BPF_CORE_READ(dir, mnt);
    at.dentry = BPF_CORE_READ(dir, dentry);
    struct inode *inode = BPF_CORE_READ(at.dentry, d_inode);
    int acl = -1;
    if (bpf_core_field_exists(inode->i_default_acl))
        acl = acl_in_kernel(BPF_CORE_READ(inode, i_default_acl));
    if (acl == 0 || (acl < 0 && (umask & S_IWOTH)))
        return 0;
    u32 denied = deny_mode(mode, type);
    struct mode_record *e = mode_record(p, acl > 0 ? mode : mode & ~umask, type, -1, by);
    if (e) {
        const unsigned char *name = BPF_CORE_READ(d, d_name.name);
        e->h.verdict = denied ? V_DENIED : V_OBSERVED;
        bpf_probe_read_kernel_str(e->text, WORDS, name);
        walk(e, &at);
        bpf_ringbuf_submit(e, 0);
    }
    return refusal(denied);
}
HOOK(path_mkdir) int BPF_PROG(mkdir_asked, const struct path *dir, struct dentry *d, umode_t mode, int before) {
    if (before)
        return -EPERM;
    struct proc *p = in_tree();
    return p ? made(p, (struct path *)dir, d, mode, S_IFDIR, M_MKDIR) : 0;
}
HOOK(path_mknod)
int BPF_PROG(mknod_asked, const struct path *dir, struct dentry *d, umode_t mode, unsigned int device, int before) {
    if (before)
        return -EPERM;
    struct proc *p = in_tree();
    if (!p)
        return 0;
    u32 type = mode & S_IFMT, by = type == S_IFSOCK ? M_BIND : M_MKNOD;
    if (type == S_IFREG || !type) {
        /* open(2) asks it too, before it makes the file: here it can be refused without leaving an empty one behind.
         * Where nothing is refused the file itself tells more exactly (file_opened). */
        struct call c = {};
        struct config *told = config();
        current_call(&c);
        type = S_IFREG;
        bool opens = c.number != NR_mknodat;
#ifdef NR_mknod
        opens = opens && c.number != NR_mknod;
#endif
        if (opens && !(told && told->deny_mode))
            return 0;
        if (opens)
            by = M_OPEN;
    }
    return made(p, (struct path *)dir, d, mode, type, by);
}
HOOK(file_open) int BPF_PROG(file_opened, struct file *f, int before) {
    if (before)
        return -EPERM;
    struct proc *p = in_tree();
    if (!p)
        return 0;
    u32 how = BPF_CORE_READ(f, f_mode), flags = BPF_CORE_READ(f, f_flags);
    if (how & FMODE_WRITE) {
        authored(p, f);
    } else if (p->by == BY_FILE && !p->opened.number) {
        struct call c = {};
        current_call(&c);
        if (c.number == NR_openat || c.number == NR_openat2)
            script_opened(p, f, c.a[1]);
#ifdef NR_open
        if (c.number == NR_open)
            script_opened(p, f, c.a[0]);
#endif
    }
    if (!(how & FMODE_CREATED) && (flags & O_TMPFILE_BIT) != O_TMPFILE_BIT)
        return 0;
    u32 mode = BPF_CORE_READ(f, f_inode, i_mode);
    if (!(mode & S_IWOTH))
        return 0;
    u32 denied = deny_mode(mode, mode);
    struct path at;
    at.mnt = BPF_CORE_READ(f, f_path.mnt);
    at.dentry = BPF_CORE_READ(f, f_path.dentry);
    tell_mode(p, mode, mode, -1, M_OPEN, &at, denied);
    return refusal(denied);
}
static __always_inline int acl_opens_file(struct proc *p, struct dentry *d, u32 by) {
    u32 type = BPF_CORE_READ(d, d_inode, i_mode);
    u32 denied = deny_mode(type, type);
    struct path at = {0, d};
    tell_mode(p, S_IWOTH | (type & 01000), type, type & 07777, by, &at, denied);
    return refusal(denied);
}
MAYBE(inode_set_acl)
int BPF_PROG(acl_asked, struct mnt_idmap *map, struct dentry *d, const char *name, struct posix_acl *acl, int before) {
    if (before)
        return -EPERM;
    struct proc *p = in_tree();
    if (!p || acl_in_kernel(acl) <= 0)
        return 0;
    char n[32] = {};
    bpf_probe_read_kernel_str(n, sizeof n, name);
    return acl_opens_file(p, (struct dentry *)argument(ctx, 1), n[17] == 'd' ? M_DEFAULT_ACL : M_ACL);
}
/* Before 6.2 there is no such hook. The value cannot be read from this one's arguments there ("type UNKNOWN is not a
 * struct"): it is taken from the call's. */
MAYBE(inode_setxattr) int BPF_PROG(xattr_asked, void *map, struct dentry *d, const char *name) {
    struct proc *p = in_tree();
    if (!p)
        return 0;
    char n[32] = {};
    bpf_probe_read_kernel_str(n, sizeof n, name);
    const char start[] = "system.posix_acl";
    u64 *a = (u64 *)n, *b = (u64 *)start;
    if (a[0] != b[0] || a[1] != b[1])
        return 0;
    struct call c = {};
    current_call(&c);
    if (c.number != NR_setxattr && c.number != NR_lsetxattr && c.number != NR_fsetxattr)
        return 0;
    if (!acl_opens(c.a[2], c.a[3]))
        return 0;
    return acl_opens_file(p, (struct dentry *)argument(ctx, 1), n[17] == 'd' ? M_DEFAULT_ACL : M_ACL);
}

/* ---- sockets ---- */
HOOK(socket_listen) int BPF_PROG(listen_asked, struct socket *s, int backlog, int before) {
    if (before)
        return -EPERM;
    struct proc *p = in_tree();
    struct sock *sk = BPF_CORE_READ(s, sk);
    u32 family, a[4] = {}, port;
    if (!p || !listens_outside(sk, &family, a, &port))
        return 0;
    struct config *c = config();
    u32 denied = c && c->deny_listen && !elsewhere(sk);
    tell_socket(p, K_LISTEN, sk, family, a, port, denied ? V_DENIED : V_OBSERVED);
    return refusal(denied);
}
HOOK(socket_connect) int BPF_PROG(connect_asked, struct socket *s, struct sockaddr *to, int length, int before) {
    if (before)
        return -EPERM;
    struct proc *p = in_tree();
    struct {
        u16 family, port;
        u32 a[6];
    } at = {};
    if (!p)
        return 0;
    bpf_probe_read_kernel(&at, sizeof at, to);
    u32 port = swap16(at.port);
    if (at.family == AF_INET && is_outside4(at.a[0], at.port, DNS_NAMES))
        tell_connect(p, BPF_CORE_READ(s, sk), AF_INET, at.a, port);
    else if (at.family == AF_INET6 && is_outside6(at.a + 1, at.port, DNS_NAMES)) /* flow label first */
        tell_connect(p, BPF_CORE_READ(s, sk), AF_INET6, at.a + 1, port);
    return 0;
}

/* ---- other processes ---- */
/* ptrace, process_vm_readv and _writev, /proc/PID/mem, pidfd_getfd; a mere look into /proc is PTRACE_MODE_READ. */
HOOK(ptrace_access_check) int BPF_PROG(hold_asked, struct task_struct *other, unsigned int mode, int before) {
    if (before)
        return -EPERM;
    struct proc *p = in_tree();
    if (p && (mode & PTRACE_MODE_ATTACH))
        tell_hold(p, BPF_CORE_READ((struct task_struct *)other, tgid));
    return 0;
}
HOOK(file_ioctl) int BPF_PROG(control_asked, struct file *f, unsigned int what, unsigned long value, int before) {
    if (before)
        return -EPERM;
    struct proc *p = what == TIOCSTI ? in_tree() : 0;
    if (p)
        tell_typed(p);
    return 0;
}

/* ---- flow ---- */
/* The hooks get files, not descriptors; what matters is whether it is standard input. */
static __always_inline s32 descriptor(struct file *f) {
    return f == file_of(0) ? 0 : f == file_of(1) ? 1 : 3;
}
HOOK(socket_recvmsg) int BPF_PROG(receive_asked, struct socket *s, struct msghdr *m, int size, int flags, int before) {
    if (before)
        return -EPERM;
    struct proc *p = in_tree();
    if (!p)
        return 0;
    struct file *f = BPF_CORE_READ(s, file);
    return f ? refusal(do_read(p, (u64)f, descriptor(f), 0, 0)) : 0;
}
HOOK(socket_sendmsg) int BPF_PROG(send_asked, struct socket *s, struct msghdr *m, int size, int before) {
    if (before)
        return -EPERM;
    struct proc *p = in_tree();
    if (!p)
        return 0;
    struct file *f = BPF_CORE_READ(s, file);
    struct call c = {};
    current_call(&c);
    u64 sample = c.number == NR_write || c.number == NR_sendto ? c.a[1] : 0;
    return f ? refusal(do_write(p, (u64)f, sample, sample ? c.a[2] : 0)) : 0;
}
HOOK(file_permission) int BPF_PROG(data_asked, struct file *f, int mask, int before) {
    if (before)
        return -EPERM;
    struct proc *p = in_tree();
    if (!p)
        return 0;
    u64 at = argument(ctx, 0);
    if (mask & MAY_READ)
        return refusal(do_read(p, at, descriptor((struct file *)at), 0, 0));
    if (mask & MAY_WRITE) {
        struct call c = {};
        current_call(&c);
        u64 sample = c.number == NR_write || c.number == NR_pwrite64 ? c.a[1] : 0;
        return refusal(do_write(p, at, sample, sample ? c.a[2] : 0));
    }
    return 0;
}
HOOK_BPRM int BPF_PROG(exec_asked, struct linux_binprm *bprm, int before) {
    if (before)
        return -EPERM;
    struct proc *p = in_tree();
    if (!p || (p->flags & F_HARNESS))
        return 0;
    struct file *f = BPF_CORE_READ(bprm, file);
    struct key key = inode_key(BPF_CORE_READ(f, f_inode));
    struct mark *m = bpf_map_lookup_elem(&marks, &key);
    return m ? refusal(alert_code(p, &key, m, f, HOW_EXECUTED, T_FILE, 0)) : 0;
}
#ifdef FMOD_RET /* the function has an argument less than the hook */
HOOK(mmap_file) int BPF_PROG(map_asked, struct file *f, unsigned long protection, unsigned long flags, int before) {
#else
HOOK(mmap_file)
int BPF_PROG(map_asked, struct file *f, unsigned long asked, unsigned long protection, unsigned long flags, int before) {
#endif
    if (before)
        return -EPERM;
    struct proc *p = in_tree();
    return p && f ? refusal(do_map(p, argument(ctx, 0), protection, flags)) : 0;
}
HOOK(inode_getattr) int BPF_PROG(stat_asked, const struct path *path, int before) {
    struct proc *p = current_proc();
    if (before)
        return -EPERM;
    if (p && ++p->calls % 1000 == 0)
        tell_number(p, K_WALK, p->calls, 0, 0);
    return 0;
}
/* Between pipes no file is asked for a permission. */
static __always_inline int moved(struct pt_regs *regs, u32 from, u32 to) {
    struct proc *p = current_proc();
    struct call c = {};
    if (!p)
        return 0;
    read_call(&c, regs);
    p->flags |= F_POWERLESS; /* it is seen here and not asked */
    do_read(p, (u64)file_of(c.a[from & 3]), -1, 0, 0);
    do_write(p, (u64)file_of(c.a[to & 3]), 0, 0);
    p->flags &= ~F_POWERLESS;
    return 0;
}
/* Before, so that the mark is there when the data is; and after, for one that slept on a pipe that was clean yet. */
SEC(CALL(splice)) int BPF_PROG(splice_asked, struct pt_regs *regs) {
    return moved(regs, 0, 2);
}
SEC(CALL(tee)) int BPF_PROG(tee_asked, struct pt_regs *regs) {
    return moved(regs, 0, 1);
}
SEC(DONE(splice)) int BPF_PROG(splice_done, struct pt_regs *regs, long ret) {
    return ret > 0 ? moved(regs, 0, 2) : 0;
}
SEC(DONE(tee)) int BPF_PROG(tee_done, struct pt_regs *regs, long ret) {
    return ret > 0 ? moved(regs, 0, 1) : 0;
}
SEC(CALL(sendfile64)) int BPF_PROG(sendfile_asked, struct pt_regs *regs) {
    return moved(regs, 1, 0);
}
SEC(CALL(vmsplice)) int BPF_PROG(vmsplice_asked, struct pt_regs *regs) {
    struct proc *p = current_proc();
    struct call c = {};
    struct {
        u64 base, length;
    } v = {};
    if (!p)
        return 0;
    read_call(&c, regs);
    struct file *f = file_of(c.a[0]);
    if (!f)
        return 0;
    bpf_probe_read_user(&v, sizeof v, (void *)c.a[1]);
    p->flags |= F_POWERLESS;
    if (BPF_CORE_READ(f, f_mode) & FMODE_WRITE)
        do_write(p, (u64)f, v.base, v.length);
    else
        do_read(p, (u64)f, c.a[0], 0, 0);
    p->flags &= ~F_POWERLESS;
    return 0;
}
