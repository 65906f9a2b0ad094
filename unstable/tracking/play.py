"""Metrics `collect/*` and `judge/*` of finished training games, from their tallies.

Each name is explained in `docs/metrics.md`. Names that depend on the run (an env, an opponent, a
reward term) are in every row from the first on, as far as the config determines them.
"""

import math

from unstable.config import LLMOracle, RunConfig
from unstable.tracking.metrics import Row
from unstable.types.metrics import VersusKey, metric_name, part, versus_name
from unstable.types.play import OPENED, PlayTally, entropy

COUNTS = [
    *("games", "turns", "trained_turns", "tokens", "cut_characters"),
    *("forfeits", "truncated", "draws", "failures", "above_scale"),
]
MEANS = [
    *("reward", "game_length", "prompt_length", "completion_length", "thought_length"),
    *("action_length", "thought_ended_share", "format_share", "invalid_share", "length_share"),
    *("prompt_cut_share", "prompt_cut_tokens"),
    *("seconds_per_game", "seconds_per_turn", "seconds_per_character"),
]
ASKED = ["asked", "calls", "hits", "failures", "retried"]
"""Counts of a reward term that waits for answers."""
TOKENS = ["prompt_tokens", "reply_tokens"]
"""Additional counts of a language model as judge."""


class PlayMetrics:
    """Rows of metrics from finished training games; `tally` has the games since the last `take`.

    Once a row has a name, all later rows have it, as 0 or None if there is no value.
    """

    def __init__(self, config: RunConfig) -> None:
        fixed = [part(opponent.key) for opponent in config.opponents.fixed]
        alone = ["alone"] if any(len(game.sides) == 1 for game in config.games) else []
        self._labels = [*alone, "self", "others", "past", "fixed", *fixed]
        judged = config.judged_terms
        asked = {key: judge.oracle for key, judge in judged.items()}
        self._judges = {key: llm for key, llm in asked.items() if isinstance(llm, LLMOracle)}
        counts = [
            *(f"collect/{name}" for name in COUNTS),
            *(VersusKey(label).name("games") for label in self._labels),
            *(metric_name("collect/raised", game.key) for game in config.games),
            *(metric_name("judge", term, name) for term in judged for name in ASKED),
            *(metric_name("judge", term, name) for term in self._judges for name in TOKENS),
        ]
        shares = ("share", "win", "draw", "loss", "forfeit")
        seats = [(game.key, seat) for game in config.games for seat in range(game.seats)]
        means = [
            *(f"collect/{name}" for name in MEANS),
            *(metric_name("collect/reward", reward.key) for reward in config.buffer.rewards),
            *(metric_name("judge", term, "seconds") for term in judged),
            *(VersusKey(label).name(share) for label in self._labels for share in shares),
            *(metric_name("collect/outcome", *seat) for seat in seats),
        ]
        self._counts, self._means = dict.fromkeys(counts), dict.fromkeys(means)
        self._envs = [game.key for game in config.games]
        self.tally = PlayTally.empty()

    def take(self, seconds: float) -> Row:
        """Return `collect/*` and `judge/*` of the games since the last call, `seconds` ago."""
        tally, self.tally = self.tally, PlayTally.empty()
        opened = tally.counts.pop(OPENED, 0)
        shares = {versus_name(label, "share"): opened for label in self._labels}
        sums: dict[str, tuple[float, float]] = {
            name: (math.fsum(each), len(each)) for name, each in tally.values.items()
        }
        for name, total in tally.totals.items():
            sums[name] = total, tally.weights[name] or shares.get(name, 0)
        self._counts |= dict.fromkeys(tally.counts)
        self._means |= dict.fromkeys([*tally.totals, *tally.values])
        row: Row = {name: tally.counts.get(name, 0) for name in self._counts}
        for name in self._means:
            total, weight = sums.get(name, (0.0, shares.get(name, 0)))
            row[name] = total / weight if weight else None
        for name in ("games", "turns"):
            row[f"collect/{name}_per_second"] = (row[f"collect/{name}"] or 0) / seconds
        for env in self._envs:
            sequences = tally.sequences.get(env, [])
            row[metric_name("collect/action_entropy", env)] = entropy(tally.actions.get(env, {}))
            row[metric_name("collect/distinct_games", env)] = (
                len(set(sequences)) / len(sequences) if sequences else None
            )
        for term, judge in self._judges.items():
            prompt, reply = (row[metric_name("judge", term, name)] or 0 for name in TOKENS)
            spend = prompt * judge.price_prompt + reply * judge.price_reply
            row[metric_name("judge", term, "spend")] = spend / 1e6
        return row
