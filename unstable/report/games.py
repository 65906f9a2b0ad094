"""Recorded games for the page's viewer: an index of all, and the games in chunks."""

import gzip
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from unstable.records.files import plain
from unstable.records.games import answer_tokens
from unstable.records.reading import DamagedError
from unstable.records.scan import GameLocation, TrainedAdvantage, read_advantages, read_game_at
from unstable.report.page import as_json
from unstable.report.run import Run
from unstable.report.survey import GamesSurvey
from unstable.types import GameResult, Turn

MOST_GAMES = 2000
"""Maximum number of games in a report, over all runs."""
CHUNK = 25
"""Games per compressed chunk."""


class TokenTexts(Protocol):
    """Token ids as text by the run's tokenizer, including control tokens."""

    def text(self, ids: Sequence[int]) -> str: ...

    def strings(self, ids: Sequence[int]) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Sources:
    """Knowledge from other rooms about one run's games; either may be None."""

    tokens: TokenTexts | None = None
    positions: Callable[[GameResult], list[dict[str, Any]] | None] | None = None
    """Function that returns a game's positions: one before each turn, and one at the end.

    A position has `board`, and `action_values` or `mix` if known. The result is None if the time
    for replays is spent.
    """


def packed_games(
    runs: Sequence[Run], surveys: Sequence[GamesSurvey], sources: Sequence[Sources]
) -> tuple[dict[str, Any], list[bytes]]:
    """Return the page's index of games, and the gzipped chunks of games in its order."""
    rows: list[dict[str, Any]] = []
    chunks: list[bytes] = []
    waiting: list[dict[str, Any]] = []
    rules = []
    for number, run in enumerate(runs):
        places = chosen(surveys[number].places, MOST_GAMES // len(runs))
        late = shown = 0
        for row, game in _games(run, places, sources[number]):
            rows.append({**row, "run": number})
            shown += 1
            if game["positions"] is None:
                game["positions"] = []
                late += 1
            waiting.append(game)
            if len(waiting) == CHUNK:
                chunks.append(_pack(waiting))
                waiting = []
        damaged = len(places) - shown
        rules.append(rule(shown, len(surveys[number].places) - damaged) + _boardless(late))
    if waiting:
        chunks.append(_pack(waiting))
    pairs = zip(runs, rules, strict=True)
    named = [f"{run.name}: {text}" if len(runs) > 1 else text for run, text in pairs]
    return {"rows": rows, "chunk": CHUNK, "rule": " ".join(named)}, chunks


def _boardless(late: int) -> str:
    if not late:
        return ""
    games = "1 of these games has" if late == 1 else f"{late:,} of these games have"
    return f" {games} no board, because replaying reached its time limit."


def _pack(games: list[dict[str, Any]]) -> bytes:
    return gzip.compress(as_json(games).encode(), compresslevel=4, mtime=0)


def _games(
    run: Run, places: Sequence[GameLocation], sources: Sources
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the index row of each game, and its whole content."""
    trained = {place.game for place in places if place.file.purpose == "train"}
    advantages = read_advantages(run.folder, trained, run.skipped)
    for place in places:
        try:
            result = read_game_at(place)
        except DamagedError as error:
            run.skipped.add(place.file.path, f"byte {place.offset}", error)
            continue
        own = advantages if place.file.purpose == "train" else {}
        yield _row(place, result), _game(result, own, sources)


def point_of_view(result: GameResult) -> int:
    """Return the seat whose result is shown: the first trained, the newest version's, or 0."""
    seats = result.spec.seats
    trained = [place for place, seat in enumerate(seats) if seat.trained]
    if trained:
        return trained[0]
    versions = [-1 if seat.player.version is None else seat.player.version for seat in seats]
    return versions.index(max(versions))


def _row(place: GameLocation, result: GameResult) -> dict[str, Any]:
    seat = point_of_view(result)
    own = result.spec.seats[seat].player
    others = [s.player for at, s in enumerate(result.spec.seats) if at != seat and s.player != own]
    if own.version is None and others:  # no policy played, e.g. a tournament's game
        others = [s.player for s in result.spec.seats]
    met = " and ".join(dict.fromkeys(player.name for player in others))
    kinds = {"past versions" if player.version is not None else player.name for player in others}
    alone = "alone" if len(result.spec.seats) == 1 else "self"
    return {
        "version": place.file.version,
        "purpose": place.file.purpose,
        "env": result.spec.env,
        "game": result.spec.game_id,
        "seat": seat,
        "temperature": None if own.version is None else result.spec.seats[seat].temperature,
        "against": met or alone,
        "kinds": sorted(kinds) or [alone],
        "result": result.standing(seat),
        "forfeit": result.forfeit,
        "turns": len(result.turns),
    }


def _game(
    result: GameResult, advantages: dict[tuple[int, int], TrainedAdvantage], sources: Sources
) -> dict[str, Any]:
    positions = [] if sources.positions is None else sources.positions(result)
    spec, names = result.spec, ("payoffs", "outcomes", "forfeit", "truncated", "reason")
    return {
        "seed": spec.seed,
        "players": [seat.player.name for seat in spec.seats],
        **{name: getattr(result, name) for name in names},
        "opening": spec.opening,
        "turns": [
            _turn(turn, advantages.get((spec.game_id, turn.index)), sources)
            for turn in result.turns
        ],
        "positions": positions,
    }


def _turn(turn: Turn, advantage: TrainedAdvantage | None, sources: Sources) -> dict[str, Any]:
    names = ("observation", "text", "action", "formatted", "votes")
    shown = {
        **{"seat": turn.seat, "player": turn.player.name, "invalid": turn.invalid},
        **{name: getattr(turn.answer, name) for name in names},
        "rewards": plain(turn.rewards),
    }
    if advantage is not None:
        shown |= {"update": advantage.update, "advantage": round(advantage.value, 4)}
    if (sampled := turn.answer.sampled) is None:
        return shown
    tokens = answer_tokens(sampled)
    shown |= {"finish_reason": tokens.finish_reason, "prompt_cut": sampled.prompt_cut}
    shown["logprobs"] = [None if each is None else round(each, 4) for each in tokens.logprobs]
    if sources.tokens is not None:
        shown["token_strings"] = sources.tokens.strings(tokens.token_ids)
        if tokens.top_logprobs:
            shown["likeliest"] = [
                [[sources.tokens.text([token]), round(value, 4)] for token, value in each]
                for each in tokens.top_logprobs
            ]
        shown["prompt"] = sources.tokens.text(sampled.prompt_ids)
    return shown


def chosen(places: Sequence[GameLocation], most: int = MOST_GAMES) -> list[GameLocation]:
    """Return at most `most` games of a run, newest version first, evaluation before training.

    Up to half of them are evaluation games of the first and the last evaluated version; the rest is
    evenly spaced over all others.
    """
    picked = list(places) if len(places) <= most else _picked(places, most)
    return sorted(picked, key=lambda place: (-place.file.version, place.file.purpose))


def _picked(places: Sequence[GameLocation], most: int) -> list[GameLocation]:
    evaluated = sorted({p.file.version for p in places if p.file.purpose == "eval"})
    ends = {evaluated[0], evaluated[-1]} if evaluated else set()
    is_end = [p.file.purpose == "eval" and p.file.version in ends for p in places]
    first = spread([at for at, end in enumerate(is_end) if end], most // 2)
    others = [at for at, end in enumerate(is_end) if not end]
    return [places[at] for at in sorted([*first, *spread(others, most - len(first))])]


def spread(items: Sequence[int], most: int) -> list[int]:
    """Return at most `most` items, evenly spaced, with the first and the last.

    >>> spread(range(9), 3)
    [0, 4, 8]
    """
    if len(items) <= most:
        return list(items)
    if most < 2:
        return list(items[:most])
    return [items[at * (len(items) - 1) // (most - 1)] for at in range(most)]


def rule(shown: int, total: int) -> str:
    """Return a sentence on the selection of games, for the page."""
    if shown == total:
        return f"All {total:,} recorded games."
    return (
        f"{shown:,} of {total:,} recorded games: up to half are evaluation games of the first and "
        "the last evaluated version, the rest is spread evenly over all versions."
    )
