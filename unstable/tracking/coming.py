"""What a run's panes will show, said in them before there is anything to show."""

from unstable.config import RunConfig
from unstable.records.text import number

Facts = dict[str, str]


def players_to_come(config: RunConfig) -> Facts:
    """Who is met, and how often."""
    draw = config.opponents.draw
    shares = {"itself": draw.self, "past versions": draw.past}
    found = {name: f"{number(share)} of the draws" for name, share in shares.items() if share}
    for opponent in config.opponents.fixed:
        found[opponent.key] = f"one of {number(draw.fixed)} of the draws" if draw.fixed else "–"
    return found


def learning_to_come(config: RunConfig) -> Facts:
    """How it is learned."""
    learner = config.learner
    return {
        "first figures": "after the first update",
        "algorithm": learner.algorithm.name,
        "turns an update": f"{learner.batch_size:,}",
        "learning rate": number(learner.learning_rate),
        "LoRA's rank": f"{config.model.adapter.rank}",
    }


def evaluation_to_come(config: RunConfig) -> Facts:
    """What is evaluated, and when."""
    found, given = {}, config.eval
    if given.every:
        found = {
            "evaluation": f"each {given.every} updates, from version 0 on",
            "games": f"{given.games:,} against each opponent",
            "against": ", ".join(given.opponents),
        }
    if given.exploitability.every:
        found["exploitability"] = f"each {given.exploitability.every} updates"
    return found or {"evaluation": "none is asked for"}
