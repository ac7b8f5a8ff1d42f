/* Data from outside: who received it, what it flowed through, where it becomes code.
 *
 * A process that receives from a peer outside is marked (F_NET), what it writes is marked, who reads that is marked
 * (F_READ), and exec clears the process's mark: only argv and descriptors carry over. In a pipeline the reader looks
 * before or after the writer does, on another CPU: so both sides leave their name and look for the other's, in this
 * order, and whoever comes second alerts. */
#pragma once
#include "interpreter.h"

static __always_inline bool fetcher_is_exempt(struct proc *p) {
    return p->flags & (F_HARNESS | F_TRUSTED);
}

/* Has it taken in anything from outside? Clean pipes that it read before their writer wrote are looked at again. */
static __always_inline bool fed(struct proc *p) {
    if (p->flags & (F_NET | F_READ))
        return true;
    for (int i = 0; i < 4; i++) {
        struct key key = p->seen[i];
        if (key.number && bpf_map_lookup_elem(&marks, &key)) {
            p->flags |= F_READ;
            return true;
        }
    }
    return false;
}

static __always_inline void describe_mark(struct flow_record *e, struct mark *m) {
    e->writer = 0;
    e->sample_length = 0;
    e->writer_comm[0] = 0;
    if (m) {
        e->writer = m->writer;
        e->sample_length = m->sample_length;
        __builtin_memcpy(e->writer_comm, m->comm, 16);
        __builtin_memcpy(e->sample, m->sample, 64);
    }
}

/* Said once per process and object. The value is whether the act is to be refused. */
static __always_inline u32 alert_code(struct proc *p, struct key *key, struct mark *m, struct file *f, u32 how,
                                      u32 through, struct reader *other) {
    struct config *c = config();
    u32 deny = c && !(p->flags & F_POWERLESS) ? c->deny_code : 0;
    if (same(&p->said, key))
        return deny;
    p->said = *key;
    struct flow_record *e = ALERT(K_CODE, struct flow_record);
    if (!e)
        return deny;
    fill(&e->h, K_CODE, p);
    e->h.verdict = deny ? V_DENIED : V_OBSERVED;
    e->through = through;
    e->how = how;
    e->program = other ? other->program : p->program;
    e->by = other ? other->by : p->by;
    e->descriptor = -1;
    e->pad = 0;
    describe_mark(e, m);
    e->name[0] = 0;
    if (f && through == T_FILE)
        name_of(f, e->name, sizeof e->name);
    if (other) { /* the writer came second: the reader is whom the finding is about */
        e->writer = e->h.pid;
        __builtin_memcpy(e->writer_comm, e->h.comm, 16);
        e->h.pid = other->pid;
        e->h.start = 0; /* not known here: the caller of the ring knows its trees */
    }
    bpf_ringbuf_submit(e, 0);
    return deny;
}

static __always_inline void receive(struct proc *p, u8 *peer, u32 port, void *buffer, u64 length) {
    if (p->flags & F_NET)
        return;
    p->flags |= F_NET;
    if (p->flags & F_MAPPED) {
        struct mark m = {};
        struct key key = p->mapped;
        m.writer = bpf_get_current_pid_tgid() >> 32;
        m.through = T_MAPPING;
        bpf_get_current_comm(m.comm, 16);
        bpf_map_update_elem(&marks, &key, &m, BPF_NOEXIST);
    }
    struct received_record *e = LIVE(K_RECEIVED, struct received_record);
    if (!e)
        return;
    fill(&e->h, K_RECEIVED, p);
    e->port = port;
    __builtin_memcpy(e->address, peer, 16);
    e->sample_length = 0;
    if (buffer && length) {
        u64 n = length > 64 ? 64 : length;
        if (n > 0 && n <= 64 && !bpf_probe_read_user(e->sample, n, buffer))
            e->sample_length = n;
    }
    bpf_ringbuf_submit(e, 0);
}

static __always_inline void tell_flow(struct proc *p, u32 kind, struct mark *m, struct file *f, u32 through, s32 fd) {
    struct flow_record *e;
    if (kind == K_TAINT_READ) /* with a text that evaluates it, it is a finding: not to be lost to a flood */
        e = ALERT(K_TAINT_READ, struct flow_record);
    else
        e = LIVE(kind, struct flow_record);
    if (!e)
        return;
    fill(&e->h, kind, p);
    e->through = through;
    e->how = HOW_NONE;
    e->program = p->program;
    e->by = p->by;
    e->descriptor = fd;
    e->pad = 0;
    describe_mark(e, m);
    e->name[0] = 0;
    if (f && through == T_FILE)
        name_of(f, e->name, sizeof e->name);
    bpf_ringbuf_submit(e, 0);
}

