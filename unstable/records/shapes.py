"""What the lines and documents of a run's folder hold, field by field, as far as they are read.

A shape says in words what is wrong with a value. Fields that it does not name are left alone.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from pydantic_core import SchemaValidator, ValidationError, core_schema

from unstable.types.metrics import (
    EvalKey,
    ExploitKey,
    MetricKey,
    RatingKey,
    VersusKey,
    WorstKey,
)

Record = dict[str, Any]
Schema = core_schema.CoreSchema
MOST = 1e100
"""No figure of a run comes to that; sums and squares of what is less are finite."""


class Shape:
    """What a record has to be: the types of its fields, then how they fit each other."""

    def __init__(self, schema: Schema, *fits: Callable[[Record], str | None]) -> None:
        self._validator = SchemaValidator(schema, core_schema.CoreConfig(strict=True))
        self._fits = fits

    def read(self, content: bytes) -> Record | None:
        """The record in a line of JSON; None where anything about it is unusual."""
        try:
            record: Record = self._validator.validate_json(content)
        except ValidationError:
            return None
        return None if any(fits(record) for fits in self._fits) else record

    def problem(self, record: Any) -> str | None:
        """What is wrong with a record, in a few words; None where nothing is."""
        try:
            self._validator.validate_python(record)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            place = ".".join(map(str, first["loc"]))
            return f"{place}: {first['msg'][0].lower()}{first['msg'][1:]}"
        return next((problem for fits in self._fits if (problem := fits(record))), None)


# Values


def _whole(least: int | None = 0, below: int = 2**53) -> Schema:
    return core_schema.int_schema(ge=least, lt=below)


def _list(items: Schema, least: int = 0) -> Schema:
    return core_schema.list_schema(items, min_length=least)


def _or_none(schema: Schema) -> Schema:
    return core_schema.nullable_schema(schema)


def _fields(
    required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None, *, only: bool
) -> Schema:
    """An object with these fields; `only`: and with no others."""
    fields = {name: core_schema.typed_dict_field(each) for name, each in required.items()}
    for name, each in (optional or {}).items():
        fields[name] = core_schema.typed_dict_field(each, required=False)
    return core_schema.typed_dict_schema(fields, extra_behavior="forbid" if only else "allow")


# A `str_schema` refuses half a character, which a record may hold.
_TEXT = core_schema.json_or_python_schema(
    core_schema.str_schema(), core_schema.is_instance_schema(str, cls_repr="text")
)
_FLAG = core_schema.bool_schema()
_FIGURE = core_schema.float_schema(allow_inf_nan=False, gt=-MOST, lt=MOST)
_LOGPROB = core_schema.float_schema(allow_inf_nan=False, gt=-MOST, lt=0.01)  # 0, but for rounding
_COUNT = _whole()
_INTEGER = core_schema.int_schema()  # a seed may have more digits
_IDS = _list(_whole(below=2**31))
_SEAT_NUMBER = _whole(below=1000)

# Games

_SEAT = _fields(
    {"player": _TEXT, "temperature": _FIGURE},
    {"group_id": _or_none(_COUNT), "group_size": _COUNT, "votes": _COUNT, "best_of": _COUNT},
    only=True,
)
_SPEC = {
    "game": _COUNT,
    "purpose": core_schema.literal_schema(["train", "eval"]),
    "env": _TEXT,
    "seed": _INTEGER,
    "member": _COUNT,
    "branches": _COUNT,
    "opening": _COUNT,
    "opener": _or_none(_SEAT),
    "seats": _list(_SEAT, least=1),
    "teams": _list(_list(_SEAT_NUMBER, least=1)),
}
_HEAD = {
    **_SPEC,
    "version": _COUNT,
    "actor": _or_none(_COUNT),
    "fork": _COUNT,
    "players": _list(_TEXT),
    "payoffs": _list(_FIGURE),
    "outcomes": _list(_FIGURE),
    "forfeit": _or_none(_SEAT_NUMBER),
    "raised": _FLAG,
    "truncated": _FLAG,
    "reason": _TEXT,
    "seconds": _FIGURE,
}
_CHOSEN_BY = {"ensemble": _list(_TEXT)}  # only where branches are chosen
_LATER = {"stakes": _or_none(_FIGURE), **_CHOSEN_BY}  # older records have none
_LIKELIEST = core_schema.tuple_schema([_whole(below=2**31), _LOGPROB], strict=False)
_SEGMENT = _fields(
    {"token_ids": _IDS},
    {
        "logprobs": _list(_LOGPROB),
        "finish_reason": core_schema.literal_schema(["stop", "length"]),
        "adapter": _or_none(_TEXT),
        "top_logprobs": _or_none(_list(_list(_LIKELIEST))),
    },
    only=True,
)
_MOVE = core_schema.tuple_schema([_IDS, _or_none(_FIGURE)], strict=False)
_SAMPLED = _fields(
    {
        "version": _or_none(_COUNT),
        "temperature": _FIGURE,
        "prompt_cut": _COUNT,
        "prompt_ids": _IDS,
        "segments": _list(_SEGMENT, least=1),
    },
    {"moves": _list(_MOVE), "thought": _COUNT},
    only=True,
)
_REWARD = _fields({"raw": _FIGURE, "weighted": _FIGURE}, only=True)
_TURN = _fields(
    {
        "seat": _SEAT_NUMBER,
        "index": _COUNT,
        "player": _TEXT,
        "observation": _TEXT,
        "text": _TEXT,
        "action": _TEXT,
        "formatted": _FLAG,
        "cut_characters": _COUNT,
        "votes": _or_none(_COUNT),
        "invalid": _FLAG,
        "seconds": _FIGURE,
        "rewards": _or_none(core_schema.dict_schema(_TEXT, _REWARD)),
        "sampled": _or_none(_SAMPLED),
    },
    only=False,
)
_COMPLETION = {"logprobs", "finish_reason", "adapter", "top_logprobs"}


def _spec_fits(game: Record) -> str | None:
    seats = range(len(game["seats"]))
    if game["teams"] and sorted(seat for team in game["teams"] for seat in team) != list(seats):
        return "teams: do not hold each seat once"
    return "opener: nobody makes the opening" if game["opening"] and not game["opener"] else None


def _head_fits(game: Record) -> str | None:
    seats = len(game["seats"])
    for name in ("payoffs", "outcomes"):
        if len(game[name]) != seats:
            return f"{name}: {len(game[name])} of {seats} seats"
    if game["players"] != [seat["player"] for seat in game["seats"]]:
        return "players: not those of seats"
    if game["forfeit"] is not None and game["forfeit"] >= seats:
        return f"forfeit: no seat {game['forfeit']}"
    return None


def _turns_fit(game: Record) -> str | None:
    for place, turn in enumerate(game["turns"]):
        if turn["index"] != place:
            return f"turns.{place}.index: {turn['index']}"
        if turn["seat"] >= len(game["seats"]):
            return f"turns.{place}.seat: no seat {turn['seat']}"
        if turn["sampled"] is not None and (problem := _tokens_fit(turn["sampled"]["segments"])):
            return f"turns.{place}.sampled.segments{problem}"
    return "fork: after the last turn" if game["fork"] > len(game["turns"]) else None


def _tokens_fit(segments: list[Record]) -> str | None:
    completions = [(place, each) for place, each in enumerate(segments) if len(each) > 1]
    for place, each in completions:
        if missing := _COMPLETION - each.keys():
            return f".{place}: {', '.join(sorted(missing))} missing"
        for name in ("logprobs", "top_logprobs"):
            if each[name] is not None and len(each[name]) != len(each["token_ids"]):
                return f".{place}.{name}: not one a token"
    return None if completions else ": nothing sampled"


SPEC = Shape(_fields(_SPEC, _CHOSEN_BY, only=False), _spec_fits)
"""A game as it was decided on."""
HEAD = Shape(_fields(_HEAD, _LATER, only=False), _spec_fits, _head_fits)
"""A recorded game, whose turns may be missing."""
GAME = Shape(
    _fields({**_HEAD, "turns": _list(_TURN)}, _LATER, only=False),
    *(_spec_fits, _head_fits, _turns_fit),
)
"""A recorded game."""
SAMPLE = Shape(_fields({"game": _COUNT, "turn": _COUNT, "advantage": _FIGURE}, only=False))
"""A sample as it was trained on."""
_JUDGED = _fields(
    {
        **{"game": _COUNT, "seat": _SEAT_NUMBER, "turn": _or_none(_COUNT)},
        "rewards": core_schema.dict_schema(_TEXT, _REWARD),
    },
    only=False,
)
JUDGED = Shape(
    _fields(
        {},
        {"terms": _list(core_schema.dict_schema()), "game": _COUNT, "judged": _list(_JUDGED)},
        only=False,
    ),
    lambda record: None if {"terms", "game"} & record.keys() else "neither terms nor a game",
    lambda record: None if ("judged" in record) == ("game" in record) else "half of a game",
)
"""What terms said of a game when they were asked again, or which terms those are."""

# Documents

_RATING = _fields(
    {
        **{"player": _TEXT, "mu": _FIGURE, "sigma": _FIGURE},
        **dict.fromkeys(("games", "wins", "draws", "losses", "forfeits"), _COUNT),
    },
    only=False,
)
RATINGS = Shape(_fields({"players": _list(_RATING)}, only=False))
"""`ratings.json`."""
POLICIES = Shape(
    _fields({"games": core_schema.dict_schema(_TEXT, _list(_list(_FIGURE)))}, only=False)
)
"""A file of `policies/`."""
ENVIRONMENT = Shape(
    _fields(
        {"command": _or_none(_TEXT), "packages": core_schema.dict_schema(_TEXT, _TEXT)}, only=False
    )
)
"""`environment.json`."""

TRIAL = Shape(_fields({"trial": _TEXT, "digest": _TEXT}, only=False))
"""A line of a sweep's `trials.jsonl`."""
MEMBER = Shape(_fields({"member": _TEXT, "digest": _TEXT}, only=False))
"""A line of a league's `members.jsonl`."""
FAILURE = Shape(_fields({"run": _TEXT, "line": _TEXT}, only=False))
"""A line of `failures.jsonl`."""
DECISION = Shape(
    _fields(
        {
            "rung": _COUNT,
            "values": core_schema.dict_schema(_TEXT, _FIGURE),
            "kept": _list(_TEXT),
        },
        only=False,
    )
)
"""A line of `decisions.jsonl`."""

