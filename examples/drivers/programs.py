r"""The calculator's seats as agent programs from npm, each a subprocess that knows only a base URL.

After `npm install @anthropic-ai/claude-code @openai/codex`, with `node_modules/.bin` in PATH:

    unstable train --config examples/drivers/calculator.yaml \
      --games.0.env driver:examples.drivers.programs:ClaudeCode      # or :Codex

Their tools are off, because the model in training would use them on this machine.
"""

import os
import re
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, create_subprocess_exec
from pathlib import Path

from examples.drivers.calculator import Calculator
from unstable.drivers import SeatAddress

ASKED = "What is {} + {}? Answer with the number alone."
BRIEF = "You add numbers."
CODEX = """model_providers.seat = {{name = "seat", base_url = "{}", env_key = "SEAT_KEY"}}
model_instructions_file = "{}"
model_provider = "seat"
model = "seat"
web_search = "disabled"
skills.include_instructions = false
include_permissions_instructions = false
include_environment_context = false
agents.enabled = false
features = {{shell_tool = false, unified_exec = false, view_image = false, goals = false}}
"""


class ClaudeCode(Calculator):
    def start(self, seat: SeatAddress, home: Path) -> tuple[list[str], dict[str, str]]:
        """Return a command line, to which the question is added, and environment variables."""
        url = seat.base_url.removesuffix("/v1")
        quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
        command = ["claude", "-p", "--model", "seat", "--system-prompt", BRIEF, "--tools", "", "--"]
        return command, {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": seat.api_key, **quiet}

    async def answer(self, seat: SeatAddress, a: int, b: int) -> float:
        """Return the last number in a program's answer; infinite without one, such as if cut."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
            command, variables = self.start(seat, Path(home))
            variables |= {"PATH": os.environ["PATH"], "HOME": home}
            program = await create_subprocess_exec(
                *command, ASKED.format(a, b), stdin=DEVNULL, stdout=PIPE, cwd=home, env=variables
            )
            try:
                said, _ = await program.communicate()
            finally:  # a cancelled game as well
                if program.returncode is None:
                    program.kill()
                    await program.wait()
        return float(["inf", *re.findall(r"\d+(?:\.\d+)?", said.decode())][-1])


class Codex(ClaudeCode):
    def start(self, seat: SeatAddress, home: Path) -> tuple[list[str], dict[str, str]]:
        (brief := home / "brief.md").write_text(BRIEF)
        (home / ".codex").mkdir()
        (home / ".codex" / "config.toml").write_text(CODEX.format(seat.base_url, brief))
        return ["codex", "exec", "--skip-git-repo-check", "--"], {"SEAT_KEY": seat.api_key}
