/* What the programs remember: labels, marks, settings, counters. */
#pragma once
#include "kernel.h"
#include "wire.h"

#define F_HARNESS  1  /* exempt: it talks to its model all day */
#define F_NET      2  /* received data from outside */
#define F_READ     4  /* read something that is marked */
#define F_TRUSTED  8  /* a fetcher that the policy trusts */
#define F_EXECED  16  /* the image is its own: no exec since the fork means a shell's subshell */
#define F_RAW     32  /* said already */
#define F_RING    64
#define F_POWERLESS 256 /* for now: what is asked cannot be refused where it is seen */
#define F_MAPPED 128  /* has a shared writable mapping: see `mapped` */

struct key { /* an inode, by device, number and generation: numbers are used again */
    u64 number;
    u32 device, generation;
};
struct proc {
    u64 start, root_start;
    u32 root, flags, program, by;
    u32 calls, reads;
    struct key seen[4]; /* clean pipes and sockets read last: looked at again before it writes or execs */
    struct key mapped;
    struct key said; /* the object of its last alert: said once */
    struct key noted; /* the same of what it read as data: that says nothing of what it does with it later */
    struct key opened; /* the file that its script's name led to, where that was a link */
    u64 connected;
    u64 held;          /* the process outside that it took hold of last: said once */
    char script[32];
};
struct mark {
    u32 writer, through, sample_length, age; /* age: of a terminal's, when it was written, in units of 2^20 ns */
    char comm[16];
    u8 sample[64];
};
struct reader {
    u32 pid, how, program, by;
};
struct author {
    u32 pid, root;
    char comm[16];
};
struct alias { /* what a script's link leads to: user space looks it up */
    u64 start;
    char name[32];
};
struct share { /* of a ring that fills up: what a tree has told in this second */
    u64 second, bytes;
};
struct config {
    u64 net_cookie;
    u32 net_inum, loaded;
    u32 deny_mode, deny_listen, deny_code, bind; /* bind: V_DENIED, V_REWRITTEN */
};
struct scratch {
    u32 busy, last, by, done;
    char path[WORDS];
    char word[WORDS];
};
struct address4 {
    u32 bits;
    u32 address;
};
struct address6 {
    u32 bits;
    u32 address[4];
};

#define MAP(NAME, TYPE, ENTRIES, KEY, VALUE, FLAGS)                                                                    \
    struct {                                                                                                           \
        __uint(type, TYPE);                                                                                            \
        __uint(max_entries, ENTRIES);                                                                                  \
        __type(key, KEY);                                                                                              \
        __type(value, VALUE);                                                                                          \
        __uint(map_flags, FLAGS);                                                                                      \
    } NAME SEC(".maps")

MAP(settings, BPF_MAP_TYPE_ARRAY, 1, u32, struct config, 0);
MAP(procs, BPF_MAP_TYPE_HASH, 131072, u32, struct proc, BPF_F_NO_PREALLOC);
MAP(marks, BPF_MAP_TYPE_LRU_HASH, 32768, struct key, struct mark, 0);
MAP(readers, BPF_MAP_TYPE_LRU_HASH, 8192, struct key, struct reader, 0);
MAP(authors, BPF_MAP_TYPE_LRU_HASH, 32768, struct key, struct author, 0);
MAP(aliases, BPF_MAP_TYPE_LRU_HASH, 4096, u32, struct alias, 0);
MAP(names, BPF_MAP_TYPE_HASH, 2048, char[32], u32, BPF_F_NO_PREALLOC);
MAP(inodes, BPF_MAP_TYPE_HASH, 1024, struct key, u32, BPF_F_NO_PREALLOC);
MAP(sizes, BPF_MAP_TYPE_HASH, 1024, u64, u32, BPF_F_NO_PREALLOC);
MAP(outside4, BPF_MAP_TYPE_LPM_TRIE, 256, struct address4, u32, BPF_F_NO_PREALLOC);
MAP(outside6, BPF_MAP_TYPE_LPM_TRIE, 256, struct address6, u32, BPF_F_NO_PREALLOC);
MAP(proxies, BPF_MAP_TYPE_HASH, 64, u32, u32, BPF_F_NO_PREALLOC);
MAP(counters, BPF_MAP_TYPE_PERCPU_ARRAY, C_LAST, u32, u64, 0);
MAP(scratches, BPF_MAP_TYPE_PERCPU_ARRAY, 1, u32, struct scratch, 0);
MAP(shares, BPF_MAP_TYPE_LRU_HASH, 4096, u64, struct share, 0);
#define alerts_BYTES    (1 << 20)
#define telemetry_BYTES (1 << 21)
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, alerts_BYTES);
} alerts SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, telemetry_BYTES);
} telemetry SEC(".maps");

char LICENSE[] SEC("license") = "GPL"; /* the helpers that read kernel memory ask for it */

