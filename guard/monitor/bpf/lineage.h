/* Who belongs to an agent: fork, exec, exit. Always attached; they cost nothing between these events. */
#pragma once
#include "flow.h"

static __always_inline void exec_record(struct exec_record *e, struct proc *p, struct task_struct *t, u64 begin,
                                        u64 total, u64 room, u32 program, u32 by, u32 was_fed, u32 author,
                                        struct file *file, const char *path) {
    fill_of(&e->h, K_EXEC, p, t);
    u64 take = total < room ? total : room;
    e->program = program;
    e->by = by;
    e->fed = was_fed;
    e->written_by = author;
    e->pad = 0;
    e->sid = BPF_CORE_READ(t, signal, pids[3], numbers[0].nr);
    struct tty_struct *tty = BPF_CORE_READ(t, signal, tty);
    e->tty = 0;
    if (tty) {
        u32 major = BPF_CORE_READ(tty, driver, major);
        u32 minor = BPF_CORE_READ(tty, driver, minor_start) + BPF_CORE_READ(tty, index);
        e->tty = major << 20 | minor;
    }
    name_of(file, e->name, sizeof e->name);
    e->path[0] = 0;
    bpf_probe_read_kernel_str(e->path, WORDS, path);
    asm volatile("" : "+r"(take)); /* keep the bound next to the use, or the verifier loses it */
    if (take > room)
        take = room;
    e->argv_length = take;
    e->unseen = total - take;
    if (take && bpf_probe_read_user(e->argv, take, (void *)begin)) {
        count(C_LOST_ARGV);
        e->argv_length = 0;
        e->unseen = total;
    }
    bpf_ringbuf_submit(e, 0);
}
#define EXEC_RECORD(ROOM)                                                                                              \
    {                                                                                                                  \
        struct exec_record *e = RESERVE(telemetry, C_LOST_TELEMETRY, K_EXEC, sizeof(struct exec_record) + (ROOM), 0);  \
        if (e)                                                                                                         \
            exec_record(e, p, t, begin, total, ROOM, program, by, was_fed, author, file, path);                       \
    }

