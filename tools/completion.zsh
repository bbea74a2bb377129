#compdef piperc piper-run piper-verify piper-diff piper-sim piper-search piper-checkpoint
# Completes the command lines of Piper's programs, in zsh: options as the program's --help lists them.
_gnu_generic "$@"