/* A process of a tree read (or is about to read) from `at`, a struct file. `fd` -1: not known. The value: refuse. */
__attribute__((noinline)) int do_read(struct proc *p, u64 at, s32 fd, u64 buffer, u64 length) {
    struct file *f = (struct file *)at;
    struct key key = {};
    u32 through = T_FILE;
    if (!p || !f || (p->flags & F_HARNESS))
        return 0;
    struct inode *inode = BPF_CORE_READ(f, f_inode);
    u32 type = BPF_CORE_READ(inode, i_mode) & S_IFMT;
    if (type == S_IFSOCK) {
        struct socket *s = BPF_CORE_READ(f, private_data);
        u8 peer[16] = {};
        u32 port = 0;
        bool outside;
        if (!socket_key(BPF_CORE_READ(s, sk), false, &key, &outside, peer, &port, p->program))
            return 0;
        if (outside) {
            if (!(p->flags & F_TRUSTED))
                receive(p, peer, port, (void *)buffer, length);
            if (p->by == BY_STDIN && fd == 0 && (p->program & P_CODE) && (p->flags & F_EXECED)) {
                key.number = (u64)s; /* a shell whose standard input is the connection itself */
                return alert_code(p, &key, 0, 0, HOW_STDIN, T_SOCKET, 0);
            }
            return 0;
        }
        through = T_SOCKET;
    } else if (type == S_IFREG || type == S_IFIFO) {
        key = inode_key(inode);
        through = type == S_IFIFO ? T_PIPE : T_FILE;
    } else if (type == S_IFCHR && terminal_key(f, false, &key)) {
        through = T_TERMINAL;
    } else {
        return 0;
    }
    struct mark *m = 0;
    u32 how = HOW_NONE;
    if (through == T_FILE) { /* most reads by far, and most files are clean: no more is asked of those */
        m = bpf_map_lookup_elem(&marks, &key);
        if (!m)
            return 0;
        how = sink(p, f, type, fd, &key);
    } else { /* the name is left first, then the mark looked for: the writer does it the other way round */
        if (through != T_TERMINAL) /* who holds one hands on what is said in it */
            how = sink(p, f, type, fd, &key);
        if (how != HOW_NONE) {
            struct reader r = {bpf_get_current_pid_tgid() >> 32, how, p->program, p->by};
            bpf_map_update_elem(&readers, &key, &r, BPF_ANY);
        }
        m = bpf_map_lookup_elem(&marks, &key);
        /* Terminals' addresses are used again: what was written before the reader lived went through another one. */
        if (m && through == T_TERMINAL && (s32)(m->age - (u32)(p->start >> 20)) < 0) {
            bpf_map_delete_elem(&marks, &key);
            m = 0;
        }
    }
    if (!m) {
        if (through != T_FILE && !(p->flags & F_READ)) {
            struct key *seen = p->seen;
            if (!same(&seen[0], &key) && !same(&seen[1], &key) && !same(&seen[2], &key) && !same(&seen[3], &key)) {
                u32 n = p->reads++ & 3;
                p->seen[n] = key;
            }
        }
        return 0;
    }
    if (how != HOW_NONE)
        return alert_code(p, &key, m, f, how, through, 0);
    if ((p->program & P_CODE) && !same(&p->said, &key) && !same(&p->noted, &key)) {
        p->noted = key;
        tell_flow(p, K_TAINT_READ, m, f, through, fd);
    }
    if (!(p->flags & F_TRUSTED))
        p->flags |= F_READ;
    return 0;
}