static __always_inline void count(u32 which) {
    u64 *value = bpf_map_lookup_elem(&counters, &which);
    if (value)
        (*value)++;
}
static __always_inline void count_down(u32 which) {
    u64 *value = bpf_map_lookup_elem(&counters, &which);
    if (value)
        (*value)--;
}
static __always_inline struct config *config(void) {
    u32 zero = 0;
    return bpf_map_lookup_elem(&settings, &zero);
}
static __always_inline struct task_struct *me(void) {
    return (struct task_struct *)bpf_get_current_task();
}
static __always_inline struct proc *current_proc(void) {
    u32 pid = bpf_get_current_pid_tgid() >> 32;
    return bpf_map_lookup_elem(&procs, &pid);
}
static __always_inline struct key inode_key(struct inode *inode) {
    struct key key = {};
    key.number = BPF_CORE_READ(inode, i_ino);
    key.device = BPF_CORE_READ(inode, i_sb, s_dev);
    key.generation = BPF_CORE_READ(inode, i_generation);
    return key;
}
static __always_inline bool same(struct key *a, struct key *b) {
    return a->number == b->number && a->device == b->device && a->generation == b->generation;
}
static __always_inline void fill_of(struct head *h, u32 kind, struct proc *p, struct task_struct *task) {
    struct task_struct *leader = BPF_CORE_READ(task, group_leader);
    h->time = bpf_ktime_get_boot_ns();
    h->start = BPF_CORE_READ(leader, start_boottime);
    h->kind = kind;
    h->pid = BPF_CORE_READ(task, tgid);
    h->ppid = BPF_CORE_READ(task, real_parent, tgid);
    h->uid = BPF_CORE_READ(task, real_cred, uid.val);
    h->root = p ? p->root : 0;
    h->root_start = p ? p->root_start : 0;
    h->harness = p ? p->flags & F_HARNESS : 0;
    h->verdict = V_OBSERVED;
    h->pad = 0;
    bpf_get_current_comm(h->comm, sizeof h->comm);
}
static __always_inline void fill(struct head *h, u32 kind, struct proc *p) {
    fill_of(h, kind, p, me());
}
/* One tree's flood must not hide another's deeds: the second half of a ring is for trees that have told little in this
 * second, and there for what finds others (births, deaths, what flowed) and alerts alone. A tree has a sixteenth of
 * each ring a second there, in bytes: neither its commands nor one long argv take the place of its alerts. The value:
 * there is no room for this one. */
static __always_inline int crowded(u32 root, u32 stage, u64 bytes, u64 fair, u32 minor) {
    u64 second = bpf_ktime_get_boot_ns() >> 30, of = (u64)root << 32 | stage;
    if (minor)
        return 1;
    struct share *share = bpf_map_lookup_elem(&shares, &of);
    if (!share || share->second != second) {
        struct share fresh = {second, bytes};
        bpf_map_update_elem(&shares, &of, &fresh, BPF_ANY);
        return 0;
    }
    if (share->bytes + bytes > fair)
        return 1;
    __sync_fetch_and_add(&share->bytes, bytes);
    return 0;
}
/* A reservation that fails is counted at its stage: emitted = consumed + lost, exactly. `p` is whose tree it is. */
#define RESERVE(RING, STAGE, KIND, BYTES, MINOR)                                                                       \
    ({                                                                                                                 \
        void *room_ = 0;                                                                                               \
        if (bpf_ringbuf_query(&RING, BPF_RB_AVAIL_DATA) < RING##_BYTES / 2 ||                                          \
            !crowded(p ? p->root : 0, STAGE, BYTES, RING##_BYTES / 16, MINOR))                                         \
            room_ = bpf_ringbuf_reserve(&RING, BYTES, 0);                                                              \
        count(KIND);                                                                                                   \
        if (!room_)                                                                                                    \
            count(STAGE);                                                                                              \
        room_;                                                                                                         \
    })
#define ALERT(KIND, TYPE)     ((TYPE *)RESERVE(alerts, C_LOST_ALERTS, KIND, sizeof(TYPE), 0))
#define TELL(KIND, TYPE)      ((TYPE *)RESERVE(telemetry, C_LOST_TELEMETRY, KIND, sizeof(TYPE), 1))
#define LIVE(KIND, TYPE)      ((TYPE *)RESERVE(telemetry, C_LOST_TELEMETRY, KIND, sizeof(TYPE), 0)) /* what finds others */

/* The 6.12 verifier wants an LSM program's value in [-4095, 0]; clang would fold `d ? -EPERM : 0` into a negation of
 * an unknown scalar, which it refuses. The empty asm keeps the branch. */
static __always_inline int refusal(u32 denied) {
    if (denied) {
        asm volatile("" ::: "memory");
        return -EPERM;
    }
    return 0;
}
