# guard: takes a secret out of a line before bash stores it; the command itself runs unchanged (docs/shells.md).
# Written by `guard history install`; bash 4.4 and later.
#
# The DEBUG trap looks at the new entry before its command runs, so that a hang-up in the middle of it finds nothing;
# PROMPT_COMMAND looks at what ran nothing (a comment, a syntax error). Each puts the other back where a start-up file
# read later, or bash-preexec, replaced it. What a shell of an array knows, none inherits.
if [[ $- == *i* && -z ${_guard_history_here-} ]] && ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) && @WANTED@; then
  _guard_history=@GUARD@
  _guard_history_rx=@PREFILTER@
  _guard_history_rx_short=@SHORT@
  declare -gA _guard_history_programs=(@PROGRAMS@)
  _guard_history_seen= _guard_history_trapped= _guard_history_hit= _guard_history_armed= _guard_history_busy=
  unset _guard_history_here
  _guard_history_here=(1)
  printf -v _guard_history_start '%(%s)T' -1
  _guard_history_size=$(wc -c 2>/dev/null < "${HISTFILE:-$HOME/.bash_history}")

  # Sets `REPLY` to the number of the newest entry, without a fork.
  _guard_history_number() { REPLY='\!'; REPLY=${REPLY@P}; }

  # Says whether a line, in small letters, may hold a secret. In a short one the programs that take one are looked up:
  # libc compiles an expression anew at each match, and their names are two thirds of it.
  _guard_history_asks() {
    if ((${#1} > 160)); then
      [[ $1 =~ $_guard_history_rx ]]
      return
    fi
    [[ $1 =~ $_guard_history_rx_short ]] && return
    [[ $1 == *[$' \t"\'']*[-:/%@=]* ]] || return
    local - IFS=' ' word
    set -f
    for word in ${1//[!abcdefghijklmnopqrstuvwxyz0123456789_.-]/ }; do
      while [[ -n $word ]]; do
        [[ -z ${_guard_history_programs[$word]-} ]] || return 0
        [[ $word == *-* ]] || break
        word=${word#*-}
      done
    done
    return 1
  }

  # Sets `REPLY` to the line without its secrets; fails where there are none, which must be said (10): a program that
  # breaks down says 1.
  _guard_history_clean() {
    local line=$1 code
    local -a theirs=("${BASH_REMATCH[@]}")
    _guard_history_asks "${line,,}"
    code=$?
    ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 501)) || BASH_REMATCH=("${theirs[@]}") # read-only before
    ((code)) && return 1
    if [[ -z ${interrupted-} ]]; then
      REPLY=$(builtin printf %s "$line" | "$_guard_history" history line 2>/dev/null; code=$?; builtin printf x; exit $code)
      code=$?
      ((code == 10)) && return 1
      [[ $code == 0 && $REPLY == *x ]] && REPLY=${REPLY%x} && return 0
    fi
    # Nobody could say what is secret in it: all but the program's name goes.
    REPLY=${line%%[[:space:]]*}
    [[ ${REPLY,,} =~ $_guard_history_rx || $REPLY == *[\'\"\`=]* ]] && REPLY=
    REPLY="${REPLY:+$REPLY }__REDACTED__"
  }

  # $1: 1 where the newest entry was typed, whatever was there before.
  _guard_history_look() {
    local - REPLY last first at entry changed= most=64
    local interrupted=$_guard_history_busy # by ^C or a hang-up, as guard was asked: it is not asked again
    set +eux
    shopt -q cmdhist || most=4096 # each line of a block is an entry
    local -a entries
    _guard_history_busy=1
    _guard_history_number
    last=$REPLY first=$_guard_history_seen
    if [[ -z $first ]]; then # what was there before this shell is left alone
      [[ -n $(builtin fc -ln -0 -0) ]] || last=0 # an empty history has the number that its first entry will have
      if ((! ${1:-0})); then
        _guard_history_seen=$last _guard_history_busy=
        return
      fi
      first=$((last - 1))
    fi
    ((last > first && last - first <= most)) || first=$((last - 1)) # none new, or a whole file was read in
    for ((at = first + 1; at <= last; at++)); do
      REPLY=
      # Counted from the end: a number of its own gets the whole history for the last but one.
      entry=$(builtin fc -ln "-$((last - at))" "-$((last - at))" 2>/dev/null; builtin printf x)
      if [[ $entry == *x ]]; then
        entry=${entry%x} entry=${entry%$'\n'} entry=${entry#$'\t'}
        [[ -o posix ]] || entry=${entry:1} # the mark of a changed entry, which POSIX does not know
      else # no process could be started
        entry= REPLY=__REDACTED__
      fi
      if [[ $REPLY == __REDACTED__ ]] || { [[ -n $entry ]] && _guard_history_clean "$entry"; }; then
        entry=$REPLY REPLY= _guard_history_hit=1 changed=${changed:-$at}
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
    local status=$? REPLY first=0
    [[ ${FUNCNAME[1]-} == _guard_history_* ]] && return 0 # a trap that is set in a function counts for its rest
    _guard_history_trapped=1
    if [[ $BASH_COMMAND != @(_guard_history_*|'[[ -n $'?({)_guard_history_*) ]]; then # not our own at the prompt
      _guard_history_number
      # Not in a start-up file: the history that was there before is read in behind them.
      if [[ -z ${FUNCNAME[1]-} && ($REPLY != "$_guard_history_seen" || -n $_guard_history_armed) ]]; then
        _guard_history_armed=
        # Where nothing ran at the prompt before this, it is the first line that was typed.
        [[ -n ${PROMPT_COMMAND[*]-} ]] || first=1
        if [[ -o history ]]; then _guard_history_look $first; fi
      fi
      [[ $BASH_COMMAND != *@(fc|history)* ]] || _guard_history_armed=1 # these put one line in the place of another
      [[ ${PROMPT_COMMAND[*]-} == *_guard_history_prompt* ]] || _guard_history_first
    fi
    if (($1)) && [[ $- != *e* ]]; then return $status; fi
    return 0
  }

  # Puts our look before everything else at the prompt: before a `history -a`. Written out, since neither a
  # function nor a file that is read sees the DEBUG trap of its caller.
  # A shell that has no hook may inherit it, so it asks first. Where it is read-only, the trap sees all but the last line.
  _guard_history_first() {
    local - ours='_guard_history_status=$? _guard_history_trapped=; if [[ -n ${_guard_history_here-} ]]; then'
    ours+=' [[ -n $_guard_history_trapped ]] || _guard_history_trap DEBUG _guard_history_debug "$(trap -p DEBUG)";'
    ours+=' _guard_history_prompt; else (exit $_guard_history_status); fi'
    set +u
    [[ ${PROMPT_COMMAND[*]@a} == *r* ]] && return
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
    [[ $theirs != - ]] || theirs= # as POSIX mode names none
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
    _guard_history_number
    if [[ ($REPLY != "$_guard_history_seen" || -n $_guard_history_armed) && -o history ]]; then _guard_history_look; fi
    _guard_history_armed=1
    [[ $- == *e* ]] || return $_guard_history_status
  }

  # Says whether a line that was called back and changed, but never entered, holds a secret: the shell stores it so.
  _guard_history_edited() {
    local line REPLY
    while IFS= read -r line; do
      _guard_history_clean "${line#*\*}" && return
    done < <(builtin history | grep '^ *[0-9][0-9]*[*]')
    return 1
  }

  # Behind the shell's end: `history -w` and the shell itself may have put back what other hands had taken out, and a
  # hang-up stores before it comes here.
  _guard_history_end() {
    local - status=$? REPLY
    set +eux
    if [[ -n $_guard_history_busy && -n $HISTFILE ]]; then # in a trap, from where bash stores nothing
      _guard_history_look
      builtin history -a
    fi
    _guard_history_number
    [[ $REPLY == "$_guard_history_seen" ]] || _guard_history_hit=1 # nobody looked at it yet
    if _guard_history_edited; then
      _guard_history_hit=1 _guard_history_start=0 _guard_history_size=0 # wherever it stands
    fi 2> /dev/null
    if [[ -n $HISTFILE && (-n $_guard_history_hit || -e @FOLDER@/scrubbed || -e ~/.local/share/guard/hooks/scrubbed) ]]; then
      "$_guard_history" history end $$ "$_guard_history_start" "${_guard_history_size:-0}" "$HISTFILE" \
        @FOLDER@ ~/.local/share/guard/hooks < /dev/null &> /dev/null
    fi
    return $status
  }
  _guard_history_trap EXIT _guard_history_end "$(trap -p EXIT)"
  [[ ${PROMPT_COMMAND[*]-} == *_guard_history_prompt* ]] || _guard_history_first # inherited
  builtin bind 'set revert-all-at-newline on' 2> /dev/null # a line that is called back and left again stays as it was
fi