/* A process of a tree writes to `at`. `buffer` may be 0. The value: refuse. */
__attribute__((noinline)) int do_write(struct proc *p, u64 at, u64 buffer, u64 length) {
    struct file *f = (struct file *)at;
    struct key key = {};
    u32 through;
    if (!p || !f || fetcher_is_exempt(p) || !fed(p))
        return 0;
    struct inode *inode = BPF_CORE_READ(f, f_inode);
    u32 type = BPF_CORE_READ(inode, i_mode) & S_IFMT;
    if (type == S_IFSOCK) {
        struct socket *s = BPF_CORE_READ(f, private_data);
        u8 peer[16] = {};
        u32 port = 0;
        bool outside;
        if (!socket_key(BPF_CORE_READ(s, sk), true, &key, &outside, peer, &port, p->program) || outside)
            return 0;
        through = T_SOCKET;
    } else if (type == S_IFREG || type == S_IFIFO) {
        key = inode_key(inode);
        through = type == S_IFIFO ? T_PIPE : T_FILE;
    } else if (type == S_IFCHR && terminal_key(f, true, &key)) {
        through = T_TERMINAL;
    } else {
        return 0;
    }
    u32 refused = 0, now = bpf_ktime_get_boot_ns() >> 20;
    struct mark *old = bpf_map_lookup_elem(&marks, &key);
    if (old && through == T_TERMINAL)
        old->age = now;
    if (!old) {
        struct mark m = {};
        m.age = now;
        m.writer = bpf_get_current_pid_tgid() >> 32;
        m.through = through;
        bpf_get_current_comm(m.comm, sizeof m.comm);
        if (buffer && length) {
            u64 n = length > 64 ? 64 : length;
            if (n > 0 && n <= 64 && !bpf_probe_read_user(m.sample, n, (void *)buffer))
                m.sample_length = n;
        }
        bpf_map_update_elem(&marks, &key, &m, BPF_ANY);
        count(C_MARKS);
        tell_flow(p, K_TAINT, &m, f, through, -1);
    }
    if (through != T_FILE) {
        struct reader *r = bpf_map_lookup_elem(&readers, &key);
        if (r) {
            struct reader other = *r;
            refused = alert_code(p, &key, old, f, other.how, through, &other);
            if (!refused) /* else it sleeps on, and the writer may try again */
                bpf_map_delete_elem(&readers, &key);
        }
    }
    return refused;
}

/* A file is mapped. Writable and shared: whatever the process receives may stand in it. Executable: it is code. */
__attribute__((noinline)) int do_map(struct proc *p, u64 at, u64 protection, u64 flags) {
    struct file *f = (struct file *)at;
    if (!p || !f || (p->flags & F_HARNESS))
        return 0;
    struct inode *inode = BPF_CORE_READ(f, f_inode);
    if ((BPF_CORE_READ(inode, i_mode) & S_IFMT) != S_IFREG)
        return 0;
    struct key key = inode_key(inode);
    if (!(p->flags & F_TRUSTED) && (protection & PROT_WRITE) && (flags & MAP_TYPE) == MAP_SHARED) {
        p->mapped = key;
        p->flags |= F_MAPPED;
        if (fed(p)) {
            struct mark m = {};
            m.writer = bpf_get_current_pid_tgid() >> 32;
            m.through = T_MAPPING;
            bpf_get_current_comm(m.comm, sizeof m.comm);
            if (!bpf_map_update_elem(&marks, &key, &m, BPF_NOEXIST)) {
                count(C_MARKS);
                tell_flow(p, K_TAINT, &m, f, T_MAPPING, -1);
            }
        }
        return 0;
    }
    struct mark *m = bpf_map_lookup_elem(&marks, &key);
    if (!m)
        return 0;
    if (protection & PROT_EXEC)
        return alert_code(p, &key, m, f, HOW_MAPPED, T_FILE, 0);
    if (!(p->flags & F_TRUSTED))
        p->flags |= F_READ;
    return 0;
}

/* A file that a tree opened for writing is its own: what it executes of that is said. A trusted fetcher's is not: it
 * brings programs. */
static __always_inline void authored(struct proc *p, struct file *f) {
    struct inode *inode = BPF_CORE_READ(f, f_inode);
    if ((BPF_CORE_READ(inode, i_mode) & S_IFMT) != S_IFREG || fetcher_is_exempt(p))
        return;
    struct key key = inode_key(inode);
    key.generation = 0; /* user space asks here, too, and cannot tell it */
    struct author a = {bpf_get_current_pid_tgid() >> 32, p->root, {}};
    bpf_get_current_comm(a.comm, sizeof a.comm);
    bpf_map_update_elem(&authors, &key, &a, BPF_ANY);
}
