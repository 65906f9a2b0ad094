"""A league's folder: its file, and the runs of its members."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unstable.config import read_text
from unstable.records.files import write_lines, write_whole
from unstable.records.folder import RunFolder
from unstable.records.reading import read_list
from unstable.records.runs import RunsFolder
from unstable.records.shapes import Record
from unstable.studies.league.config import LeagueConfig, dump_league, read_league


class MemberRecord(Record, kw_only=True):
    """A line of `members.jsonl`."""

    member: str
    digest: str


@dataclass(frozen=True, slots=True)
class LeagueFolder(RunsFolder):
    """LeagueFolder(Path("out")).run("main-2") is out/members/main/generation-2."""

    @property
    def file(self) -> Path:
        """The league, with what was left to choose; only a league's folder has it."""
        return self.root / "league.yaml"

    @property
    def members(self) -> Path:
        """A line for each member: a digest of the config that its runs have in common."""
        return self.root / "members.jsonl"

    def run(self, name: str) -> RunFolder:
        """The folder of a member's run in a generation."""
        member, _, generation = name.rpartition("-")
        return RunFolder(self.root / "members" / member / f"generation-{generation}")

    def digests(self) -> dict[str, str]:
        """Of each member's config, as it was when the league began."""
        return {row.member: row.digest for row in read_list(self.members, MemberRecord)}

    def make(self, league: LeagueConfig, members: Sequence[dict[str, Any]]) -> None:
        """Make the folder; raises `ConfigError` where it is there, or cannot be made."""
        self.make_folders("members")
        write_lines(self.members, members)
        write_whole(self.file, dump_league(league).encode())  # last: then the folder is a league's

    def read(self) -> LeagueConfig:
        """The league of this folder."""
        return read_league(read_text(self.file, str(self.file)), str(self.file))
