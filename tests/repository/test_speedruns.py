"""`bench.speedrun` counts minutes without evaluation, and compares them with a record."""

from pathlib import Path

import pytest

from bench.speedrun import ENTRIES, Reached, Record, main, reached, read_entry, slower
from unstable.config import ConfigError, RunConfig, load


def row(version: int, high: float | None, total: float, evaluated: float = 0.0) -> dict[str, float]:
    """Return a row of metrics; exploitability takes 30 s."""
    measured = {} if high is None else {"exploit/Kuhn/high": high, "exploit/Kuhn/seconds": 30.0}
    return {"version": version, "time/total": total, "time/evaluate": evaluated, **measured}


ROWS = [
    row(0, 0.46, 90),
    row(1, None, 60),
    row(2, 0.05, 100, 10),
    row(3, 0.2, 90),
    row(4, 0.04, 90),
]


def test_minutes_end_at_the_first_version_and_exclude_evaluation() -> None:
    """60 s of start, 60 s and 60 s of two updates; version 3 is above the threshold again."""
    assert reached(ROWS, "Kuhn", 0.05) == Reached(2, 3.0, 0.04, 0.2)
    assert reached(ROWS, "Kuhn", 0.04) == Reached(4, 5.0, 0.04, None)
    assert reached(ROWS, "Kuhn", 0.01) == Reached(None, None, 0.04, None)
    with pytest.raises(ConfigError, match="game = Leduc: the run has no exploit/Leduc/high"):
        reached(ROWS, "Leduc", 0.5)


def test_verification_compares_each_recorded_seed() -> None:
    record = Record(machine="two cores", date="2026-11-28", minutes={1: 4.0, 2: 4.0, 3: None})
    found = {1: Reached(9, 5.0, 0.0, None), 2: Reached(9, 5.1, 0.0, None)}
    assert slower(record, found) == [2]
    assert slower(record, {1: Reached(None, None, 1.0, None)}) == [1, 2]
    assert slower(None, found) == []


def test_entry_without_a_record_cannot_be_verified(tmp_path: Path) -> None:
    entry = tmp_path / "entry.yaml"
    text = "{name: a, config: tiny_kuhn, game: Kuhn, threshold: 0.05, seeds: [1]}"
    entry.write_text(text)
    with pytest.raises(ConfigError, match="record = none: nothing to compare with; measure it"):
        main(["--verify", str(entry), "--folder", str(tmp_path)])
    entry.write_text(text.replace("seeds", "options: {loop.mode: async}, seeds"))
    with pytest.raises(ConfigError, match="loop.mode = async: set sync"):
        read_entry(entry)


@pytest.mark.parametrize("path", sorted(ENTRIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_entry_names_a_game_of_its_config(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ENTRIES.parent.parent)
    entry = read_entry(path)
    config = load(entry.config, entry.options)
    assert entry.name == path.stem and entry.game in {game.key for game in config.games}
    assert entry.threshold > 0 and entry.seeds and isinstance(config, RunConfig)