_GAMES_OF = _fields({"run": _TEXT, "files": core_schema.dict_schema(_TEXT, _COUNT)}, only=False)
OFFLINE = Shape(_fields({"runs": _list(_GAMES_OF)}, {"pairs": _TEXT}, only=False))
"""`offline.json`."""

_OBJECT = core_schema.dict_schema()
_ADAMW = _fields(
    {
        "state": core_schema.dict_schema(_INTEGER, _OBJECT),
        "param_groups": _list(_fields({"params": _list(_COUNT)}, only=False), least=1),
    },
    only=False,
)
_OPTIMIZER = _fields({"adamw": _ADAMW, "steps": _COUNT, "scale": _FIGURE}, only=False)
STATE = Shape(
    _fields(
        {
            **{"version": _COUNT, "bad_updates": _COUNT},
            **{"optimizer": _OPTIMIZER, "algorithm": _OBJECT},
        },
        only=False,
    )
)
"""A learner's state, but for what its algorithm keeps and for tensors."""

# Metrics

_TOGETHER: tuple[tuple[type[MetricKey], str, tuple[str, ...]], ...] = (
    (
        EvalKey,
        "score",
        ("low", "high", "games", "wins", "draws", "losses", "forfeits", "legal_moves"),
    ),
    (ExploitKey, "low", ("high",)),
    (RatingKey, "mu", ("sigma",)),
    (VersusKey, "games", ()),
    (WorstKey, "score", ("low", "high", "against", "games", "compared", "left_out")),
)
"""Of each kind of key: where the first figure has a value, the others have one too."""


def _row_fits(row: Record) -> str | None:
    for name, value in row.items():
        if value is not None and not is_figure(value):
            return f"{name}: no number that a run comes to"
    for name, others in _groups(tuple(row)):
        if row[name] is not None:
            missing = [other for other in others if row.get(other) is None]
            if missing:
                return f"{missing[0]}: missing beside {name.rpartition('/')[2]}"
    return None


def is_figure(value: Any) -> bool:
    """Whether it is a number that a run may come to, or a truth value."""
    return isinstance(value, int | float) and abs(value) < MOST


@lru_cache(maxsize=64)
def _groups(names: tuple[str, ...]) -> list[tuple[str, list[str]]]:
    """The names among these that bring others with them, with those."""
    found = []
    for name in names:
        for kind, first, others in _TOGETHER:
            if (parsed := kind.parse(name)) is not None and parsed[1] == first:
                found.append((name, [parsed[0].name(other) for other in others]))
    return found


METRICS = Shape(_fields({"version": _COUNT}, only=False), _row_fits)
"""A row of `metrics.jsonl`: every other value is a number or null."""
