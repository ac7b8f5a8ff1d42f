# guard: shims of agents stand first on PATH, and do so again at each prompt: nvm and `module load` put themselves there.
# Written by `guard shim install`; see docs/shells.md.
_guard_shims() {
  [[ $path[1] == @FOLDER@ ]] || path=(@FOLDER@ ${path:#@FOLDER@})
}
_guard_shims
if [[ -o interactive ]]; then
  autoload -Uz add-zsh-hook && add-zsh-hook precmd _guard_shims
fi
