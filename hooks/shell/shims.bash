# guard: shims of agents stand first on PATH, and do so again at each prompt: nvm and `module load` put themselves there.
# Written by `guard shim install`; see docs/shells.md.
_guard_shims() {
  local status=${1:-$?} shims=@FOLDER@ others=:$PATH:
  if [[ $others != ":$shims:"* ]]; then
    others=${others//":$shims:"/:}
    PATH=$shims${others%:}
  fi
  [[ $- == *e* ]] || return $status
}
_guard_shims
if [[ $- == *i* && ${PROMPT_COMMAND[*]-} != *_guard_shims* ]]; then
  # A shell that has no shims may inherit it, but inherits no array: so it asks.
  _guard_shims=('_guard_status=$?; if [[ -n ${_guard_shims-} ]]; then _guard_shims $_guard_status; else (exit $_guard_status); fi')
  case $(declare -p PROMPT_COMMAND 2> /dev/null) in
    declare\ -*r*\ PROMPT_COMMAND*) ;; # read-only
    declare\ -a*) PROMPT_COMMAND+=("$_guard_shims") ;;
    *) PROMPT_COMMAND="${PROMPT_COMMAND:+$PROMPT_COMMAND;}$_guard_shims" ;;
  esac
fi
