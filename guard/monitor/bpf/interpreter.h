/* What an interpreter's arguments say of where its code comes from, and which of the files that it reads is that. */
#pragma once
#include "channel.h"

static __always_inline u32 program_named(const char *at) {
    char name[32] = {};
    bpf_probe_read_kernel_str(name, sizeof name, at);
    u32 *value = name[0] ? bpf_map_lookup_elem(&names, name) : 0;
    return value ? *value : 0;
}

/* Where the last component of `text` begins. `last` lives in map memory: a loop-carried register would make the
 * verifier walk one path per value. Global, so that it is verified once and not at every call. */
__attribute__((noinline)) int last_component(struct scratch *s, int of_word) {
    if (!s)
        return 0;
    s->last = 0;
    for (int i = 0; i < WORDS - 1; i++) {
        char c = of_word ? s->word[i] : s->path[i];
        if (!c)
            break;
        if (c == '/')
            s->last = i + 1;
    }
    return s->last & (WORDS - 1);
}
/* One word of an interpreter's argv: how it gets its code. `done` ends the search. */
__attribute__((noinline)) int judge_word(struct scratch *s, u32 program) {
    if (!s)
        return 0;
    char *w = s->word;
    if (w[0] != '-' && w[0] != '+') {
        s->done = 1;
        s->by = BY_FILE;
        if (w[0] == '/' && w[1] == 'd' && w[2] == 'e' && w[3] == 'v' && w[4] == '/' &&
            ((w[5] == 'f' && w[6] == 'd') || (w[5] == 's' && w[6] == 't' && w[7] == 'd')))
            s->by = BY_DESCRIPTOR;
        if (w[0] == '/' && w[1] == 'p' && w[2] == 'r' && w[3] == 'o' && w[4] == 'c' && w[5] == '/')
            s->by = BY_DESCRIPTOR;
        return 0;
    }
    if (!w[1]) { /* `-`: standard input */
        s->done = 1;
        return 0;
    }
    if (w[1] == '-') {
        if ((program & P_INTERPRETER) && w[2] == 'e' && w[3] == 'v' && w[4] == 'a' && w[5] == 'l') {
            s->by = BY_ARGUMENT;
            s->done = 1;
        }
        return 0;
    }
    for (int i = 1; i < 8; i++) {
        char c = w[i];
        if (!c)
            break;
        if ((program & P_SHELL) && c == 'c') {
            s->by = BY_ARGUMENT;
            s->done = 1;
        }
        if ((program & P_SHELL) && c == 's')
            s->done = 1;
        if ((program & P_SHELL) && (c == 'o' || c == 'O') && !w[i + 1]) /* takes the next word */
            s->done = 2;
        if ((program & P_PYTHON) && (c == 'c' || c == 'm')) {
            s->by = BY_ARGUMENT;
            s->done = c == 'm' ? 3 : 1; /* -m: the module's name is the next word */
        }
        if ((program & P_PYTHON) && (c == 'W' || c == 'X')) {
            s->done = w[i + 1] ? 0 : 2;
            break;
        }
        if ((program & P_INTERPRETER) && (c == 'e' || c == 'E' || c == 'n' || c == 'p')) {
            s->by = BY_ARGUMENT;
            s->done = 1;
        }
        if ((program & P_INTERPRETER) && (c == 'I' || c == 'M' || c == 'r')) {
            s->done = w[i + 1] || c == 'M' ? 0 : 2;
            if (c == 'r' && !w[i + 1]) /* php: code; node: a module before the script */
                s->by = BY_ARGUMENT;
            break;
        }
    }
    return 0;
}

/* `python -m a.b`: the file that is the script, b.py, to `path`. */
__attribute__((noinline)) int module_file(struct scratch *s) {
    if (!s)
        return 0;
    s->last = 0;
    for (int i = 0; i < 64; i++) {
        char c = s->word[i];
        if (!c)
            break;
        u32 at = s->last & 31;
        s->path[at] = c;
        s->last = c == '.' ? 0 : at < 27 ? at + 1 : at;
    }
    u32 end = s->last & 31;
    s->path[end] = '.';
    s->path[end + 1] = 'p';
    s->path[end + 2] = 'y';
    s->path[end + 3] = 0;
    return 0;
}

/* An interpreter opens its script by the name that argv has, which may be a link: the file behind it is the script. */
static __always_inline void script_opened(struct proc *p, struct file *f, u64 path) {
    char name[32] = {};
    u32 zero = 0;
    if (p->by != BY_FILE || (p->program & P_SHELL) || !(p->program & P_CODE) || p->opened.number || !p->script[0] || !path)
        return;
    struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
    if (!s || s->busy)
        return;
    s->busy = 1;
    s->path[0] = 0;
    bpf_probe_read_user_str(s->path, WORDS, (void *)path);
    u32 at = last_component(s, 0) & (WORDS - 1);
    bpf_probe_read_kernel_str(name, sizeof name, s->path + at);
    s->busy = 0;
    u64 *a = (u64 *)name, *b = (u64 *)p->script;
    if (a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3])
        p->opened = inode_key(BPF_CORE_READ(f, f_inode));
}
/* How what is read from `fd` would be code for this process; HOW_NONE: it is data. */
static __always_inline u32 sink(struct proc *p, struct file *f, u32 type, s32 fd, struct key *key) {
    u32 reopened = BPF_CORE_READ(f, f_flags) & O_LARGEFILE_X; /* open(2) sets it, pipe(2) does not */
    bool own = p->flags & F_EXECED;
    if (!(p->program & P_CODE))
        return HOW_NONE;
    if (type == S_IFSOCK)
        reopened = 0;
    /* csh and tcsh move their standard input out of the way first (FSHIN of their sh.h). */
    if (p->by == BY_STDIN && own && (fd == 0 || (fd > 2 && (p->program & P_SHELL) && f == file_of(CSH_INPUT))))
        return HOW_STDIN;
    if (p->by == BY_DESCRIPTOR && own && (reopened || type == S_IFSOCK))
        return HOW_DESCRIPTOR;
    if (own && (p->by == BY_FILE || p->script[0])) {
        if (p->opened.number && same(&p->opened, key))
            return HOW_SCRIPT;
        char name[32] = {};
        name_of(f, name, sizeof name);
        u64 *a = (u64 *)name, *b = (u64 *)p->script;
        if (name[0] && a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3])
            return HOW_SCRIPT;
        const char package[32] = "__main__.py"; /* of a directory or a package that is run */
        b = (u64 *)package;
        if ((p->program & P_PYTHON) && a[0] == b[0] && a[1] == b[1] && a[2] == b[2])
            return HOW_SCRIPT;
        u32 pid = bpf_get_current_pid_tgid() >> 32;
        struct alias *other = bpf_map_lookup_elem(&aliases, &pid);
        if (other && other->start == p->start) {
            b = (u64 *)other->name;
            if (name[0] && a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3])
                return HOW_SCRIPT;
        }
    }
    /* `source` and `.` open the file beside the shell's own code; `read <file` and `while … done <file` stand at 0. */
    if ((p->program & P_SHELL) && fd > 2 && reopened && (own || type == S_IFIFO))
        return HOW_SOURCED;
    return HOW_NONE;
}
