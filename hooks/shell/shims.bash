# guard: shims of agents stand first on PATH, and do so again at each prompt: nvm and `module load` put themselves there.
# Written by `guard shim install`; see docs/shells.md.
_guard_shims() {
  local status=$? shims=@FOLDER@ others=:$PATH:
  if [[ $others != ":$shims:"* ]]; then
    others=${others//":$shims:"/:}
    PATH=$shims${others%:}
  fi
  return $status
}
_guard_shims
if [[ $- == *i* && ${PROMPT_COMMAND[*]-} != *_guard_shims* ]]; then
  if [[ $(declare -p PROMPT_COMMAND 2> /dev/null) == 'declare -a'* ]]; then PROMPT_COMMAND+=(_guard_shims)
  else PROMPT_COMMAND="${PROMPT_COMMAND:+$PROMPT_COMMAND;}_guard_shims"; fi
fi
