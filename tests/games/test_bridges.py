"""What games of other libraries have in common, whether or not these are installed."""

import logging

import pytest

from unstable.config import ConfigError, GameConfig
from unstable.games import bridges
from unstable.games.check import check_game


@pytest.mark.parametrize("prefix", bridges.LIBRARIES)
def test_a_library_that_is_not_there_is_a_line(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = bridges.LIBRARIES[prefix][1]
    monkeypatch.setitem(bridges.LIBRARIES, prefix, ("no_such_module", package))
    bridges.bridged_class.cache_clear()
    line = rf"{package} is not installed \(No .*\); run: pip install 'unstable\[{prefix}\]'$"
    with pytest.raises(ConfigError, match=line):
        check_game(GameConfig(env=f"{prefix}:some_game"))
    bridges.bridged_class.cache_clear()


def test_a_librarys_import_leaves_logging_as_it_is() -> None:
    root = logging.getLogger()
    before = root.level, [*root.handlers]
    with bridges._logging_kept():
        root.addHandler(logging.NullHandler())
        root.setLevel(1)
    assert (root.level, root.handlers) == before
