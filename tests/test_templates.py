"""Rollouts under the chat templates of Qwen2.5, Qwen3 and Llama 3.1, in tokenizers of bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import Environment
from rlvr_debug.environments.calculator import synthetic_calculator
from rlvr_debug.environments.gsm8k import synthetic_gsm8k
from rlvr_debug.environments.musique.rows import synthetic_musique
from rlvr_debug.errors import InputError
from rlvr_debug.evaluation import evaluate
from rlvr_debug.grpo.loss import build_batch, trained_sequence
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.sampling.base import Request, Sample
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import rollout, written
from rlvr_debug.sampling.tool_calls import PARSERS
from tests.families import TEMPLATES, byte_tokenizer, template_of


@pytest.fixture(scope="session")
def chats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Chat]:
    built = {}
    for name, (end, specials) in TEMPLATES.items():
        folder = tmp_path_factory.mktemp(name)
        byte_tokenizer(template_of(name), end, specials).save_pretrained(folder)
        built[name] = Chat(folder)
    return built


family = pytest.mark.parametrize("name", TEMPLATES)
THOUGHT = "<think>\nI should look.\n</think>\n\n"


def call_in(chat: Chat, name: str, arguments: dict[str, Any]) -> str:
    """A tool call as the family writes it."""
    if chat.parser == "hermes":
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
    return json.dumps({"name": name, "parameters": arguments})


class Recorder:
    """Says what a function of row and turn says, and keeps what it was asked."""

    def __init__(self, chat: Chat, say: Callable[[Any, int], str]) -> None:
        self.chat, self.say = chat, say
        self.requests: list[Request] = []
        self._turns: dict[int, list[int]] = {}  # lengths that each slot was asked with

    def sample(
        self, requests: list[Request], *, temperature: float, max_new_tokens: int, seed: int
    ) -> list[Sample]:
        self.requests += requests
        samples = []
        for request in requests:
            # a conversation that is no longer than an earlier one has begun again
            turns = self._turns.setdefault(request.slot, [])
            turns[:] = [n for n in turns if n < len(request.ids)]
            turn = len(turns)
            turns.append(len(request.ids))
            ids = [*self.chat.encode(self.say(request.row, turn)), self.chat.eos_id]
            samples.append(Sample(ids, [0.0] * len(ids), stopped=True))
        return samples


ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "musique": {
        "retrieval": "bm25",
        "top_n": 2,
        "max_turns": 4,
        "max_new_tokens": 99,
        "weights": {"exact_match": 0.9, "recall": 1.0, "citation": 0.6},
    },
    "gsm8k": {"max_new_tokens": 99, "weights": {"correct": 1.0}},
    "calculator": {"max_turns": 3, "max_new_tokens": 99, "weights": {"correct": 1.0}},
}


def rows_of(environment: str) -> list[Any]:
    if environment == "gsm8k":
        return list(synthetic_gsm8k(3, steps={1: 0.5, 2: 0.5}, seed=0))
    if environment == "calculator":
        return list(synthetic_calculator(3, steps={1: 0.5, 3: 0.5}, seed=0))
    return list(synthetic_musique(3, hops={2: 1}, paragraphs=6, same_relation=0.5, seed=0))


def script_of(environment: str, chat: Chat) -> Callable[[Any, int], str]:
    """Right for the first row, wrong for the others: with a bad call, with nothing but a thought."""

    def gsm8k(row: Any, turn: int) -> str:
        return THOUGHT + (row.answer if row.id.endswith("0") else "#### -1")

    def musique(row: Any, turn: int) -> str:
        hops = row.question_decomposition
        if row.id.endswith("2") and turn == 0:
            return f"{THOUGHT}{call_in(chat, 'search', {'query': 'no such tool'})}"
        if turn < len(hops):
            entity = hops[0].question.split(" >> ")[0] if turn == 0 else hops[turn - 1].answer
            return THOUGHT + call_in(chat, "retrieve_documents", {"query": entity})
        answer = row.answer if row.id.endswith("0") else "nobody"
        return f"{THOUGHT}<answer>{answer}</answer>\n<cite>[{row.supporting[0]}]</cite>"

    def calculator(row: Any, turn: int) -> str:
        if turn == 0:
            wrong = row.id.endswith("2")
            return THOUGHT + call_in(
                chat, "calculate", {"expression": "1/0" if wrong else row.answer}
            )
        return f"{THOUGHT}<answer>{row.answer if row.id.endswith('0') else 'many'}</answer>"

    return {"gsm8k": gsm8k, "musique": musique, "calculator": calculator}[environment]


@family
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_training_and_evaluation_ask_with_the_same_tokens_and_score_the_same(
    chats: dict[str, Chat], name: str, environment: str
) -> None:
    chat, rows = chats[name], rows_of(environment)
    built: Environment = build_environment(environment, ENVIRONMENTS[environment])
    evaluated = Recorder(chat, script_of(environment, chat))
    summary = evaluate(rows, built, chat, evaluated, temperature=1.0, seed=0)
    trained = Recorder(chat, script_of(environment, chat))
    rollouts = rollout(rows, built, chat, trained, temperature=1.0, seed=5)

    asked = [(r.slot, r.ids) for r in trained.requests]
    assert asked * 2 == [(r.slot, r.ids) for r in evaluated.requests]
    assert len({current.reward for current in rollouts}) > 1
    for kind in ("sampled", "greedy"):
        assert summary[kind]["reward"] == sum(r.reward for r in rollouts) / len(rows)
        for part, mean in summary[kind]["parts"].items():
            assert mean == sum(r.parts[part] for r in rollouts) / len(rows)
    for current in rollouts:
        ids, sampled = trained_sequence(current, Stages(), built, chat)
        assert (ids, sampled) == (current.ids, current.sampled)
        # it never forks, though the template would render its past otherwise
        for request in trained.requests:
            assert request.row.id != current.row.id or ids[: len(request.ids)] == request.ids
        if environment == "musique":
            assert chat.decode(ids).count("I should look.") == current.turns > 1


@family
def test_what_a_tool_says_is_never_trained_on(chats: dict[str, Chat], name: str) -> None:
    """Not even a perfect answer, word for word as the model's own."""
    chat, row = chats[name], rows_of("musique")[0]
    answer = f"<answer>{row.answer}</answer>"
    planted = tuple(
        replace(p, paragraph_text=f"{p.paragraph_text} {answer}") for p in row.paragraphs
    )
    sampler = Recorder(chat, script_of("musique", chat))
    built = build_environment("musique", ENVIRONMENTS["musique"])
    planted_row = replace(row, paragraphs=planted)
    [found] = rollout([planted_row], built, chat, sampler, temperature=1.0, seed=0)
    batch = build_batch([found], Stages(), built, chat)
    assert batch.loss[0].tolist() == found.sampled
    assert answer in chat.decode(
        [t for t, on in zip(found.ids, found.sampled, strict=True) if not on]
    )
    assert chat.decode(batch.ids[0][batch.loss[0]].tolist()).count(answer) == 1  # its own


