"""Configs are declared, documented, validated and dumped; each error is one line."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.helpers.mistakes import line_of, refused
from tests.helpers.rows import every_row
from unstable.cli import parse_options
from unstable.commands.prepare import check_exact_games
from unstable.config import CONFIGS, ConfigError, RunConfig, SFTRun, dump, load, load_as, parse
from unstable.config.base import Section
from unstable.config.plugins import load_target


def test_port_alone_keeps_other_listen_fields() -> None:
    for order in (1, -1):
        options = [("listen", 8100), ("listen.token_env", "A_TOKEN")][::order]
        listen = load("default", dict(options)).listen
        assert (listen.port, listen.token_env) == (8100, "A_TOKEN")
    for field, port in (("listen", 70000), ("listen.seats_port", 65536)):
        refused("less than or equal to 65535", load, "default", {field: port})


def test_dump_round_trips(tmp_path: Path) -> None:
    config = parse(
        {
            "games": [{"env": "Nim-v0", "args": {"piles": [1, 2]}}],
            "opponents": {"fixed": [{"kind": "python", "target": "a:B"}, {"kind": "expert"}]},
            "tracking": {"dashboard": "off"},
            "model": {"chat_template": {"enable_thinking": False}},
        }
    )
    file = tmp_path / "config.yaml"
    file.write_text(dump(config))
    assert load(str(file)) == config


def test_command_section_is_read_only_by_its_command(tmp_path: Path) -> None:
    config = load_as(SFTRun, "warm_start", {"sft.epochs": 9})
    assert (config.sft.epochs, config.sft.data[0].kind) == (9, "expert")
    file = tmp_path / "config.yaml"
    file.write_text(dump(config))
    assert load(str(file)) == config  # as for readers of a run's folder
    trained = load_as(RunConfig, str(file))
    assert type(trained) is RunConfig and trained.learner == config.learner


@every_row("name", *sorted(path.stem for path in CONFIGS.glob("*.yaml")))
def test_every_shipped_config_parses(name: str) -> None:
    assert isinstance(load(name), RunConfig)


@every_row("name", "tiny", "tiny_nim", "tiny_kuhn", "tiny_leduc")
def test_small_worlds_measure_exploitability_five_times(name: str) -> None:
    config = load(name)
    check_exact_games(config)
    assert config.eval.exploitability.every
    assert config.loop.steps // config.eval.exploitability.every >= 4, "plus one at the start"


def test_overrides_apply_at_every_depth() -> None:
    config = load(
        "default",
        {
            "learner.learning_rate": "2e-5",
            "games.0.env": "Nim-v0",
            "games.0.args.piles": [1, 2],
            "games.1.env": "SimpleTak-v0",
            "opponents.fixed.1.kind": "expert",
            "model.name": 7,
            "tracking.dashboard": False,
            "eval.opponents": "base",
        },
    )
    assert config.learner.learning_rate == 2e-5
    assert [game.env for game in config.games] == ["Nim-v0", "SimpleTak-v0"]
    assert config.games[0].args == {"piles": [1, 2]}
    assert [opponent.key for opponent in config.opponents.fixed] == ["random", "expert"]
    assert config.model.name == "7"
    assert config.tracking.dashboard == "off"
    assert config.eval.opponents == ["base"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"lerner": {}}, "unknown key 'lerner'; did you mean 'learner'?"),
    ({"learner": {"epoch": 1}}, "learner: unknown key 'epoch'; did you mean 'epochs'?"),
    (
        {"learner": {"batch_size": 10, "steps_per_batch": 11}},
        "learner.steps_per_batch = 11: greater than batch_size = 10; lower learner.steps_per_batch",
    ),
    (
        {"learner": {"algorithm": {"name": "rft", "kl_reward": 0.1}}},
        "learner.algorithm.kl_reward = 0.1: has no effect in rft, which imitates won turns "
        "regardless of reward; set learner.algorithm.kl_loss instead",
    ),
    ({"learner": {"epochs": 0}}, "learner.epochs = 0: input should be greater than 0"),
    (
        {
            "model": {"adapter": "none"},
            "learner": {
                "parallel": "fsdp",
                "algorithm": {"name": "vrpo", "critic": {"kind": "adapter"}},
            },
        },
        "learner.algorithm.critic.kind = 'adapter': unsupported with sharded weights; set "
        "learner.algorithm.critic.kind to network, or learner.parallel to ddp",
    ),
    (
        {"sampling": {"top_p": 0.9}},
        "sampling: unknown key 'top_p'; use one of expert, max_prompt_tokens, max_tokens, "
        "moves, temperature, thoughts",
    ),
    (
        {"eval": {"opponents": ["randm"]}},
        "eval.opponents.0 = 'randm': unknown opponent; did you mean 'random'?",
    ),
    (
        {"opponents": {"fixed": [{"kind": "randm"}]}},
        "opponents.fixed.0.kind = 'randm': unknown kind of opponent; did you mean 'random'?",
    ),
    (
        {"opponents": {"fixed": [{"kind": "python"}]}},
        "opponents.fixed.0.target: missing; set it",
    ),
    (
        {"opponents": {"fixed": []}},
        "opponents.draw.fixed = 0.15: opponents.fixed is empty; "
        "list an opponent there or set opponents.draw.fixed to 0",
    ),
    (
        {"opponents": {"fixed": [{"kind": "random", "name": "main@0"}]}},
        "opponents.fixed.0.name = 'main@0': reserved name; choose another",
    ),
    (
        {"opponents": {"draw": {"self": 0, "past": 0, "fixed": 0}}},
        "opponents.draw: all shares are 0; set self, past or fixed above 0",
    ),
    (
        {"games": [{"env": "A-v0"}, {"env": "A-v0"}]},
        "games: duplicate name 'A-v0'; rename one of the entries",
    ),
    (
        {"buffer": {"capacity": 64}},
        "buffer.capacity = 64: less than learner.batch_size = 128; raise buffer.capacity",
    ),
    (
        {"actors": {"max_loras": 4, "max_cpu_loras": 2}},
        "actors.max_cpu_loras = 2: less than actors.max_loras = 4; raise actors.max_cpu_loras",
    ),
]


@every_row("data, message", *WRONG)
def test_config_errors_are_one_line_with_remedy(data: dict[str, Any], message: str) -> None:
    assert line_of(parse, data) == message


def test_override_below_null_makes_its_section(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("learner: {algorithm: {name: ppo, critic: null}}")
    kind = {"learner.algorithm.critic.kind": "adapter"}
    assert load(str(path), kind).learner.algorithm.critic.kind == "adapter"


@every_row(
    "overrides, message",
    ({"games.3.env": "X"}, "'3': invalid list index; use 0 to 1"),
    ({"seed.x": 1}, "seed.x: seed is a single value without fields; set seed"),
)
def test_invalid_override_paths_are_rejected(overrides: dict[str, Any], message: str) -> None:
    assert line_of(load, "default", overrides) == message


@every_row("text", "- 1", "a: [", "3")
def test_invalid_config_files_are_rejected(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    refused("^--config = ", load, str(file))


@every_row("text", "Infinity", "-Infinity", "NaN", "inf", "nan", "1e999", "1e400")
@every_row(
    "path",
    *("learner.learning_rate", "learner.algorithm.kl_reward", "learner.algorithm.reward_clip.1"),
    *("games.0.invalid_moves.forfeit_reward", "games.0.args.piles", "buffer.rewards.0.weight"),
    *("sampling.temperature", "opponents.draw.self", "eval.temperature", "seed"),
    *("guard.thresholds.score", "loop.max_time"),
)
def test_non_finite_numbers_are_rejected(path: str, text: str) -> None:
    base = {"learner.algorithm.reward_clip": [0.0, 1.0]}
    given = parse_options([f"--{path}={text}"], {})
    if path == "games.0.args.piles" and isinstance(given[path], str):
        return  # text, which a game may accept
    refused(f"^{re.escape(path)}.* = .*: input should be a", load, "default", {**base, **given})


def test_load_suggests_shipped_names_and_takes_ragged_batches() -> None:
    """Batches may be ragged, since they hold whole groups."""
    options = {"learner.batch_size": 100, "learner.micro_batch_size": 16}
    assert load("default", {**options, "learner.steps_per_batch": 3}).learner.batch_size == 100
    refused("did you mean 'default'", load, "defualt")


def test_target_errors_name_the_field() -> None:
    assert load_target("pathlib:Path", "field") is Path
    for target, words in {
        "pathlib:Pth": "field = 'pathlib:Pth': pathlib has no Pth; did you mean 'Path'?",
        "pathlib": "field = 'pathlib': not a target; write package.module:name",
    }.items():
        assert line_of(load_target, target, "field") == words
    line = "^field = 'no_such:x': cannot import no_such .* PYTHONPATH$"
    refused(line, load_target, "no_such:x", "field")


def fields_of(model: type[BaseModel]) -> list[tuple[str, str | None]]:
    return [(f"{model.__name__}.{n}", f.description) for n, f in model.model_fields.items()]


def sections_below(section: type[Section]) -> Iterator[type[Section]]:
    for each in section.__subclasses__():
        yield each
        yield from sections_below(each)


def test_every_field_is_documented() -> None:
    """A section needs no sentence of its own; every value in it does."""
    kinds = [*sections_below(Section)]
    silent = {name for kind in kinds for name, text in fields_of(kind) if not text}
    sections = {
        name
        for kind in kinds
        for name, f in zip((n for n, _ in fields_of(kind)), kind.model_fields.values(), strict=True)
        if isinstance(f.default, BaseModel)
    }
    discriminators = {name for name in silent if name.endswith(".kind")}
    assert silent - sections - discriminators == set()


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=5), max_size=3))
def test_arbitrary_input_parses_or_fails_in_one_line(data: dict[str, Any]) -> None:
    try:
        config = parse(data)
    except ConfigError as error:
        assert str(error)
        assert len(str(error).splitlines()) == 1
    else:
        assert yaml.safe_load(dump(config))
