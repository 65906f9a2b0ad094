"""Preparation of a config to run on its machines: check, plan, resolve, in this order."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from unstable.collectors.players import player_class
from unstable.commands.session import status
from unstable.config import ConfigError, GameConfig, ModelConfig, RunConfig
from unstable.config.endpoint import read_token
from unstable.engines.kinds import NEEDS
from unstable.games.catalog.vetted import known_defect
from unstable.games.check import check_constrained, check_game, check_moves, settled
from unstable.games.screen import ignores_seed, pays_losers
from unstable.games.services import (
    can_be_solved,
    is_zero_sum,
    lists_legal_moves,
    prompt_style,
    why_not_solved,
    with_teams,
)
from unstable.league.matchmaking import Matchmaker
from unstable.models.archive import made_for, misfit, unpack_newer
from unstable.models.base import check_model, model_path
from unstable.models.describe import model_line
from unstable.models.hub import cache_folder
from unstable.models.inspection import check_opponents, check_start
from unstable.models.templates import PLAIN, template_text
from unstable.planning.machine import Machine, this_machine, together
from unstable.planning.plan import Plan, plan
from unstable.planning.resolve import resolve
from unstable.rewards.terms import Rewards
from unstable.runtime.candidates import Candidates
from unstable.tracking.sinks import check_sinks

LORA_FOLDER = Path(__file__).resolve().parent.parent.parent / "lora_ckpt"
"""Folder to which the adapter shipped beside the package as a zip, if present, is unpacked."""


C = TypeVar("C", bound=RunConfig)


class Resolved(NamedTuple):
    """A config that is ready to run, without any "auto" that a plan decides."""

    config: RunConfig
    plan: Plan
    machine: Machine


def prepare(
    config: RunConfig, *, learner: bool = True, request_tokens: float | None = None
) -> Resolved:
    """Plan a config for its machines and resolve it by the plan; its games are `settled`.

    Without a learner, as in the evaluation of a finished run, actors get all resources.
    `request_tokens` is the mean length of requests, in tokens, that a run has measured.
    """
    config = settle(config)
    machines = machines_for(config)
    machine = together(machines)
    chosen = plan(config, machines, NEEDS, learner=learner, request_tokens=request_tokens)
    start = starting_adapter(config) if config.model.init == "auto" else config.model.init
    return Resolved(resolve(config, chosen, start), chosen, machine)


def machines_for(config: RunConfig) -> list[Machine]:
    """Return this machine, or the machines of the config's cluster, the driver's last.

    Shows a cluster on stderr; raises `ConfigError` if it lacks something.
    """
    if not config.cluster.is_joined:
        if "RAY_ADDRESS" in os.environ:
            status(
                "note: RAY_ADDRESS is set but ignored: the run starts its own Ray cluster; to join "
                "the existing one: --ray_address auto"
            )
        return [this_machine()]
    from unstable.runtime.survey import machines_of  # importing Ray takes a second

    return machines_of(config, status)


def settle(config: C) -> C:
    """Return the config with what its envs decide: teams, and the form of actions.

    A chat template's file becomes its text, which the run thus keeps. A command queries a game only
    after this function, or `check`, has found its env. Raises `ConfigError` for an env that is
    missing or cannot be made.
    """
    games = [settled(game, f"games.{index}") for index, game in enumerate(config.games)]
    template = config.model.chat_template
    if isinstance(template, str) and template != PLAIN:
        template = template_text(config.model) or template
    return config.updated({"games": games, "model.chat_template": template})


def alone(config: RunConfig) -> RunConfig:
    """Return the config without opponents in training and evaluation, but with its expert."""
    draw = {"opponents.draw.fixed": 0.0, "opponents.draw.self": 1.0}
    kept = config.opponents_among([])
    return config.updated({**draw, "opponents.fixed": kept, "eval.opponents": []})


def show_plan(resolved: Resolved) -> None:
    """Print the model on stderr, and the plan if it has GPUs or notes.

    Also prints where drivers take games, and which games fall back to another prompt style, have a
    known defect, or ignore their seed.
    """
    status(f"{'model':<9}{model_line(resolved.config.model, resolved.plan.dtype)}")
    if resolved.machine.gpus or resolved.plan.notes:
        status(resolved.plan.text())
    if (where := _where_taken(resolved)) is not None:
        status(where)
    for index, game in enumerate(resolved.config.games):
        for remark in _remarks(game, f"games.{index}"):
            status(remark)


def _remarks(game: GameConfig, field: str) -> Iterator[str]:
    """Yield lines that a user should know about a game."""
    if (defect := known_defect(game)) is not None:
        yield f"{field}.env = {game.env!r}: TextArena's game {defect}"
    if not game.is_driven and ignores_seed(game):
        yield (
            f"{field}.env = {game.env!r}: two games of one seed differ: groups and evaluation "
            "pairs get different deals, and runs are not reproducible; use the random module, or "
            "a generator seeded in reset"
        )
    if (game.payoffs or game.info) and not game.is_driven and pays_losers(game):
        yield (
            f"{field}.payoffs: in a random game, the seat with the lower payoff has the higher "
            "env reward; check the order of seats"
        )
    if game.prompt == "compact" and (style := prompt_style(game).name) != game.prompt:
        no_form = f"{game.key} has no compact form; its prompt style is {style!r}"
        yield f"{field}.prompt = 'compact': {no_form}"


def _where_taken(resolved: Resolved) -> str | None:
    """Return a line on where programs take their games; None if `listen.port` is 0."""
    games = [game.key for game in resolved.config.games if game.is_driven and not game.driver]
    listen = resolved.config.listen
    if not listen.port:
        return None
    if not games:
        unused = f"listen.port = {listen.port} is unused: no game has env: driver"
        return f"{'listen':<9}{unused}"
    return f"{'listen':<9}drivers take {', '.join(games)} at http://{listen.host}:{listen.port}"


def starting_adapter(config: RunConfig) -> str:
    """Return the shipped adapter's folder if it fits this model and a game, else "fresh"."""
    folder = LORA_FOLDER
    if not os.access(folder.parent, os.W_OK):  # a checkout of another user
        folder = cache_folder() / folder.name
    unpack_newer(LORA_FOLDER.with_suffix(".zip"), folder)
    if not folder.is_dir():
        return "fresh"
    if (known := made_for(folder)) and not any(game.env in known for game in config.games):
        return "fresh"
    problem = misfit(folder, config.model)
    if problem is None:
        return str(folder)
    # On stderr, since `unstable config` prints YAML on stdout.
    status(f"{folder} is not used; training starts with a fresh adapter: {problem}")
    return "fresh"


