# Completes the command lines of Piper's programs, in bash: options and the words that they take, as the program's --help lists them.
_piper() {
  local help before=${COMP_WORDS[COMP_CWORD - 1]} word=${COMP_WORDS[COMP_CWORD]}
  help=$("$1" --help 2>/dev/null) || return
  if [[ $word == "=" ]]; then word=; elif [[ $before == "=" ]]; then before=${COMP_WORDS[COMP_CWORD - 2]}; fi
  if [[ $before == -* ]]; then
    # "  -o,--option NAME:{one,two}"; other values are files.
    local words
    words=$(sed -nE "s/^  (-[^ ]*,)?$before [^ ]*:\{([^}]*)\}.*/\2/p" <<<"$help")
    if [[ -n $words ]]; then
      mapfile -t COMPREPLY < <(compgen -W "${words//,/ }" -- "$word")
      return
    fi
  fi
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(sed -nE 's/^  (-[^ {]+).*/\1/p' <<<"$help" | tr ',' ' ')" -- "$word")
  fi
}
complete -o default -F _piper piperc piper-run piper-verify piper-diff piper-sim piper-search piper-checkpoint
