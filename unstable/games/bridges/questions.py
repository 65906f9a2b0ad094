"""Questions about any game of OpenSpiel, made from its states, to train small models.

They cover the entries of a state's tensor, the effect of a move on them, whether a move ends the
game, and the payoffs of final positions. Marks that never occur in play distinguish them: `?`, `!`,
`=`.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from random import Random
from typing import Any

from unstable.games.bridges.named import in_line, line
from unstable.games.info import Question

Seen = Callable[[Any, int], str]
"""Function from an OpenSpiel state and a player to the text that the player sees."""
Names = Callable[[Any], list[str]]
"""Function from a state to the names of its legal actions, in order."""
_GAMES = 200  # random games played to find tensor entries that vary
_MOST = 64  # maximum number of entries in questions
_CHANGED = 0.7  # share of a move's-effect questions that concern an entry that changes


def questions_of(game: Any, name: str, seen: Seen, names: Names) -> tuple[Question, ...]:
    """Return the questions about a game; questions on tensors only if it has tensors."""
    asked = QuestionSampler(game, seen, names)
    kinds = [
        Question(f"{name}: the marked action of a position.", asked.named),
        Question(f"{name}: what an action leads to.", asked.end),
        Question(f"{name}: what the first seat gets in the end.", asked.final),
    ]
    if asked.has_tensor:
        kinds += [
            Question(f"{name}: a number of the position.", asked.entry),
            Question(f"{name}: a number after an action.", asked.change),
        ]
    return tuple(kinds)


class QuestionSampler:
    """Sampler of questions about one game."""

    def __init__(self, game: Any, seen: Seen, names: Names) -> None:
        self._game, self._seen, self._names = game, seen, names
        kind = game.get_type()
        self._shows_all = kind.information == kind.Information.PERFECT_INFORMATION
        self._tensor: Callable[[Any, int], Any] | None = None
        if kind.provides_information_state_tensor:
            self._tensor = lambda state, player: state.information_state_tensor(player)
        elif kind.provides_observation_tensor:
            self._tensor = lambda state, player: state.observation_tensor(player)

    @property
    def has_tensor(self) -> bool:
        """True if the game has tensors of its positions."""
        return self._tensor is not None

    def named(self, rng: Random) -> tuple[str, list[str]]:
        """Draw a position with a marked legal action, which is the answer."""
        state = self._decision(rng)
        move = rng.choice(names := self._names(state))
        return f"{self._line(state, names)} ! {move}", [move]

    def end(self, rng: Random) -> tuple[str, list[str]]:
        """Draw a position and an action; the answer is `on`, `over`, or the mover's payoff.

        Only games of perfect information ask for the payoff: otherwise it depends on hidden state.
        """
        state = self._decision(rng)
        names = self._names(state)
        place, player = rng.randrange(len(names)), state.current_player()
        after = state.child(state.legal_actions()[place])
        answer = "on"
        if after.is_terminal():
            answer = number(after.returns()[player]) if self._shows_all else "over"
        return f"{self._line(state, names)} ! {names[place]} =", [answer]

    def final(self, rng: Random) -> tuple[str, list[str]]:
        """Draw the views of all seats at the end of a game; the answer is the first's payoff."""
        *_, after = self._play(rng)
        seen = [in_line(self._seen(after, seat)) for seat in range(self._game.num_players())]
        return f"{' / '.join(dict.fromkeys(seen))} =", [number(after.returns()[0])]

    def entry(self, rng: Random) -> tuple[str, list[str]]:
        """Draw a position; the answer is one of its tensor's entries that differ in play."""
        state = self._decision(rng)
        values = self._numbers(state, state.current_player())
        place = self._place(values, rng)
        return f"{self._line(state, self._names(state))} ? {place}", [number(values[place])]

    def change(self, rng: Random) -> tuple[str, list[str]]:
        """Draw a position and an action; the answer is an entry after it, mostly a changed one."""
        state = self._decision(rng)
        names, player = self._names(state), state.current_player()
        chosen = rng.randrange(len(names))
        after = state.child(state.legal_actions()[chosen])
        before, values = self._numbers(state, player), self._numbers(after, player)
        changed = [place for place in values if values[place] != before[place]]
        place = self._place(values, rng)
        if changed and rng.random() < _CHANGED:
            place = rng.choice(changed)
        line = f"{self._line(state, names)} ! {names[chosen]} ? {place}"
        return line, [number(values[place])]

    def _line(self, state: Any, names: Sequence[str]) -> str:
        player = state.current_player()
        return line(self._seen(state, player), player, names)

    def _place(self, values: dict[int, float], rng: Random) -> int:
        """Draw the index of an entry: of a nonzero one in half of the draws, else of any."""
        some = [place for place, value in values.items() if value]
        return rng.choice(some if some and rng.random() < 0.5 else [*values])

    def _numbers(self, state: Any, player: int) -> dict[int, float]:
        """Return the entries for questions, by index in the tensor."""
        assert self._tensor is not None
        values = self._tensor(state, player)
        return {place: values[place] for place in self._places}

    @cached_property
    def _places(self) -> list[int]:
        """Indices of the tensor's entries that differ between decisions."""
        assert self._tensor is not None
        rng, seen = Random(0), []
        for _ in range(_GAMES):
            state = self._decision(rng)
            seen.append(self._tensor(state, state.current_player()))
        columns = enumerate(zip(*seen, strict=True))
        differ = [place for place, values in columns if len({*values}) > 1]
        return sorted(rng.sample(differ, min(_MOST, len(differ))))

    def _decision(self, rng: Random) -> Any:
        """Draw a decision uniformly from those of a random game."""
        kept = None
        for before, state in enumerate(self._play(rng)):
            if not state.is_terminal() and rng.randrange(before + 1) == 0:
                kept = state.clone()
        return kept

    def _play(self, rng: Random) -> Iterator[Any]:
        """Yield the decisions of a random game, then its end, as one state that is modified."""
        state = self._game.new_initial_state()
        while not state.is_terminal():
            if state.is_chance_node():
                outcomes, chances = zip(*state.chance_outcomes(), strict=True)
                state.apply_action(rng.choices(outcomes, chances)[0])
                continue
            yield state
            state.apply_action(rng.choice(state.legal_actions()))
        yield state


def number(value: float) -> str:
    """Format a number as an answer.

    >>> number(1.0), number(-0.5), number(0.333333)
    ('1', '-0.5', '0.33')
    """
    return f"{round(value, 2):g}"
