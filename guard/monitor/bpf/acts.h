/* Modes and sockets: the acts that are findings by themselves. */
#pragma once
#include "flow.h"

/* The path of an object, its names from the inside out, across mounts. The names are NUL-ended in `walk`.
 * Global, so that it is verified once; what it counts with lives in the record, so that the verifier sees every round
 * of the loop as the same one. Addresses come as numbers: a global function takes no kernel pointers. */
__attribute__((noinline)) int walk_path(struct mode_record *e, u64 vfsmount, u64 dentry) {
    struct dentry *d = (struct dentry *)dentry;
    struct mount *m = 0;
    if (!e)
        return 0;
    if (vfsmount) /* struct vfsmount lies inside struct mount */
        m = (struct mount *)(vfsmount - bpf_core_field_offset(struct mount, mnt));
    e->walked = 0;
    e->cut = 1;
    for (int i = 0; i < 24; i++) {
        struct dentry *parent = BPF_CORE_READ(d, d_parent);
        if (m && d == BPF_CORE_READ(m, mnt.mnt_root)) {
            struct mount *above = BPF_CORE_READ(m, mnt_parent);
            if (above == m) {
                e->cut = 0;
                break;
            }
            d = BPF_CORE_READ(m, mnt_mountpoint);
            m = above;
            continue;
        }
        if (parent == d) {
            break; /* the root of a file system whose mount is not known */
        }
        u32 used = e->walked;
        if (used >= PATH_ROOM - WORDS)
            break;
        const unsigned char *name = BPF_CORE_READ(d, d_name.name);
        long n = bpf_probe_read_kernel_str(e->walk + (used & (PATH_ROOM - WORDS - 1)), WORDS, name);
        if (n <= 0)
            break;
        e->walked = used + n;
        d = parent;
    }
    return 0;
}
static __always_inline void walk(struct mode_record *e, struct path *at) {
    walk_path(e, (u64)at->mnt, (u64)at->dentry);
}
/* What a path argument is relative to: the record's walk. An absolute one is to the process's root, which chroot(2) moves. */
static __always_inline void relative_to(struct mode_record *e, s64 dfd) {
    struct path at;
    if (e->text[0] == '/')
        BPF_CORE_READ_INTO(&at, me(), fs, root);
    else if (dfd >= 0)
        BPF_CORE_READ_INTO(&at, file_of(dfd), f_path);
    else
        BPF_CORE_READ_INTO(&at, me(), fs, pwd);
    walk(e, &at);
}
static __always_inline struct mode_record *mode_record(struct proc *p, u32 mode, u32 type, u32 before, u32 by) {
    struct mode_record *e = ALERT(K_MODE, struct mode_record);
    if (!e)
        return 0;
    fill(&e->h, K_MODE, p);
    e->mode = mode & 07777;
    e->type = type & S_IFMT;
    e->before = before;
    e->by = by;
    e->io_uring = e->unsure = e->walked = e->cut = 0;
    e->text[0] = 0;
    return e;
}
/* With everything known: from the object itself. */
static __always_inline void tell_mode(struct proc *p, u32 mode, u32 type, u32 before, u32 by, struct path *at,
                                      u32 denied) {
    struct mode_record *e = mode_record(p, mode, type, before, by);
    if (!e)
        return;
    e->h.verdict = denied ? V_DENIED : V_OBSERVED;
    walk(e, at);
    bpf_ringbuf_submit(e, 0);
}

static __always_inline void tell_number(struct proc *p, u32 kind, u32 number, u32 a, u32 b) {
    struct number_record *e;
    if (kind == K_RAW || kind == K_HOLD)
        e = ALERT(kind, struct number_record);
    else
        e = TELL(kind, struct number_record);
    if (!e)
        return;
    fill(&e->h, kind, p);
    e->number = number;
    e->a = a;
    e->b = b;
    e->pad = 0;
    bpf_ringbuf_submit(e, 0);
}
/* It reads, writes or steers another process, which is of no tree or of another: what that does then is not this
 * tree's. Threads (of ptrace) and numbers of another namespace are sorted out by the caller of the ring. */
