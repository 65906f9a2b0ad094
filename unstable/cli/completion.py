"""What completes the command line by Tab, as a script for a shell: `unstable completion bash`."""

from collections.abc import Mapping

from unstable.cli.table import Command
from unstable.config import CONFIGS, RunConfig, fields

SCRIPT = """\
_unstable() {{
  local IFS=$'\\n' word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} options
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
"""
SHELLS = ("bash", "zsh")
OPPONENTS = ("random", "expert", "rules", "base")
"""Those that `--opponent` takes besides a run's folder and what a config names."""


def completion(shell: str, commands: Mapping[str, Command]) -> str:
    """The script: commands, configs, options and fields as they are now, and folders.

    zsh reads the same one, once it is asked to complete as bash does.
    """
    paths = [f"--{each.path}".replace(".N.", ".0.") for each in fields(RunConfig)]  # a list's first
    cases = []
    for name, command in commands.items():
        options = [*command.options, *(paths if command.takes_fields else [])]
        cases.append(f"      {name}) options='{chr(10).join(options)}' ;;")
    configs = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    script = SCRIPT.format(
        commands="\n".join(commands),
        configs="\n".join(configs),
        shells="\n".join(SHELLS),
        opponents="\n".join(OPPONENTS),
        cases="\n".join(cases),
    )
    return f"autoload -U +X bashcompinit && bashcompinit\n{script}" if shell == "zsh" else script
