# guard: shims of agents stand first on PATH, and do so again at each prompt: nvm and `module load` put themselves there.
# Written by `guard shim install`; see docs/shells.md.
function _guard_shims --on-event fish_prompt
    if test "$PATH[1]" != @FOLDER@
        set -gx PATH @FOLDER@ (string match -v -- @FOLDER@ $PATH)
    end
end
_guard_shims