def base_folder(name: str) -> str:
    """Return a base model's folder, made if needed, for other programs; a hub's model's name.

    Raises `ConfigError` for a missing model.
    """
    model = ModelConfig(name=name)
    check_model(model)
    return model_path(model)


def check(config: RunConfig) -> None:
    """Raise `ConfigError` for a mistake that would fail later; loads no model."""
    check_driven(config)
    check_games(config)
    check_openings(config)
    check_exact_games(config)
    check_opponents_kl(config)
    check_sinks(config)
    Rewards(config.buffer.rewards, config.judges).check()
    Candidates(config).check()
    Matchmaker(config.opponents)
    check_model(config.model)
    if config.model.init not in ("auto", "fresh"):
        check_start(Path(config.model.init).expanduser(), config.model, "model.init")
    check_opponents(config)
    if (teacher := config.learner.algorithm.teacher.folder) is not None:
        field = "learner.algorithm.teacher.adapter"
        check_start(teacher, config.model, field, "one of the same shape")
    if config.learner.algorithm.target is not None:
        from unstable.runtime.local import LocalLearner

        LocalLearner.check(config)


def check_games(config: RunConfig) -> None:
    """Raise `ConfigError` for a game that cannot be played, or a player that cannot play it."""
    places = {o.key: f"opponents.fixed.{i}" for i, o in enumerate(config.opponents.fixed)}
    for index, game in enumerate(config.games):
        check_game(game, f"games.{index}")
        _check_expert(config, game, f"games.{index}", places)
        if config.eval.every and config.eval.constrained:
            check_constrained(game, f"games.{index}")
        if len(game.sides) > 1:
            for name, opponent in config.own_opponents.items():
                kind = player_class(opponent)
                kind.check(opponent, game, places.get(name, "eval.opponents"))