def test_qwen3_s_template_drops_earlier_thinking_once_a_user_speaks_again(
    chats: dict[str, Chat],
) -> None:
    conversation = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": f"{THOUGHT}Ada."},
    ]
    said = chats["qwen3"].render(conversation, [], generate=False)
    asked = [*conversation, {"role": "user", "content": "Sure?"}]
    assert "I should look." in said
    assert "I should look." not in chats["qwen3"].render(asked, [], generate=False)


results = st.lists(st.text(max_size=20), min_size=1, max_size=3)


@family
@given(results, st.text(max_size=20))
def test_a_tool_turn_is_what_the_template_renders_after_a_call(
    chats: dict[str, Chat], name: str, contents: list[str], query: str
) -> None:
    chat = chats[name]
    call = {"name": "f", "arguments": {"query": query}}
    messages: list[Any] = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": call}]},
        *({"role": "tool", "content": content} for content in contents),
    ]
    whole = chat.encode(chat.render(messages, [], generate=True))
    turn = [chat.eos_id, *chat.tool_turn(contents)]
    assert whole[-len(turn) :] == turn


@family
def test_a_reply_ends_where_the_template_ends_one_and_begins_where_it_asks_for_one(
    chats: dict[str, Chat], name: str
) -> None:
    chat = chats[name]
    asked: list[Any] = [{"role": "user", "content": "Who?"}]
    said: list[Any] = [*asked, {"role": "assistant", "content": "Ada."}]
    before = chat.render(asked, [], generate=True)
    whole = chat.render(said, [], generate=False)
    # Qwen3's writes an empty thought before a reply that has none
    reply = whole.removeprefix(before).replace("<think>\n\n</think>\n\n", "")
    assert reply.startswith(f"Ada.{TEMPLATES[name][0]}")
    assert before.endswith(chat.generation_prompt())
    assert chat.decode([*chat.encode("Ada."), chat.eos_id]) == "Ada."