static __always_inline void on_exec(struct task_struct *t, struct linux_binprm *bprm, struct scratch *s) {
    u32 pid = BPF_CORE_READ(t, tgid);
    struct proc *p = bpf_map_lookup_elem(&procs, &pid);
    struct file *file = BPF_CORE_READ(bprm, file);
    struct inode *inode = BPF_CORE_READ(file, f_inode);
    const char *path = BPF_CORE_READ(bprm, filename);
    struct key key = inode_key(inode);
    u64 begin = BPF_CORE_READ(t, mm, arg_start), end = BPF_CORE_READ(t, mm, arg_end);
    u64 total = end > begin ? end - begin : 0;

    /* The name of the file that runs, links resolved (of a script: its interpreter), then that it was called by. */
    u32 program = program_named((const char *)BPF_CORE_READ(file, f_path.dentry, d_name.name));
    bool of_script = path != BPF_CORE_READ(bprm, interp);
    struct key bare = key; /* user space cannot tell a generation */
    bare.generation = 0;
    u32 *known = bpf_map_lookup_elem(&inodes, &bare);
    u32 by_file = known ? *known : 0;
    bpf_probe_read_kernel_str(s->path, WORDS, path);
    u32 at = last_component(s, 0) & (WORDS - 1);
    u32 called = program_named(s->path + at);
    if (of_script) /* a script called `python3` is no python: what runs it is */
        called &= ~(P_CODE | P_LAUNCHER);
    else /* a link to curl called `git` is no git */
        called &= ~P_TRUSTED;
    if (p && !of_script && !BPF_CORE_READ(inode, i_uid.val)) /* nor is one to a system's program a harness */
        called &= ~P_HARNESS;
    program |= by_file | called;
    if (p && !(program & P_CODE)) {
        u64 size = BPF_CORE_READ(inode, i_size);
        known = bpf_map_lookup_elem(&sizes, &size);
        if (known)
            program |= *known | P_COPIED;
    }
    u32 by = BY_NONE;
    char script[32] = {};
    if (program & (P_CODE | P_LAUNCHER | P_HINT)) {
        u64 next = begin;
        s->by = BY_STDIN;
        s->done = 0;
        u32 launcher = (program & P_LAUNCHER) && !(program & P_CODE), first = 1;
        for (int i = 0; i < 10; i++) {
            if (next >= end)
                break;
            long n = bpf_probe_read_user_str(s->word, WORDS, (void *)next);
            if (n <= 0)
                break;
            next += n;
            if (first) { /* argv[0]; of busybox it may be the applet */
                first = 0;
                if (launcher) {
                    at = last_component(s, 1) & (WORDS - 1);
                    program |= program_named(s->word + at) & P_CODE;
                    launcher = !(program & P_CODE);
                }
                continue;
            }
            if (n == 1 || s->done == 1)
                continue;
            if (s->done == 2) { /* belongs to the option before */
                s->done = 0;
                continue;
            }
            at = last_component(s, 1) & (WORDS - 1);
            u32 word = program_named(s->word + at);
            program |= word & P_HINT;
            if (launcher) {
                if (s->word[0] != '-') {
                    program |= word & ~P_LAUNCHER;
                    launcher = 0;
                }
                continue;
            }
            if (s->done == 3) { /* `-m aider`, `-m pip` */
                program |= word & (P_HARNESS | P_TRUSTED);
                s->done = 1;
                module_file(s);
                bpf_probe_read_kernel_str(script, sizeof script, s->path);
                continue;
            }
            judge_word(s, program);
            if (s->done == 1 && s->by == BY_FILE) {
                program |= word & (P_HARNESS | P_TRUSTED | P_HINT);
                bpf_probe_read_kernel_str(script, sizeof script, s->word + at);
            }
        }
        if (program & P_CODE)
            by = s->by;
    }

    struct author *wrote = bpf_map_lookup_elem(&authors, &bare);
    u32 author = wrote && p ? wrote->pid : 0;
    if (p && !author && !BPF_CORE_READ(inode, i_nlink))
        author = pid; /* of no name, a memfd: nobody's but its own tree's */
    if (author && !of_script)
        program &= ~P_TRUSTED;
    u32 harness = program & P_HARNESS;
    /* A copy of a shell is no harness for being called one: nothing that a tree wrote or renamed is exempt in it. */
    if (p && harness && (author || (by_file & P_CODE) || (program & P_COPIED)))
        harness = 0;
    if (!p) {
        if (!harness)
            count(C_EXECS);
        if (program & P_SCHEDULER)
            count(C_SCHEDULER);
        if (!harness && !(program & P_HINT))
            return;
        if (harness) {
            struct proc fresh = {};
            fresh.root = pid;
            fresh.root_start = fresh.start = BPF_CORE_READ(t, group_leader, start_boottime);
            fresh.flags = F_HARNESS | F_EXECED;
            if (bpf_map_update_elem(&procs, &pid, &fresh, BPF_ANY))
                count(C_LOST_TREES);
            else
                count(C_LABELLED);
            p = bpf_map_lookup_elem(&procs, &pid);
        }
    }
    u32 was_fed = 0;
    if (p) {
        was_fed = !(p->flags & F_HARNESS) && fed(p);
        u32 flags = p->flags & (F_RAW | F_RING);
        flags |= F_EXECED;
        if (harness)
            flags |= F_HARNESS;
        if (program & P_TRUSTED)
            flags |= F_TRUSTED;
        p->flags = flags; /* a fresh image: only argv and descriptors carry data over */
        p->program = program;
        p->by = by;
        p->calls = 0;
        __builtin_memset(p->seen, 0, sizeof p->seen);
        __builtin_memset(&p->said, 0, sizeof p->said);
        __builtin_memset(&p->noted, 0, sizeof p->noted);
        __builtin_memset(&p->mapped, 0, sizeof p->mapped);
        __builtin_memset(&p->opened, 0, sizeof p->opened);
        __builtin_memcpy(p->script, script, sizeof script);
    }
    if (total <= 512)
        EXEC_RECORD(512)
    else if (total <= 4096)
        EXEC_RECORD(4096)
    else
        EXEC_RECORD(16384)
    if (!p)
        return;
#ifdef BY_CALLS /* the hooks ask before the exec */
    struct mark *m = bpf_map_lookup_elem(&marks, &key);
    if (m && !(p->flags & F_HARNESS))
        alert_code(p, &key, m, file, HOW_EXECUTED, T_FILE, 0);
#endif
    if (author) {
        struct flow_record *e;
        if (program & P_COPIED) /* a disguise: not to be lost to a flood */
            e = ALERT(K_WROTE_RAN, struct flow_record);
        else
            e = TELL(K_WROTE_RAN, struct flow_record);
        if (!e)
            return;
        fill(&e->h, K_WROTE_RAN, p);
        e->through = T_FILE;
        e->how = HOW_EXECUTED;
        e->program = program & P_COPIED ? program : 0;
        e->by = by;
        e->descriptor = -1;
        e->pad = 0;
        describe_mark(e, 0);
        e->writer = author;
        struct author *again = bpf_map_lookup_elem(&authors, &bare);
        if (again)
            __builtin_memcpy(e->writer_comm, again->comm, 16);
        name_of(file, e->name, sizeof e->name);
        bpf_ringbuf_submit(e, 0);
    }
}

