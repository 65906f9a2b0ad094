"""Seats that call tools: what an answer's limit is of, and what happens where it cannot go on."""

from typing import Any

from tests.helpers.driven import TOOLS, Open, one_game


async def said(game: Open, chat: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Request a reply of seat 0 and append its message to the chat."""
    seat = game.told["seats"][0]
    body = {"model": "any", "tools": TOOLS, "messages": chat, "return_token_ids": True, **more}
    reply = await game.door.post(f"{seat['base_url']}/chat/completions", seat["api_key"], body)
    assert reply.status_code == 200, reply.text
    (choice,) = reply.json()["choices"]
    chat.append(choice["message"])
    found: dict[str, Any] = choice
    return found


def asked() -> list[dict[str, Any]]:
    return [{"role": "user", "content": "2 + 2?"}]


def output(text: str = "4") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "1", "content": text}


async def test_max_tokens_limits_each_call(tmp_path):
    async with one_game(tmp_path, sampling={"max_tokens": 200}) as game:
        chat = asked()
        for _ in range(3):
            choice = await said(game, chat, max_tokens=3)
            assert 1 <= len(choice["token_ids"]) <= 3
            chat.append(output())
        await game.end(payoffs=[0, 0])
        (turn,) = (await game.result()).turns
        assert turn.answer.sampled is not None
        assert [each.scored for each in turn.answer.sampled.segments] == [True, False] * 2 + [True]


async def test_answer_at_max_tokens_is_cut_and_kept_unchanged(tmp_path):
    async with one_game(tmp_path, sampling={"max_tokens": 60}) as game:
        chat = asked()
        first = await said(game, chat, max_tokens=3)
        chat.append(output("a long output " * 10))
        cut = await said(game, chat)
        assert (cut["finish_reason"], cut["message"]["content"]) == ("length", "")
        await game.end(payoffs=[0, 0])
        (turn,) = (await game.result()).turns
        assert turn.answer.sampled is not None
        assert turn.answer.sampled.token_ids == first["token_ids"]


async def test_changed_template_prefix_starts_a_new_turn(tmp_path):
    """A template that renders the chat's length starts a new turn, and the first turn is kept."""
    template = "{{ messages | length }}{% for m in messages %}{{ m.content }}<eos>{% endfor %}"
    model = {"name": "tiny_cards", "init": "fresh", "dtype": "float32", "chat_template": template}
    async with one_game(tmp_path, model=model, sampling={"max_tokens": 60}) as game:
        chat = asked()
        first = await said(game, chat, max_tokens=3)
        chat.append(output())
        second = await said(game, chat, max_tokens=3)
        await game.end(payoffs=[0, 0])
        turns = (await game.result()).turns
        ids = [turn.answer.sampled.token_ids for turn in turns if turn.answer.sampled]
        assert ids == [first["token_ids"], second["token_ids"]]


async def test_template_error_is_reported_without_a_turn(tmp_path):
    template = "{% if messages | length > 2 %}{{ raise_exception('one word only') }}{% endif %}"
    template += "{% for m in messages %}{{ m.content }}{% endfor %}"
    model = {"name": "tiny_cards", "init": "fresh", "dtype": "float32", "chat_template": template}
    async with one_game(tmp_path, model=model) as game:
        seat = game.told["seats"][0]
        body = {"model": "any", "messages": [*asked(), *asked(), *asked()]}
        url = f"{seat['base_url']}/chat/completions"
        refused = await game.door.post(url, seat["api_key"], body)
        assert refused.status_code == 400 and "one word only" in refused.text
        await said(game, asked(), tools=[])
        await game.end(payoffs=[0, 0])
        assert len((await game.result()).turns) == 1


async def test_tool_output_is_an_unscored_segment(tmp_path):
    """An answer that goes on after a tool's output is one turn of three segments."""
    async with one_game(tmp_path, sampling={"max_tokens": 200}) as game:
        door, seat = game.door, game.told["seats"][0]
        url, key = f"{seat['base_url']}/chat/completions", seat["api_key"]
        chat: list[dict[str, Any]] = [{"role": "user", "content": "2 + 2?"}]
        body = {"model": "any", "tools": TOOLS, "max_tokens": 5}
        first = (await door.post(url, key, {**body, "messages": chat})).json()
        chat.append(first["choices"][0]["message"])
        chat.append({"role": "tool", "tool_call_id": "1", "content": "4 is the sum"})
        body = {**body, "max_tokens": 120, "return_token_ids": True}
        second = (await door.post(url, key, {**body, "messages": chat})).json()
        await door.ask(seat, "and another question")
        await game.end(payoffs=[0, 0])
        long, other = (await game.result()).turns
        sampled = long.answer.sampled
        assert sampled is not None
        one, inserted, two = sampled.segments
        assert one.scored and not inserted.scored and two.scored
        assert "4 is the sum" in long.answer.text and long.answer.text.index("4 is") > 0
        assert sampled.scored_ids == [*one.token_ids, *two.token_ids]
        assert len(sampled.logprobs) == sampled.num_scored
        assert second["prompt_token_ids"] == [
            *sampled.prompt_ids,
            *one.token_ids,
            *inserted.token_ids,
        ]
        assert second["choices"][0]["token_ids"] == two.token_ids
        assert other.index == 1 and other.answer.sampled is not None
        assert len(other.answer.sampled.segments) == 1


async def test_user_message_starts_a_new_turn(tmp_path):
    async with one_game(tmp_path) as game:
        door, seat = game.door, game.told["seats"][0]
        url, key = f"{seat['base_url']}/chat/completions", seat["api_key"]
        chat: list[dict[str, Any]] = [{"role": "user", "content": "2 + 2?"}]
        body: dict[str, Any] = {"model": "any", "stream": False}
        first = (await door.post(url, key, {**body, "messages": chat})).json()
        chat += [first["choices"][0]["message"], {"role": "user", "content": "Sure?"}]
        await door.post(url, key, {**body, "messages": chat})
        await game.end(payoffs=[0, 0])
        assert len((await game.result()).turns) == 2


async def test_seat_streams_and_rejects_unsupported_parameters(tmp_path):
    async with one_game(tmp_path) as game:
        door, seat = game.door, game.told["seats"][0]
        streamed = await door.ask(seat, "a question", stream=True)
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert streamed.text.rstrip().endswith("data: [DONE]")
        for wrong, name in (({"n": 2}, "n"), ({"top_p": 0.5}, "top_p")):
            refused = await door.ask(seat, "a question", **wrong)
            assert refused.status_code == 400 and refused.json()["error"]["param"] == name
        long = await door.ask(seat, "word " * 5000)
        assert long.status_code == 400 and "sampling.max_prompt_tokens" in long.text
        await game.end(payoffs=[0, 0])
        assert len((await game.result()).turns) == 1
