"""League files: round trip, and invalid files reported in one line."""

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.mistakes import line_of
from tests.helpers.rows import every_row
from unstable.config.reading import dump_section
from unstable.studies.league.config import LeagueConfig, MeetConfig, MemberConfig, read_league

LEAGUE = "members: {main: {}}\ngenerations: 2\nupdates: 3\n"
NAMES = st.sampled_from(["main", "a-1", "b+", "Rival"])


def read(text: str) -> LeagueConfig:
    return read_league(text, "a.yaml")


@given(
    names=st.sets(NAMES, min_size=1),
    meet=st.builds(MeetConfig, rule=st.sampled_from(["uniform", "pfsp"]), newest=st.just(3)),
    turns=st.sampled_from(["alternate", "together"]),
)
def test_written_league_is_read_back(names: set[str], meet: MeetConfig, turns: str) -> None:
    members = {name: MemberConfig(fields={"learner.epochs": 2}) for name in sorted(names)}
    league = LeagueConfig.model_validate(
        {"members": members, "generations": 2, "updates": 3, "meet": meet, "turns": turns}
    )
    assert read(dump_section(league)) == league


def test_roles_set_draws_and_members_set_fields() -> None:
    text = LEAGUE.replace("main: {}", "main: {}, e: {role: exploiter}, l: {role: league_exploiter}")
    members = read(text).members
    assert [each.restarts for each in members.values()] == ["never", "each", "won"]
    assert [each.shares.self > 0 for each in members.values()] == [True, False, False]
    own = read(text.replace("role: exploiter}", "role: exploiter, restart: won, draw: {self: 1}}"))
    assert own.members["e"].restarts == "won" and own.members["e"].shares.self == 1
    league = read(
        "members: {a: {fields: {learner.learning_rate: 1e-3}}, b: {}}\n"
        "common: {learner.learning_rate: 2.0e-3, x: 1}\ngenerations: 1\nupdates: 3\n"
    )
    assert league.fields("a") == {"learner.learning_rate": 0.001, "x": 1, "loop.steps": 3}
    assert league.fields("b")["learner.learning_rate"] == 0.002


MAIN = "main: {}"
MISTAKES = [
    (MAIN, "mian: {role: mian}", "members.mian.role = 'mian': input should be 'main', 'exploiter'"),
    (MAIN, "main: {fields: {seed: 1}}", "members.main.fields.seed: derived from the league's seed"),
    (MAIN, "main: {fields: {opponents.draw.self: 1}}", "members.main.fields.opponents.draw.self: "),
    (MAIN, "main: {restart: each}", "members.main.restart = 'each': a main never restarts; remo"),
    (MAIN, "main: {against: [b]}, b: {}", "members.main.against = ['b'] applies to exploiters,"),
    (MAIN, "main: {draw: {self: 0, past: 0, fixed: 0}}", "members.main.draw = all zero; set "),
    (MAIN, "main: {draw: {self: 0, past: 0}}", "members: no member has an opponent in generatio"),
    (MAIN, "e: {role: exploiter}", "members.e.role = 'exploiter': no member has role main; list"),
    (MAIN, "main: {}, e: {role: exploiter, against: [mian]}", "members.e.against = 'mian': not "),
    (MAIN, "1st: {}", "members: invalid name '1st'; start with a lette"),
    ("updates: 3", "updates: 0", "updates = 0: input should be greater than 0"),
    ("generations: 2\n", "", "generations is missing; give it a value"),
    ("generations: 2", "generation: 2", "unknown key 'generation'; did you mean 'generations'?"),
    ("updates: 3", "updates: 3\nat_once: 2", "at_once = 2: conflicts with turns = 'alternate',"),
    ("updates: 3", "updates: 3\nmeet: {rule: psfp}", "meet.rule = 'psfp': input should be 'unif"),
    ("updates: 3", "updates: 3\ncommon: {loop.steps: 9}", "common.loop.steps: set by the league'"),
]


@every_row("old, new, said", *MISTAKES)
def test_invalid_file_is_reported_in_one_line(old: str, new: str, said: str) -> None:
    assert line_of(read, LEAGUE.replace(old, new)).startswith(f"a.yaml: {said}")
