# guard: takes a secret out of a line before bash stores it; the command itself runs unchanged (docs/shells.md).
# Written by `guard history install`; bash 4.4 and later.
#
# The DEBUG trap looks at the new entry before its command runs, so that a hang-up in the middle of it finds nothing;
# PROMPT_COMMAND looks at what ran nothing (a comment, a syntax error). Each puts the other back where a start-up file
# read later, or bash-preexec, replaced it.
if [[ $- == *i* && -z ${_guard_history-} ]] && ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) && @WANTED@; then
  _guard_history=@GUARD@
  _guard_history_rx=@PREFILTER@
  _guard_history_seen= _guard_history_trapped= _guard_history_hit= _guard_history_armed= _guard_history_ready=
  _guard_history_busy=
  printf -v _guard_history_start '%(%s)T' -1
  _guard_history_size=$(wc -c 2>/dev/null < "${HISTFILE:-$HOME/.bash_history}")

  # Sets `REPLY` to the number of the newest entry, without a fork.
  _guard_history_number() { REPLY='\!'; REPLY=${REPLY@P}; }

  # Sets `REPLY` to the line without its secrets; fails where there are none.
  _guard_history_clean() {
    local line=$1 code
    [[ ${line,,} =~ $_guard_history_rx ]] || return 1
    REPLY=$(builtin printf %s "$line" | "$_guard_history" history line 2>/dev/null; code=$?; builtin printf x; exit $code)
    code=$? REPLY=${REPLY%x}
    ((code == 0)) && return 0
    ((code == 1)) && return 1
    # Nobody could say what is secret in it: all but the program's name goes.
    REPLY=${line%%[[:space:]]*}
    [[ ${REPLY,,} =~ $_guard_history_rx || $REPLY == *[\'\"\`=]* ]] && REPLY=
    REPLY="${REPLY:+$REPLY }__REDACTED__"
  }

  _guard_history_look() {
    local - REPLY last first at entry changed=
    set +eux
    local -a entries
    _guard_history_busy=1
    _guard_history_number
    last=$REPLY first=$_guard_history_seen
    if [[ -z $first ]]; then # what was there before this shell is left alone
      [[ -n $(builtin fc -ln -0 -0) ]] || last=0 # an empty history has the number that its first entry will have
      _guard_history_seen=$last _guard_history_busy=
      return
    fi
    ((last > first && last - first <= 64)) || first=$((last - 1)) # none new, or a whole file was read in
    for ((at = first + 1; at <= last; at++)); do
      if ((at == last)); then entry=$(builtin fc -ln -0 -0 2>/dev/null; builtin printf x)
      else entry=$(builtin fc -ln "$at" "$at" 2>/dev/null; builtin printf x); fi
      entry=${entry%x} entry=${entry%$'\n'} entry=${entry#$'\t'}
      [[ -o posix ]] || entry=${entry:1} # the mark of a changed entry, which POSIX does not know
      if [[ -n $entry ]] && _guard_history_clean "$entry"; then
        entry=$REPLY _guard_history_hit=1 changed=${changed:-$at}
      fi
      [[ -n $changed ]] && entries[at]=$entry
    done
    if [[ -n $changed ]]; then
      for ((at = last; at >= changed; at--)); do builtin history -d "$at"; done
      for at in "${!entries[@]}"; do builtin history -s -- "${entries[at]}"; done
      _guard_history_number
      last=$REPLY
    fi
    _guard_history_seen=$last _guard_history_busy=
  } 2>/dev/null

  # $1: 1 where a trap of the user's follows, which sees the status before it; $2 keeps $_ as it was.
  _guard_history_debug() {
    local status=$? REPLY
    [[ ${FUNCNAME[1]-} == _guard_history_* ]] && return 0 # a trap that is set in a function counts for its rest
    _guard_history_trapped=1
    if [[ $BASH_COMMAND != _guard_history_* ]]; then
      _guard_history_number
      if [[ $REPLY != "$_guard_history_seen" || -n $_guard_history_armed ]]; then
        _guard_history_armed=
        [[ -n $_guard_history_ready && -o history ]] && _guard_history_look
      fi
      [[ ${PROMPT_COMMAND[*]-} == *_guard_history_prompt* ]] || _guard_history_first
    fi
    (($1)) && return $status
    return 0
  }

  # Puts our look before everything else at the prompt: before a `history -a`. Written out, since neither a
  # function nor a file that is read sees the DEBUG trap of its caller.
  _guard_history_first() {
    local ours='_guard_history_status=$? _guard_history_trapped=; [[ -n $_guard_history_trapped ]] ||'
    ours+=' _guard_history_trap DEBUG _guard_history_debug "$(trap -p DEBUG)"; _guard_history_prompt'
    if [[ $(declare -p PROMPT_COMMAND 2>/dev/null) == 'declare -a'* ]]; then
      PROMPT_COMMAND=("$ours" "${PROMPT_COMMAND[@]}")
    else
      PROMPT_COMMAND="$ours${PROMPT_COMMAND:+;$PROMPT_COMMAND}"
    fi
  }

  # Puts a function of ours before a trap that is there; $1 the signal, $2 the function, $3 what `trap -p` says.
  _guard_history_trap() {
    local theirs
    eval "local -a words=($3)"
    theirs=${words[2]-}
    if [[ $theirs == *"$2"* ]]; then
      builtin trap -- "$theirs" "$1"
    elif [[ $1 == DEBUG ]]; then
      builtin trap -- "$2 $((${#theirs} > 0)) \"\$_\"${theirs:+; $theirs}" DEBUG
    else
      builtin trap -- "$2${theirs:+; $theirs}" "$1"
    fi
  }

  _guard_history_prompt() {
    local REPLY
    _guard_history_ready=1 # only now is the history read in that was there before
    _guard_history_number
    if [[ $REPLY != "$_guard_history_seen" && -o history ]]; then _guard_history_look; fi
    _guard_history_armed=1
    return $_guard_history_status
  }

  # Behind the shell's end: `history -w` and the shell itself may have put back what other hands had taken out.
  _guard_history_end() {
    local status=$?
    if [[ -n $_guard_history_busy && -n $HISTFILE ]]; then # a hang-up in a trap, from where bash stores nothing
      _guard_history_look
      builtin history -a
    fi
    if [[ -n $HISTFILE && (-n $_guard_history_hit || -e @FOLDER@/scrubbed || -e ~/.local/share/guard/hooks/scrubbed) ]]; then
      "$_guard_history" history end $$ "$_guard_history_start" "${_guard_history_size:-0}" "$HISTFILE" \
        @FOLDER@ ~/.local/share/guard/hooks < /dev/null &> /dev/null
    fi
    return $status
  }
  _guard_history_trap EXIT _guard_history_end "$(trap -p EXIT)"
  _guard_history_first
fi
