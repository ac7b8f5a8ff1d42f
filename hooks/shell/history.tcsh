# guard: takes a secret out of a line before tcsh stores it; the command itself runs unchanged (docs/shells.md).
# Written by `guard history install`; tcsh 6.20 and later.
#
# tcsh writes its history when it ends or is hung up on, the running line with it, and nothing can come in between. So
# it does not write any more: each line is appended here before it runs, without its secrets, where `savehist` asks for
# a file. `postcmd` does it before a command; `precmd` reads this file for what ran nothing, and for what a loop read.
#
# `postcmd` must not read a file: tcsh calls it for every line of that file, then calls it faulty and takes it away.
# Hence one line, with `&&` for `if`; while `precmd` reads, `postcmd` is put aside. And tcsh redirects behind an `if` of
# one line even when that is false, and reads the variables of such a line: hence the blocks, and /dev/null.
if (! $?prompt) exit
if (! $?_guard_history_file) then
    if (! @WANTED@) exit
    set _guard_history_file = /dev/null
    set _guard_history_ran = 1
    set _guard_history_loop = 0
    set _guard_history_rx = '@PATTERN@'
    set _guard_history_loops = '@LOOP@'
    set _guard_history_theirs = "`alias precmd`"
    if ("$_guard_history_theirs" == '') set _guard_history_theirs = ':'
    alias precmd "unalias postcmd; "'if (! $_guard_history_ran || $_guard_history_loop || $?savehist) source @HOOK@ prompt; set _guard_history_ran = 0'"; $_guard_history_theirs:q; alias postcmd _guard_history_before"
    set _guard_history_theirs = "`alias postcmd`"
    if ("$_guard_history_theirs" == '') set _guard_history_theirs = ':'
    # The line as it was typed costs a fork (`!-0` names it, too, but puts `history N` out by one). What is asked for is
    # answered with `0 FILE`, or with `1` where there is nothing to be read in. A status that only decides is hidden from
    # `printexitvalue`.
    alias _guard_history_blind 'set _guard_history_new = `history -hT | sh @HOOK@.look "$_guard_history_file"`'
    alias _guard_history_hit 'set _guard_history_new = `history -hT | @GUARD@ history tcsh before 0 "$_guard_history_file"` || _guard_history_blind'
    alias _guard_history_before 'if ($?printexitvalue) set _guard_history_loud; unset printexitvalue; set _guard_history_ran = 1; set _guard_history_new = (1); set _guard_history_hit = 0; set _guard_history_to = "$_guard_history_file"; set _guard_history_line = ("`history -h 1`"); if ("x$_guard_history_line:gal:q" == x) set _guard_history_hit = 1; if ("x $_guard_history_line:gal:q" =~ $_guard_history_rx) set _guard_history_hit = 1; if ("$_guard_history_line:gal:q" =~ $_guard_history_loops) set _guard_history_loop = 1; set _guard_history_line = (); if ($_guard_history_loop || \! -w "$_guard_history_file") set _guard_history_to = /dev/null; if ($_guard_history_loop) set _guard_history_hit = 0; set status = $_guard_history_hit && history -hT 1 >>! "$_guard_history_to" || _guard_history_hit; set status = $_guard_history_new[1] && history -c && history -L $_guard_history_new[2] && \rm -f $_guard_history_new[2] || set status = 0; if ($?_guard_history_loud) set printexitvalue; unset _guard_history_loud; '"$_guard_history_theirs:q"
    alias postcmd _guard_history_before
    unset _guard_history_theirs
else if ($#argv) then
    if ($?savehist) then
        set _guard_history_file = "$home/.history"
        if ($?histfile) then
            set _guard_history_file = "$histfile"
        endif
        sh @HOOK@.file "$_guard_history_file" $savehist
        unset savehist
    endif
    if (! $_guard_history_ran || $_guard_history_loop) then
        set _guard_history_new = `history -hT | @GUARD@ history tcsh prompt $_guard_history_loop "$_guard_history_file"`
        if ($status) set _guard_history_new = `history -hT | sh @HOOK@.look "$_guard_history_file"`
        if ("$_guard_history_new[1]" == 0) then
            history -c
            history -L $_guard_history_new[2]
            \rm -f $_guard_history_new[2]
        endif
        set _guard_history_loop = 0
    endif
endif