def _check_expert(config: RunConfig, game: GameConfig, field: str, places: dict[str, str]) -> None:
    """Raise `ConfigError` if a game's moves, or their expert's probabilities, are not available."""
    kept, name = config.moves_kept, config.sampling.expert
    if kept != "expert" or name == "expert":
        check_moves(game, kept, field)
        return
    check_moves(game, "legal", field)
    opponent = config.fixed_opponents[name]
    kind = player_class(opponent)
    if not kind.mixes:
        raise ConfigError(
            f"sampling.expert = {name!r}: states no probabilities of moves; name expert, rules, or "
            "an opponent of kind search or mcts"
        )
    kind.check(opponent, game, places.get(name, "sampling.expert"))


def check_driven(config: RunConfig) -> None:
    """Raise `ConfigError` for settings that do not apply to a game of an external program."""
    driven = [index for index, game in enumerate(config.games) if game.is_driven]
    if not driven:
        return
    index, game = driven[0], config.games[driven[0]]
    needs_env = {
        f"openings.share = {config.openings.share:g}": config.openings.share > 0,
        "groups.by = branch": config.groups.by == "branch",
        f"sampling.moves = {config.moves_kept}": config.moves_kept != "none",
        "eval.constrained = true": config.eval.every > 0 and config.eval.constrained,
        "actors.policy_refresh = turn": config.actors.policy_refresh == "turn",
        f"eval.votes = {config.eval.votes}": config.eval.every > 0 and config.eval.votes > 1,
        "eval.best_of": config.eval.every > 0 and config.eval.best_of.answers > 1,
    }
    for what, asked in needs_env.items():
        if asked:
            raise ConfigError(
                f"{what}: unsupported by games.{index}, {game.key}: an external driver plays it "
                "and gives no positions or legal moves; choose another setting"
            )
    listen = config.listen
    if listen.token_env is not None:
        read_token(listen.token_env, "listen.token_env")
    for index in driven:
        if config.games[index].driver is None and not listen.port:
            raise ConfigError(
                f"games.{index}.env = 'driver', but listen.port = 0: no driver can take the game; "
                "set listen.port, such as to 8100, or name the driver (driver:module:Class)"
            )
    if listen.port:
        from unstable.serving.server import bound_socket

        bound_socket(listen.host, listen.port, "listen.port").close()


def exact_games(config: RunConfig) -> list[str]:
    """Return the games whose exploitability is measured: the configured ones, or all solvable."""
    named = config.eval.exploitability.games
    return named or [game.key for game in config.games if can_be_solved(game)]


def check_exact_games(config: RunConfig) -> None:
    """Raise `ConfigError` if the config requests exploitability that cannot be computed."""
    if not config.eval.exploitability.every:
        return
    place = "eval.exploitability"
    for index, name in enumerate(config.eval.exploitability.games):
        if (why := why_not_solved(config.game_by_key[name])) is not None:
            raise ConfigError(f"{place}.games.{index} = {name!r}: {why}")
    if not exact_games(config):
        found = "; ".join(f"{game.key} {why_not_solved(game)}" for game in config.games)
        every = config.eval.exploitability.every
        raise ConfigError(
            f"{place}.every = {every}: no game of this run can be solved exactly; set it to 0 "
            f"({found})"
        )


def check_opponents_kl(config: RunConfig) -> None:
    """Raise `ConfigError` if `kl_opponents` is set and a game is not two-seat and zero-sum."""
    if not config.learner.algorithm.kl_opponents:
        return
    for index, game in enumerate(map(with_teams, config.games)):
        why = None
        if game.seats != 2 or len(game.sides) != 2:
            of_teams = " in teams" if game.teams else ""
            why = f"games.{index}.seats = {game.seats}{of_teams}"
        elif not is_zero_sum(game):
            why = f"the payoffs of {game.key} do not sum to 0"
        if why is not None:
            raise ConfigError(
                f"learner.algorithm.kl_opponents = true: {why}; it requires zero-sum games of two "
                "seats; leave it out"
            )


def check_openings(config: RunConfig) -> None:
    """Raise `ConfigError` for a game whose openings cannot be played, or leave no turn after."""
    openings = config.openings
    if not openings.share:
        return
    for index, game in enumerate(config.games):
        if openings.by == "random" and not lists_legal_moves(game):
            raise ConfigError(
                f"openings.by = 'random' in {game.key}: the game does not list its legal moves; "
                f"set games.{index}.legal_moves to module:function(env), or openings.by to start"
            )
        if openings.moves[1] >= game.max_turns:
            raise ConfigError(
                f"openings.moves = {openings.moves}: games.{index}.max_turns = {game.max_turns} "
                "leaves no turn after the opening; shorten openings.moves"
            )