static __always_inline void tell_hold(struct proc *p, u32 pid) {
    struct proc *other = bpf_map_lookup_elem(&procs, &pid);
    if (!pid || p->held == pid || (other && other->root == p->root))
        return;
    p->held = pid;
    tell_number(p, K_HOLD, pid, HOLD_PROCESS, 0);
}
/* Characters put into a terminal's input: whoever reads it next, the user's own shell, takes them as typed. */
static __always_inline void tell_typed(struct proc *p) {
    if (p->held == (u64)-1)
        return;
    p->held = -1;
    tell_number(p, K_HOLD, 0, HOLD_TERMINAL, 0);
}
/* An ACL as the kernel holds it: may anybody write? -1: there is none. */
static __always_inline int acl_in_kernel(struct posix_acl *acl) {
    if (!acl || (u64)acl == (u64)-1) /* ACL_NOT_CACHED */
        return -1;
    u32 entries = BPF_CORE_READ(acl, a_count), size = bpf_core_type_size(struct posix_acl_entry);
    u64 at = (u64)acl + bpf_core_field_offset(struct posix_acl, a_entries);
    for (u32 i = 0; i < 24; i++) {
        if (i >= entries)
            break;
        struct posix_acl_entry *entry = (struct posix_acl_entry *)(at + i * size);
        if (BPF_CORE_READ(entry, e_tag) == ACL_OTHER)
            return (BPF_CORE_READ(entry, e_perm) & 2) != 0;
    }
    return 0;
}

/* The other class's entry of an ACL in its xattr form (include/uapi/linux/posix_acl_xattr.h) lets anybody write. */
static __always_inline bool acl_opens(u64 value, u64 size) {
    for (u32 i = 0; i < 32; i++) {
        struct {
            u16 tag, perm;
            u32 id;
        } entry = {};
        if (4 + (u64)i * 8 + 8 > size)
            break;
        if (bpf_probe_read_user(&entry, 8, (void *)(value + 4 + i * 8)))
            break;
        if (entry.tag == ACL_OTHER && (entry.perm & 2))
            return true;
    }
    return false;
}
/* In another network namespace than the monitor's: such a socket harms nobody. */
static __always_inline bool elsewhere(struct sock *sk) {
    struct config *c = config();
    return c && c->net_inum && BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum) != c->net_inum;
}
static __always_inline bool loopback(u32 family, u32 *a) {
    if (family == AF_INET)
        return (a[0] & 0xff) == 127;
    if (!a[0] && !a[1] && a[2] == swap32(0xffff))
        return (a[3] & 0xff) == 127;
    return !a[0] && !a[1] && !a[2] && a[3] == swap32(1);
}
static __always_inline void put_address(struct socket_record *e, u32 family, u32 *a) {
    if (family == AF_INET) {
        u32 mapped[4] = {0, 0, swap32(0xffff), a[0]};
        __builtin_memcpy(e->address, mapped, 16);
    } else {
        __builtin_memcpy(e->address, a, 16);
    }
}
static __always_inline void tell_socket(struct proc *p, u32 kind, struct sock *sk, u32 family, u32 *a, u32 port,
                                        u32 verdict) {
    struct socket_record *e;
    if (kind == K_CONNECT)
        e = TELL(K_CONNECT, struct socket_record);
    else
        e = ALERT(kind, struct socket_record);
    if (!e)
        return;
    fill(&e->h, kind, p);
    e->h.verdict = verdict;
    e->family = family;
    e->type = BPF_CORE_READ(sk, sk_type);
    e->protocol = BPF_CORE_READ(sk, sk_protocol);
    e->port = port;
    e->private_net = elsewhere(sk);
    e->pad = 0;
    put_address(e, family, a);
    bpf_ringbuf_submit(e, 0);
}
/* A socket that listens, or is about to. The value: not on loopback. */
static __always_inline bool listens_outside(struct sock *sk, u32 *family, u32 *a, u32 *port) {
    *family = BPF_CORE_READ(sk, __sk_common.skc_family);
    if (*family == AF_INET) {
        a[0] = BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr);
    } else if (*family == AF_INET6) {
        struct in6_addr full;
        BPF_CORE_READ_INTO(&full, sk, __sk_common.skc_v6_rcv_saddr);
        __builtin_memcpy(a, &full, 16);
    } else {
        return false;
    }
    *port = BPF_CORE_READ(sk, __sk_common.skc_num);
    return !loopback(*family, a);
}
static __always_inline bool connects_outside(struct sock *sk, u32 *family, u32 *a, u32 *port) {
    *family = BPF_CORE_READ(sk, __sk_common.skc_family);
    *port = swap16(BPF_CORE_READ(sk, __sk_common.skc_dport));
    if (*family == AF_INET) {
        a[0] = BPF_CORE_READ(sk, __sk_common.skc_daddr);
        return is_outside4(a[0], swap16(*port), DNS_NAMES);
    }
    if (*family == AF_INET6) {
        struct in6_addr full;
        BPF_CORE_READ_INTO(&full, sk, __sk_common.skc_v6_daddr);
        __builtin_memcpy(a, &full, 16);
        return is_outside6(a, swap16(*port), DNS_NAMES);
    }
    return false;
}
static __always_inline void tell_connect(struct proc *p, struct sock *sk, u32 family, u32 *a, u32 port) {
    u64 peer = (u64)(family == AF_INET ? a[0] : a[3] ^ a[1]) << 32 | port;
    if ((p->flags & F_HARNESS) || p->connected == peer)
        return;
    p->connected = peer;
    tell_socket(p, K_CONNECT, sk, family, a, port, V_OBSERVED);
}

