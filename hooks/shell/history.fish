# guard: takes a secret out of a line before fish stores it; the command itself runs unchanged (docs/shells.md).
# Written by `guard history install`; fish 3.2 and later.
if status is-interactive; and not functions -q _guard_history_clean; and @WANTED@
    set -g _guard_history @GUARD@
    set -g _guard_history_rx @PREFILTER@
    set -g _guard_history_pending

    # Prints the line without its secrets; fails where there are none.
    function _guard_history_clean
        string match -qir -- $_guard_history_rx "$argv[1]"; or return 1
        set -l new
        set -l code 127 # fish would say so at the terminal where there is no such program
        if test -x $_guard_history
            set new (printf %s "$argv[1]" | $_guard_history history line 2>/dev/null | string collect -N)
            set code $pipestatus[2]
        end
        if test $code -ne 0 -a $code -ne 10
            # Nobody could say what is secret in it: all but the program's name goes.
            set -l first (string match -r -- '^\S+' "$argv[1]")
            string match -qir -- $_guard_history_rx'|[\'"=]' "$first"; and set first
            set new (string join -- ' ' $first __REDACTED__)
            set code 0
        end
        test $code -eq 0; or return 1
        printf %s $new
    end

    if string match -qr '^([4-9]|\d\d)' -- $version
        # fish 4 asks, and takes a line of ours.
        if functions -q fish_should_add_to_history
            functions -c fish_should_add_to_history _guard_history_theirs
        end
        function fish_should_add_to_history
            if functions -q _guard_history_theirs
                _guard_history_theirs $argv; or return
            else if string match -q ' *' -- "$argv[1]"
                return 2
            end
            set -l new (_guard_history_clean "$argv[1]" | string collect -N)
            test $pipestatus[1] -eq 0; or return 0
            builtin history append -- $new
            return 1
        end
    else
        # fish 3 stores the line first: it is taken out before the command runs, and again after it, and a line of
        # ours is put into the file, from where the history in memory takes it.
        function _guard_history_out
            # fish stores it without the blanks at its end, but for one behind a backslash.
            set -l forms "$argv[1]" (string trim -r -c ' ' -- "$argv[1]" | string collect)
            set -a forms (string replace -r -- '(?<!\\\\) +$' '' "$argv[1]" | string collect)
            builtin history delete --exact --case-sensitive -- $forms
            builtin history save
        end
        function _guard_history_before --on-event fish_preexec
            set -g _guard_history_pending
            string match -qir -- $_guard_history_rx "$argv[1]"; or return
            set -l session fish
            set -q fish_history; and set session $fish_history
            set -l kept $session # fish keeps a line behind a space in memory only, until the next one
            string match -q ' *' -- "$argv[1]"; and set kept ""
            set -q fish_private_mode; and set kept ""
            # Before anybody is asked, so that a hang-up meanwhile finds nothing.
            test -n "$kept"; and _guard_history_out "$argv[1]"
            set -l new (_guard_history_clean "$argv[1]" | string collect -N)
            if test $pipestatus[1] -eq 0
                set -g _guard_history_pending "$argv[1]"
                test -n "$kept"; or _guard_history_out "$argv[1]"
            else
                set new "$argv[1]"
            end
            test -n "$kept"; or return
            if test -x $_guard_history
                printf %s $new | $_guard_history history fish $session 2>/dev/null
            else
                set -l data $XDG_DATA_HOME ~/.local/share
                string join -- \n "- cmd: $new" "  when: "(date +%s) >>$data[1]/fish/"$session"_history
            end
            and builtin history merge
        end
        function _guard_history_after --on-event fish_postexec
            if test -n "$_guard_history_pending"
                _guard_history_out "$_guard_history_pending"
                set -g _guard_history_pending
            end
        end
    end
end
