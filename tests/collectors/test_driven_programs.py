"""The programs under examples/drivers, each run against an actor of this process."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from tests.collectors.test_driven import GAME, all_of, kuhn_specs
from tests.helpers.driven import Door, driven_actor
from unstable.drivers import TOKEN
from unstable.types import GameResult

EXAMPLES = Path(__file__).parents[2] / "examples" / "drivers"
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="there is no node to run examples/drivers/kuhn.mjs with")
async def test_kuhn_in_javascript(tmp_path):
    """Games of one seed are dealt alike, and the program ends with the run, without an error."""
    async with driven_actor(tmp_path, games=[{**GAME, "env": "driver"}]) as actor:
        door = Door(actor)
        assert NODE is not None and door.token
        program = await asyncio.create_subprocess_exec(
            *(NODE, str(EXAMPLES / "kuhn.mjs"), door.url, "4"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, TOKEN: door.token},
        )
        first = await all_of(actor, kuhn_specs(24))
        again = await all_of(actor, kuhn_specs(24))
    said, errors = await asyncio.wait_for(program.communicate(), 30)
    assert (program.returncode, said, errors) == (0, b"48 games played\n", b"")
    dealt: list[dict[int, tuple[int, str]]] = []
    for results in (first, again):
        dealt.append({})
        for result in results:
            assert isinstance(result, GameResult), result.error
            assert {abs(payoff) for payoff in result.payoffs} <= {1, 2} or result.forfeit is not None
            turn = result.turns[0]
            dealt[-1][result.spec.seed] = (turn.seat, turn.answer.observation)
    assert dealt[0] == dealt[1]
    assert len(set(dealt[0].values())) > 3, "the openers' cards and seats"
