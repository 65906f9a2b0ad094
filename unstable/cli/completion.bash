_unstable() {{
  local IFS=$'\n' word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} options
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{commands}" -- "$word"))
  elif [ "${{COMP_WORDS[1]}}" = completion ]; then
    COMPREPLY=($(compgen -W "{shells}" -- "$word"))
  elif [ "$before" = --opponent ]; then
    COMPREPLY=($(compgen -W "{opponents}" -- "$word") $(compgen -f -- "$word"))
  elif [ "$before" = --config ]; then
    COMPREPLY=($(compgen -W "{configs}" -- "$word") $(compgen -f -- "$word"))
  elif [ "${{word#-}}" != "$word" ]; then
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _unstable unstable
