# guard: takes a secret out of a line before tcsh stores it; the command itself runs unchanged (docs/shells.md).
# Written by `guard history install`; tcsh 6.20 and later.
#
# tcsh writes its history when it ends or is hung up on, the running line with it, and nothing can come in between. So
# it does not write any more: each line is appended here before it runs, without its secrets, where `savehist` asks for
# a file. `postcmd` does it before a command; `precmd` reads this file for what ran nothing, and for what a loop read.
#
# `postcmd` must not read a file: tcsh calls it for every line of that file, then calls it faulty and takes it away.
# Hence one line, with `&&` for `if`; while `precmd` reads, `postcmd` is put aside. And tcsh redirects behind an `if` of
# one line even when that is false, and reads the variables of such a line: hence the blocks.
if (! $?prompt) exit
if (! $?_guard_history_file) then
    if (! @WANTED@) exit
    set _guard_history_file = /dev/null
    set _guard_history_ran = 1
    set _guard_history_loop = 0
    set _guard_history_theirs = "`alias precmd`"
    if ("$_guard_history_theirs" == '') set _guard_history_theirs = ':'
    alias precmd "unalias postcmd; "'if (! $_guard_history_ran || $_guard_history_loop || $?savehist) source @HOOK@ prompt; set _guard_history_ran = 0'"; $_guard_history_theirs:q; alias postcmd _guard_history_before"
    set _guard_history_theirs = "`alias postcmd`"
    if ("$_guard_history_theirs" == '') set _guard_history_theirs = ':'
    # Only `&&` and `||`: behind a `;` everything would run. A line that begins a loop ends in `set _guard_history_loop`.
    alias _guard_history_hit 'set _guard_history_new = `mktemp /tmp/guard-history.XXXXXXXX` && history -hT | sh @HOOK@.look before 0 "$_guard_history_file" >! $_guard_history_new && history -c && history -L $_guard_history_new && \rm -f $_guard_history_new || set _guard_history_loop = 1'
    alias _guard_history_before "set _guard_history_ran = 1; history -h 1 | grep -Eqivz -f @HOOK@.rx && history -hT 1 >>! "\"'$_guard_history_file'\"" || _guard_history_hit; $_guard_history_theirs:q"
    alias postcmd _guard_history_before
    unset _guard_history_theirs
else if ($#argv) then
    if ($?savehist) then
        set _guard_history_file = ~/.history
        if ($?histfile) then
            set _guard_history_file = "$histfile"
        endif
        sh @HOOK@.file "$_guard_history_file" $savehist
        unset savehist
    endif
    if (! $_guard_history_ran || $_guard_history_loop) then
        if ($_guard_history_loop) \rm -f $_guard_history_new
        set _guard_history_new = `mktemp /tmp/guard-history.XXXXXXXX`
        history -hT | sh @HOOK@.look prompt $_guard_history_loop "$_guard_history_file" >! $_guard_history_new
        set _guard_history_loop = 0
        history -c
        history -L $_guard_history_new
        \rm -f $_guard_history_new
    endif
endif
