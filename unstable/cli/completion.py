"""What completes the command line by Tab, as a script for a shell: `unstable completion bash`."""

from collections.abc import Sequence

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
FIELDS = ("train", "sft", "world", "config", "doctor", "eval", "exploit", "play", "replay")
"""Commands that take fields of the config."""
OPTIONS = {
    "train": ("--config", "--resume", "--fork", "--fork_state"),
    "sft": ("--config", "--resume"),
    "world": ("--config",),
    "config": ("--config",),
    "doctor": ("--config",),
    "eval": ("--version", "--games", "--opponents"),
    "exploit": ("--games", "--samples", "--learn"),
    "play": ("--config", "--game", "--seat", "--opponent", "--temperature"),
    "replay": ("--purpose", "--version", "--from", "--with", "--seat", "--opponent"),
    "report": ("--out",),
    "export": ("--merged", "--out", "--push"),
    "watch": ("--once",),
    "runs": ("--tag",),
}
"""Of each command besides fields of the config, and --help."""
SHELLS = ("bash", "zsh")
OPPONENTS = ("random", "expert", "rules", "base")
"""Those that `--opponent` takes besides a run's folder and what a config names."""


def completion(shell: str, commands: Sequence[str], short_forms: Sequence[str]) -> str:
    """The script: commands, configs, options and fields as they are now, and folders.

    zsh reads the same one, once it is asked to complete as bash does.
    """
    paths = (field.path.replace(".N.", ".0.") for field in fields(RunConfig))  # of a list's first
    settings = [*short_forms, *(f"--{path}" for path in paths)]
    cases = []
    for command in commands:
        own = [*OPTIONS.get(command, ()), "--help", *(settings if command in FIELDS else [])]
        cases.append(f"      {command}) options='{chr(10).join(own)}' ;;")
    configs = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    script = SCRIPT.format(
        commands="\n".join(commands),
        configs="\n".join(configs),
        shells="\n".join(SHELLS),
        opponents="\n".join(OPPONENTS),
        cases="\n".join(cases),
    )
    return f"autoload -U +X bashcompinit && bashcompinit\n{script}" if shell == "zsh" else script