def test_a_turn_ends_with_every_token_that_the_model_s_config_names(tmp_path: Path) -> None:
    """Llama 3 ends some calls with <|eom_id|>: without it, such a reply would run into the limit."""
    end, specials = TEMPLATES["llama3_1"]
    tokenizer = byte_tokenizer(template_of("llama3_1"), end, specials)
    tokenizer.save_pretrained(tmp_path)
    assert Chat(tmp_path).ends == {tokenizer.eos_token_id}
    [other] = tokenizer.convert_tokens_to_ids(["<|eom_id|>"])
    told = {"eos_token_id": [tokenizer.eos_token_id, other]}
    (tmp_path / "config.json").write_text(json.dumps(told))
    chat = Chat(tmp_path)
    assert chat.ends == {tokenizer.eos_token_id, other}
    call = call_in(chat, "f", {"q": 1})
    assert chat.decode([*chat.encode(call), other]) == call
    reply, turn = [*chat.encode(call), other], chat.tool_turn(["3"])
    assert written([*reply, *turn, *reply], chat) == [True] * len(reply) + [False] * len(turn) + [
        True
    ] * len(reply)


def test_a_prompt_does_not_depend_on_the_day(
    chats: dict[str, Chat],
) -> None:
    """Llama 3.2's template writes today's date where nobody names another."""
    messages: list[Any] = [{"role": "user", "content": "Who?"}]
    assert "strftime_now" in str(chats["llama3_2"].tokenizer.chat_template)
    said = chats["llama3_2"].render(messages, [], generate=True)
    assert said == chats["llama3_1"].render(messages, [], generate=True)


def test_a_template_without_tools_is_refused_where_there_are_tools(tmp_path: Path) -> None:
    byte_tokenizer("{{ messages[0].content }}", "<e>", ("<b>",)).save_pretrained(tmp_path)
    chat, messages = Chat(tmp_path), [{"role": "user", "content": "Who?"}]
    assert chat.decode(chat.prompt(messages, [])) == "Who?"
    assert chat.tool_calls('<tool_call>{"name": "f"}</tool_call>') == []
    with pytest.raises(InputError, match="the chat template does not support tools"):
        chat.prompt(messages, [{"type": "function"}])


def test_what_a_template_refuses_is_one_line(tmp_path: Path) -> None:
    """Gemma 2's knows no system prompt."""
    text = "{{ raise_exception('System role not supported') }}"
    byte_tokenizer(text, "<e>", ("<b>",)).save_pretrained(tmp_path)
    said = f"^{tmp_path}: the chat template raised: System role not supported$"
    with pytest.raises(InputError, match=said):
        Chat(tmp_path).prompt([{"role": "system", "content": "Be brief."}], [])


LLAMA_REPLIES = {
    "a call": ('{"name": "f", "parameters": {"q": 1}}', "f", ""),
    "a call behind the tag": ('<|python_tag|>{"name": "f", "parameters": {}}', "f", ""),
    "white space around": ('\n {"name": "f", "parameters": {}} \n', "f", ""),
    "a call after a thought": (f'{THOUGHT}{{"name": "f", "parameters": {{}}}}', "f", ""),
    "cut": ('{"name": "f", "parameters": {"q": ', "", "unclosed_call"),
    "two calls": ('{"name": "f"}{"name": "g"}', "", "malformed_call"),
    "a call and more": ('{"name": "f"} Done.', "", "malformed_call"),
    "no name": ('{"parameters": {}}', "", "malformed_call"),
    "parameters no object": ('{"name": "f", "parameters": 3}', "", "malformed_call"),
    "code behind the tag": ("<|python_tag|>f.call()", "", "malformed_call"),
}


@pytest.mark.parametrize(("reply", "called", "error"), LLAMA_REPLIES.values(), ids=LLAMA_REPLIES)
def test_llama_s_reply_is_one_call_or_what_is_wrong_with_it(
    reply: str, called: str, error: str
) -> None:
    [call] = PARSERS["llama3_json"](reply)
    assert (call.name, call.error) == (called, error)


def test_a_llama_reply_that_is_no_object_is_an_answer() -> None:
    for reply in ("", "Ada.", 'She said {"name": "f"}.', "[1]"):
        assert PARSERS["llama3_json"](reply) == []


@pytest.mark.parametrize("parser", PARSERS)
def test_a_call_in_a_thought_is_no_call(parser: str) -> None:
    call = '<tool_call>{"name": "f"}</tool_call>' if parser == "hermes" else '{"name": "f"}'
    for reply in (f"<think>{call}</think>Ada.", f"{call}</think>Ada.", f"Ada.<think>{call}"):
        assert PARSERS[parser](reply) == []


@pytest.mark.parametrize("parser", PARSERS)
@given(st.text())
def test_no_reply_breaks_a_parser(parser: str, text: str) -> None:
    for reply in (text, "{" + text, f"<tool_call>{text}</tool_call>", f"<|python_tag|>{text}"):
        for call in PARSERS[parser](reply):
            assert not (call.error and call.name)