SEC("tp_btf/sched_process_fork") int BPF_PROG(process_fork, struct task_struct *parent, struct task_struct *child) {
    u32 from = parent->tgid, to = child->tgid;
    if (from == to)
        return 0; /* a thread */
    struct proc *p = bpf_map_lookup_elem(&procs, &from);
    if (!p)
        return 0;
    struct proc fresh = *p;
    fresh.start = child->start_boottime;
    fresh.flags &= ~(F_EXECED | F_RAW | F_RING);
    fresh.calls = 0;
    if (p->flags & F_HARNESS) { /* the child of a harness is an ordinary process with clean hands */
        fresh.flags &= ~(F_HARNESS | F_NET | F_READ | F_TRUSTED | F_MAPPED);
        __builtin_memset(fresh.seen, 0, sizeof fresh.seen);
    }
    if (bpf_map_update_elem(&procs, &to, &fresh, BPF_ANY)) {
        count(C_LOST_TREES);
        return 0;
    }
    count(C_LABELLED);
    struct fork_record *e = LIVE(K_FORK, struct fork_record);
    if (e) {
        fill_of(&e->h, K_FORK, p, parent);
        e->child = to;
        e->pad = 0;
        e->child_start = fresh.start;
        bpf_ringbuf_submit(e, 0);
    }
    return 0;
}
SEC("tp_btf/sched_process_exec")
int BPF_PROG(process_exec, struct task_struct *t, int old, struct linux_binprm *bprm) {
    u32 zero = 0;
    struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
    if (!s)
        return 0;
    if (s->busy) { /* preempted another exec on this CPU: its words must not be mixed with ours */
        count(C_LOST_SCRATCH);
        return 0;
    }
    s->busy = 1;
    on_exec(t, bprm, s);
    s->busy = 0;
    return 0;
}
SEC("tp_btf/sched_process_exit") int BPF_PROG(process_exit, struct task_struct *t) {
    u32 pid = t->tgid;
    struct proc *p = bpf_map_lookup_elem(&procs, &pid);
    if (!p || BPF_CORE_READ(t, signal, live.counter))
        return 0; /* other threads live on: the leader's end is not the process's */
    struct exit_record *e = LIVE(K_EXIT, struct exit_record);
    if (e) {
        fill_of(&e->h, K_EXIT, p, t);
        e->status = t->exit_code;
        e->pad = 0;
        bpf_ringbuf_submit(e, 0);
    }
    bpf_map_delete_elem(&procs, &pid);
    count_down(C_LABELLED);
    return 0;
}

/* Every process with its exact start: what runs already is labelled from this, not from /proc's ticks of 10 ms. */
SEC("iter/task") int list_tasks(struct bpf_iter__task *at) {
    struct task_struct *t = at->task;
    if (!t || t->pid != t->tgid)
        return 0;
    struct {
        u64 start;
        u32 pid, ppid;
    } row = {t->start_boottime, t->tgid, BPF_CORE_READ(t, real_parent, tgid)};
    bpf_seq_write(at->meta->seq, &row, sizeof row);
    return 0;
}