/* Binds, in every backend: these hooks see system calls, io_uring and 32-bit calls, and can refuse and rewrite. */
static __always_inline int on_bind(struct bpf_sock_addr *at, u32 family) {
    struct proc *p = current_proc();
    if (!p)
        return 1;
    u32 a[4] = {};
    if (family == AF_INET) {
        a[0] = at->user_ip4;
    } else {
        a[0] = at->user_ip6[0];
        a[1] = at->user_ip6[1];
        a[2] = at->user_ip6[2];
        a[3] = at->user_ip6[3];
    }
    u32 port = swap16((u16)at->user_port);
    /* Port 0: a client, or a listener whose port listen() will tell. */
    if (loopback(family, a) || !port || at->type == 3)
        return 1;
    struct config *c = config();
    if (!c)
        return 1;
    u32 foreign = c->net_cookie && bpf_get_netns_cookie(at) != c->net_cookie;
    u32 verdict = foreign ? V_OBSERVED : c->bind;
    struct socket_record *e = ALERT(K_BIND, struct socket_record);
    if (e) {
        fill(&e->h, K_BIND, p);
        e->h.verdict = verdict;
        e->family = family;
        e->type = at->type;
        e->protocol = at->protocol;
        e->port = port;
        e->private_net = foreign;
        e->pad = 0;
        put_address(e, family, a);
        bpf_ringbuf_submit(e, 0);
    }
    if (verdict == V_REWRITTEN) {
        if (family == AF_INET) {
            at->user_ip4 = swap32(0x7f000001);
        } else {
            u32 mapped = !a[0] && !a[1] && a[2] == swap32(0xffff);
            at->user_ip6[0] = 0;
            at->user_ip6[1] = 0;
            at->user_ip6[2] = mapped ? swap32(0xffff) : 0;
            at->user_ip6[3] = mapped ? swap32(0x7f000001) : swap32(1);
        }
        return 1;
    }
    return verdict != V_DENIED;
}
SEC("cgroup/bind4") int bind4(struct bpf_sock_addr *at) {
    return on_bind(at, AF_INET);
}
SEC("cgroup/bind6") int bind6(struct bpf_sock_addr *at) {
    return on_bind(at, AF_INET6);
}
