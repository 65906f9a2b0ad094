"""Advice during a run: few legal answers, games cut off, or many samples dropped as too stale."""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence

from unstable.config import RunConfig, shown
from unstable.types import GameResult, PlayedGame, Turn

LOOKED_AT = 64
"""Answers of the policy in an env after which advice is given."""
FEW = 0.25
"""Share of legal answers below which advice is given."""


class Illegal:
    """Counter of the policy's first answers in each env; advises once per env if few are legal."""

    def __init__(self, config: RunConfig) -> None:
        self._indices = {game.key: index for index, game in enumerate(config.games)}
        self._games = config.game_by_key
        self._fresh = config.model.init == "fresh"
        self._turns: dict[str, list[Turn]] = {key: [] for key in self._games}

    def wants(self, env: str) -> bool:
        """Return whether the next game of an env is still counted."""
        return len(self._turns.get(env, ())) < LOOKED_AT and env in self._turns

    def add(self, game: GameResult) -> str | None:
        """Add a training game; return the advice on its env if it is due now, else None."""
        if not self.wants(game.spec.env):
            return None
        turns = self._turns[game.spec.env]
        turns += [t for t in game.turns if (s := t.answer.sampled) and s.version is not None]
        if len(turns) < LOOKED_AT:
            return None
        legal = sum(not turn.invalid for turn in turns)
        return self._line(game.spec.env, turns) if legal < FEW * len(turns) else None

    def _line(self, env: str, turns: list[Turn]) -> str:
        refused = [turn for turn in turns if turn.invalid]
        counts = Counter(turn.answer.text for turn in refused)
        ((text, count),) = counts.most_common(1)
        like = next(turn.answer for turn in refused if turn.answer.text == text)
        game, place = self._games[env], f"games.{self._indices[env]}"
        bare = game.action_form == "bare"
        form = "without brackets, such as 3" if bare else "in square brackets, such as [3]"
        why = f"which the game rejects as {shown(like.action)}"
        remedy = f"set {place}.legal_moves for a warm start on legal moves"
        if game.legal_moves is not None:
            remedy = f"shorten the prompt with a custom prompt style ({place}.prompt)"
            if self._fresh:
                remedy = "start without `--init fresh` for a warm start on legal moves"
        if not like.formatted:
            asked = like.observation.rstrip().rpartition("\n")[2]
            why = f"in which the parser finds no action; the prompt asks for {shown(asked)}"
            remedy += f", or set {place}.parser to read the model's answers"
        if game.legal_moves is None:
            remedy += "; without a list of legal moves, train on examples with `unstable sft`"
        return (
            f"{env}: {len(refused)} of the policy's first {len(turns)} answers are illegal, "
            f"most often {shown(text)} ({count} times), {why}. The game expects actions {form} "
            f"({place}.action_form); {remedy}"
        )


CAPPED_GAMES = 16
"""Number of an env's last games that are inspected."""
CAPPED_SHARE = 0.5
"""Share of games cut off above which advice is given."""


class Capped:
    """Monitor of how games end; advises once per env if its `max_turns` is too low."""

    def __init__(self, config: RunConfig) -> None:
        self._places = {game.key: (n, game.max_turns) for n, game in enumerate(config.games)}
        self._cut: dict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=CAPPED_GAMES))
        self._said: set[str] = set()

    def add(self, games: Sequence[GameResult | PlayedGame]) -> str | None:
        """Add a game and its branches; return the advice on its env if it is due now, else None."""
        env, cut = games[0].spec.env, self._cut[games[0].spec.env]
        cut.extend(game.truncated for game in games)
        if env in self._said or len(cut) < CAPPED_GAMES or sum(cut) <= CAPPED_SHARE * CAPPED_GAMES:
            return None
        self._said.add(env)
        index, max_turns = self._places[env]
        return (
            f"games.{index}.max_turns = {max_turns} has cut off {sum(cut)} of the last "
            f"{CAPPED_GAMES} games of {env}, which reward nobody; raise it to the longest game's "
            "length (`unstable games` lists it)"
        )


STALE_UPDATES = 5
"""Updates before dropped samples are inspected."""
STALE_SHARE = 0.1
"""Share of dropped samples, relative to trained ones, above which advice is given."""


class Stale:
    """Monitor that warns once of many samples dropped as stale: short games dominate the rest.

    A game counts when it ends, and is as old as its oldest turn. In a simulation with equally many
    games of 2 and of 8 turns, dropping 25 % leaves 57 % short games, and dropping 48 % leaves 61 %.
    """

    def __init__(self, config: RunConfig) -> None:
        self._most = config.buffer.max_staleness
        self._updates, self._trained, self._said = 0, 0.0, False
        self._before: float | None = None

    def add(self, row: Mapping[str, float | None]) -> str | None:
        """Add an update's row; return the warning if it is due, else None."""
        dropped, trained = row.get("buffer/dropped_stale"), row.get("learn/samples")
        if dropped is None or trained is None or self._said:
            return None
        self._before = dropped if self._before is None else self._before
        self._updates, self._trained = self._updates + 1, self._trained + trained
        share = (dropped - self._before) / max(self._trained, 1)
        if self._updates < STALE_UPDATES or share <= STALE_SHARE:
            return None
        self._said = True
        return (
            f"buffer.max_staleness = {self._most}: samples dropped as too stale equal {share:.0%} "
            "of the trained ones, mostly of long games, which biases training towards short games; "
            "raise it, lower actors.games_in_flight, or set loop.mode to sync"
        )
