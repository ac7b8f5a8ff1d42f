# guard: takes a secret out of a line before zsh stores it; the command itself runs unchanged (docs/shells.md).
# Written by `guard history install`; zsh 5.3 and later.
if [[ -o interactive ]] && (( ! ${+functions[_guard_history_add]} )) && @WANTED@; then
  typeset -g _guard_history=@GUARD@
  typeset -g _guard_history_rx=@PREFILTER@

  # zsh asks before a line enters memory or file. Status 2 keeps the line out of the file, and 1 out of both, but it
  # would linger until the next one: what is in memory then is ours, and theirs is gone with the next prompt.
  _guard_history_add() {
    [[ -o histignorespace && $1 == ' '* ]] && return 0
    emulate -L zsh
    setopt nocasematch
    local line=${1%$'\n'} new code MATCH MBEGIN MEND
    local -a match mbegin mend
    trap : INT # which ends the question, but not the answer
    [[ $line =~ $_guard_history_rx ]] || return 0
    new=$(print -rn -- "$line" | "$_guard_history" history line 2>/dev/null; code=$?; print -n x; return $code)
    code=$? new=${new%x}
    (( code == 10 )) && return 0 # said: a program that breaks down ends with 1
    if (( code )); then
      # Nobody could say what is secret in it: all but the program's name goes.
      new=${line%%[[:space:]]*}
      [[ $new =~ $_guard_history_rx || $new == *[\'\"\`=]* ]] && new=
      new="${new:+$new }__REDACTED__"
    fi
    _guard_history_hit=1
    print -sr -- "$new"
    return 1
  }
  # Behind the shell's end: `fc -W` and the shell itself may have put back what other hands had taken out.
  _guard_history_end() {
    emulate -L zsh
    [[ -n $HISTFILE ]] || return 0
    [[ -n $_guard_history_hit || -e @FOLDER@/scrubbed || -e ~/.local/share/guard/hooks/scrubbed ]] || return 0
    "$_guard_history" history end $$ $_guard_history_start ${_guard_history_size:-0} "$HISTFILE" \
      @FOLDER@ ~/.local/share/guard/hooks < /dev/null &> /dev/null
  }
  typeset -g _guard_history_hit= _guard_history_start=${(%):-%D{%s}}
  typeset -g _guard_history_size=$(wc -c 2>/dev/null < ${HISTFILE:-/dev/null})
  autoload -Uz add-zsh-hook && add-zsh-hook zshaddhistory _guard_history_add && add-zsh-hook zshexit _guard_history_end
fi
