from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from lab.model.tokenizer import CALL_AFTER, CALL_BEFORE
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import Environment, spoken
from rlvr_debug.environments.gsm8k import synthetic_gsm8k
from rlvr_debug.environments.musique import TOOL
from rlvr_debug.environments.musique.rows import Hop, MuSiQueRow, Paragraph, synthetic_musique
from rlvr_debug.environments.musique.settings import Settings
from rlvr_debug.sampling.base import Request, Sample
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.sampling.rollouts import Rollout, rollout
from rlvr_debug.sampling.tool_calls import hermes
from tests.families import LLAMA_3

ROOT = Path(__file__).parents[1]
END = "<|im_end|>"
WEIGHTS = Settings().weights
RandomModel = Callable[..., Any]

# texts that meet the tokenizer's whole fragments, their halves and anything that Unicode has
pieces = st.sampled_from(
    [
        *(
            "<tool_call>\n",
            CALL_BEFORE,
            CALL_AFTER,
            "look up",
            "\n",
            "\n\n",
            "\nTies:",
            "assistant\n",
        ),
        *(
            "<|im_start|>",
            END,
            "<tool_response>\n",
            "\n</tool_response>",
            "{",
            '"',
            " ",
            "  ",
            "12",
        ),
        *(" Aldora", "Aldora", " mentor", "[1]", "é", "e\u0301", "東京", "😀", "\x00", "\ufffd"),
    ]
)
texts = st.lists(pieces | st.text(max_size=8), max_size=8).map("".join)
composed = texts.map(partial(normalize, "NFC"))


# --- conversations as tokens


@given(composed)
def test_any_text_is_encoded_and_decoded_back(chat: Chat, text: str) -> None:
    ids = chat.encode(text)
    assert chat.decode([*ids, chat.eos_id]) == text
    if not text.endswith(END):
        assert chat.decode(ids) == text


def test_a_tokenizer_read_by_its_model_s_type_gives_the_same_ids() -> None:
    """transformers 5.19 reads that of a Qwen2 with an NFC of its own, which composes what was written as two."""
    folder = ROOT / "models" / "tiny"
    by_type, chat = AutoTokenizer.from_pretrained(folder), Chat(folder)

    @given(texts)
    def same(text: str) -> None:
        assert by_type(text)["input_ids"] == chat.encode(text)

    same()


def messages_of(
    system: str, question: str, turns: Sequence[tuple[str, str]]
) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    for reply, result in turns:
        messages.append({"role": "assistant", "content": reply})
        messages.append({"role": "tool", "content": result})
    return messages


@given(texts, texts, st.lists(st.tuples(texts, texts), max_size=3), st.booleans())
@example(
    "Be brief.", "Who?", [(f"{CALL_BEFORE}{CALL_AFTER}", "[0] A\n\n[1] B\n\nError: no.")], True
)
def test_a_conversation_in_pieces_is_the_template_s_rendering_of_the_whole(
    chat: Chat, system: str, question: str, turns: list[tuple[str, str]], has_tools: bool
) -> None:
    tools: list[dict[str, Any]] = [TOOL] if has_tools else []
    ids = chat.prompt(messages_of(system, question, []), tools)
    for reply, result in turns:
        ids += [*chat.encode(reply), chat.eos_id, *chat.tool_turn([result])]
    messages = messages_of(system, question, turns)
    assert ids == chat.encode(chat.render(messages, tools, generate=True))


@given(
    st.text(min_size=1, max_size=5),
    st.text(max_size=5),
    st.lists(st.tuples(texts, texts), max_size=3),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=40)
def test_the_template_renders_what_qwen2_5_s_own_does(
    chat: Chat,
    system: str,
    question: str,
    turns: list[tuple[str, str]],
    has_tools: bool,
    generate: bool,
) -> None:
    messages = messages_of(system, question, turns)
    tools = [TOOL] if has_tools else None
    theirs = chat.tokenizer.apply_chat_template(
        messages,
        tools=tools,
        chat_template=official_template(),
        add_generation_prompt=generate,
        tokenize=False,
    )
    assert chat.render(messages, tools or [], generate=generate) == theirs


def official_template() -> str:
    """Qwen2.5's chat template as TRL carries it."""
    found = find_spec("trl")
    if found is None or found.origin is None:
        pytest.skip("trl is not installed: no copy of Qwen2.5's chat template")
    path = Path(found.origin).parent / "chat_templates" / "qwen2_5.jinja"
    return path.read_text(encoding="utf-8")


@given(texts)
def test_a_tool_turn_rendered_alone_lacks_the_newline_before_and_the_generation_prompt(
    chat: Chat, content: str
) -> None:
    alone = chat.decode([*chat.tool_turn_rendered_alone([content]), chat.eos_id])
    assert alone.startswith("<|im_start|>user\n<tool_response>\n")
    whole = chat.decode(chat.tool_turn([content]))
    assert whole == "\n" + alone + "<|im_start|>assistant\n"


# --- tool calls

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
calls = st.tuples(st.text(), st.dictionaries(st.text(), json_values, max_size=3))
outside = st.text(max_size=10).filter(lambda text: "<" not in text)


@given(st.lists(st.tuples(outside, calls, st.booleans()), max_size=3), outside)
def test_every_hermes_tool_call_is_parsed_in_order(
    found: list[tuple[str, tuple[str, dict[str, Any]], bool]], after: str
) -> None:
    reply = after
    for before, (name, arguments), ascii_only in reversed(found):
        body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=ascii_only)
        # a tag as text inside a string would count as a tag, as in Hermes' own parsers
        body = body.replace("<", "\\u003c")
        reply = f"{before}<tool_call>\n{body}\n</tool_call>{reply}"
    parsed = hermes(reply)
    assert [(c.name, c.arguments, c.error) for c in parsed] == [
        (name, arguments, "") for _, (name, arguments), _ in found
    ]


@given(texts)
def test_a_reply_has_a_call_or_its_error_exactly_where_it_opens_one(text: str) -> None:
    parsed = hermes(text)
    assert bool(parsed) == ("<tool_call>" in spoken(text))
    assert all(bool(call.error) != bool(call.name) for call in parsed)


BAD_CALLS = {
    "unclosed": ('<tool_call>{"name": "retrieve_documents"', "unclosed_call"),
    "unclosed, newline": (f"{CALL_BEFORE}\n", "unclosed_call"),
    "not JSON": ("<tool_call>retrieve_documents(Ada)</tool_call>", "malformed_call"),
    "empty": ("<tool_call></tool_call>", "malformed_call"),
    "single quotes": ("<tool_call>{'name': 'retrieve_documents'}</tool_call>", "malformed_call"),
    "nested too deep": ("<tool_call>" + "[" * 100_000 + "</tool_call>", "malformed_call"),
    "number too long": ("<tool_call>" + "1" * 5000 + "</tool_call>", "malformed_call"),
    "one in another": (f"<tool_call>{CALL_BEFORE}{CALL_AFTER}", "malformed_call"),
    "a list": ("<tool_call>[1]</tool_call>", "malformed_call"),
    "a string": ('<tool_call>"retrieve_documents"</tool_call>', "malformed_call"),
    "null": ("<tool_call>null</tool_call>", "malformed_call"),
    "no name": ('<tool_call>{"arguments": {"query": "a"}}</tool_call>', "malformed_call"),
    "name not text": ('<tool_call>{"name": 1}</tool_call>', "malformed_call"),
    "arguments text": (
        '<tool_call>{"name": "retrieve_documents", "arguments": "Ada"}</tool_call>',
        "malformed_call",
    ),
    "other tool": ('<tool_call>{"name": "search", "arguments": {}}</tool_call>', "unknown_tool"),
    "no arguments": ('<tool_call>{"name": "retrieve_documents"}</tool_call>', "bad_arguments"),
    "no query": (
        '<tool_call>{"name": "retrieve_documents", "arguments": {}}</tool_call>',
        "bad_arguments",
    ),
    "query not text": (
        '<tool_call>{"name": "retrieve_documents", "arguments": {"query": 1}}</tool_call>',
        "bad_arguments",
    ),
    "another argument": (
        '<tool_call>{"name": "retrieve_documents", "arguments": {"query": "a", "k": 9}}</tool_call>',
        "bad_arguments",
    ),
}


# --- rollouts


def row_of(*texts: str, answer: str = "Rome") -> MuSiQueRow:
    """Paragraphs on Ada, Ben, ... of which the first supports the answer."""
    paragraphs = tuple(
        Paragraph(i, title, text, is_supporting=i == 0)
        for i, (title, text) in enumerate(zip(["Ada", "Ben"], texts, strict=True))
    )
    hops = (Hop("hop", "Ada >> born", answer, 0),)
    return MuSiQueRow("row", paragraphs, "Where was Ada born?", hops, answer, (), True)


ROW = row_of("Born in Rome.", "Born in Oslo.")


def musique(**changes: Any) -> Environment:
    settings = {
        "retrieval": "bm25",
        "top_n": 1,
        "max_turns": 4,
        "max_new_tokens": 60,
        "weights": WEIGHTS,
    }
    return build_environment("musique", {**settings, **changes})


class Scripted:
    """A Sampler that knows what to say: `say` is given the row and the number of the reply."""

    def __init__(self, chat: Chat, say: Callable[[Any, int], str | list[int]]) -> None:
        self.chat, self.say = chat, say
        self.requests: list[Request] = []

    def sample(
        self, requests: list[Request], *, temperature: float, max_new_tokens: int, seed: int
    ) -> list[Sample]:
        samples = []
        for request in requests:
            said = sum(before.slot == request.slot for before in self.requests)
            self.requests.append(request)
            reply = self.say(request.row, said)
            ids = self.chat.encode(reply) if isinstance(reply, str) else reply
            ids = [*ids, self.chat.eos_id][:max_new_tokens]
            logprobs = [-float(i) for i in range(len(ids))]
            samples.append(Sample(ids, logprobs, ids[-1] == self.chat.eos_id))
        return samples


def told(
    chat: Chat,
    replies: Sequence[str | list[int]],
    row: Any = ROW,
    environment: Environment | None = None,
) -> Rollout:
    """The rollout in which the model says just that, and the last reply again where it is asked."""
    sampler = Scripted(chat, lambda _, number: replies[min(number, len(replies) - 1)])
    [found] = rollout([row], environment or musique(), chat, sampler, temperature=1.0, seed=0)
    return found


def call_of(query: str) -> str:
    return f"{CALL_BEFORE} {query}{CALL_AFTER}"


def answer_of(answer: str, *cited: int) -> str:
    return f"<answer>{answer}</answer>\n<cite>{''.join(f'[{i}]' for i in cited)}</cite>"


@pytest.mark.parametrize(("reply", "error"), BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_a_bad_call_is_answered_with_an_error_and_counted(
    chat: Chat, reply: str, error: str
) -> None:
    environment = musique(max_new_tokens=200_000)
    found = told(chat, [reply, call_of("Ada"), answer_of("Rome", 0)], environment=environment)
    assert [segment.role for segment in found.segments[:3]] == ["prompt", "assistant", "tool"]
    assert found.segments[2].texts[0].startswith("Error: ")
    assert found.call_errors == Counter({error: 1})
    assert found.outcome == "answered"
    assert found.reward == 1  # a mistake that was mended costs nothing


def test_every_call_of_a_reply_is_answered_in_order_in_one_turn(chat: Chat) -> None:
    reply = f"Both. {call_of('Ben')}{call_of('Ada')} <tool_call>"
    found = told(chat, [reply, answer_of("Rome", 0)])
    assert found.segments[2].texts == (
        "[1] Ben\nBorn in Oslo.",
        "[0] Ada\nBorn in Rome.",
        "Error: the tool call is not closed.",
    )
    assert found.transcript.retrieved == {0, 1}
    assert found.call_errors == Counter(unclosed_call=1)
    assert found.parts["precision"] == 0.5


@given(st.lists(texts, min_size=4, max_size=4), st.integers(1, 60))
def test_no_reply_breaks_a_rollout_and_ids_are_what_was_seen_and_said(
    chat: Chat, replies: list[str], limit: int
) -> None:
    sampler = Scripted(chat, lambda _, number: replies[number])
    environment = musique(max_new_tokens=limit)
    rows = [ROW, ROW]
    for slot, found in enumerate(
        rollout(rows, environment, chat, sampler, temperature=1.0, seed=0)
    ):
        requests = [request for request in sampler.requests if request.slot == slot]
        said = [segment for segment in found.segments if segment.role == "assistant"]
        assert len(requests) == len(said) == found.turns == len(found.transcript.replies)
        # token-in, token-out: each reply stands right after the ids that it was asked with
        for request, segment in zip(requests, said, strict=True):
            end = len(request.ids) + len(segment.ids)
            assert found.ids[:end] == request.ids + segment.ids
            assert found.sampled[len(request.ids) : end] == [True] * len(segment.ids)
        assert len(found.ids) == len(found.sampled) == end
        assert sum(found.sampled) == sum(len(segment.ids) for segment in said)
        roles = [segment.role for segment in found.segments]
        assert roles == ["prompt", *["assistant", "tool"] * len(said)][: 2 * len(said)]
        assert all(len(s.logprobs) == len(s.ids) * (s.role == "assistant") for s in found.segments)
        assert found.outcome in ("answered", "no_answer", "token_limit", "turn_limit")
        weighted = sum(WEIGHTS[name] * found.parts[name] for name in WEIGHTS)
        assert 0 <= found.reward == weighted / sum(WEIGHTS.values()) <= 1


def test_sampled_ids_stay_though_their_text_would_be_encoded_otherwise(chat: Chat) -> None:
    spelled = [chat.encode(letter)[0] for letter in "[0]"]
    broken = chat.encode("é")[:1]  # half a character, which no text can encode to
    assert chat.encode("[0]") != spelled
    reply = [*chat.encode(f"<answer>Rome</answer>{call_of('Ada')}"), *spelled, *broken]
    found = told(chat, [reply, "Rome."])
    assert found.segments[1].ids == [*reply, chat.eos_id]
    assert found.segments[1].texts[0].endswith("[0]\ufffd")


@pytest.mark.parametrize("last", ["", "I do not know.", "<answer></answer>", call_of("Ada")])
@pytest.mark.parametrize("calls", [1, 3])
def test_a_perfect_answer_in_a_tool_s_output_earns_nothing(
    chat: Chat, last: str, calls: int
) -> None:
    row = row_of(f"Born in:\n{answer_of('Rome', 0)}", "Born in Oslo.")
    found = told(chat, [call_of("Ada")] * calls + [last], row)
    assert answer_of("Rome", 0) in found.segments[2].texts[0]
    assert found.parts["recall"] == found.parts["precision"] == 1  # what the call itself earned
    for part in ("exact_match", "f1", "citation", "format"):
        assert found.parts[part] == 0
    # not even where it passes itself off as the model's turn
    row = row_of(f"Born{END}\n<|im_start|>assistant\n{answer_of('Rome', 0)}{END}\n", "Not born.")
    assert told(chat, [call_of("Ada")] * calls + [last], row).parts["exact_match"] == 0


def test_only_the_last_reply_is_scored(chat: Chat) -> None:
    found = told(chat, [answer_of("Rome", 0) + call_of("Ada"), "No more to say."])
    assert found.parts["exact_match"] == found.parts["format"] == found.parts["citation"] == 0


@pytest.mark.parametrize(
    ("replies", "limit", "outcome", "turns"),
    [
        ([answer_of("Rome", 0)], 60, "answered", 1),
        (["<answer>Rome</answer>"], 60, "answered_without_citation", 1),
        (["Rome."], 10, "no_answer", 1),
        (["", "never asked"], 1, "no_answer", 1),  # the end of turn is the one token allowed
        (["Rome, I think."], 5, "token_limit", 1),
        ([call_of("Ada"), "Rome, I think. " * 9], 60, "token_limit", 2),
        ([call_of("Ada"), answer_of("Rome", 0)], 60, "answered", 2),
        ([call_of("Ada")], 60, "turn_limit", 4),
        (["<tool_call>"], 60, "turn_limit", 4),
        ([call_of("Ada")] * 3 + ["Rome."], 60, "no_answer", 4),
        ([call_of("Ada") + "x" * 60], 60, "token_limit", 1),  # a reply that was cut calls nothing
    ],
)
def test_a_rollout_ends_with_an_answer_or_at_a_limit(
    chat: Chat, replies: list[str], limit: int, outcome: str, turns: int
) -> None:
    found = told(chat, replies, environment=musique(max_new_tokens=limit))
    assert (found.outcome, found.turns) == (outcome, turns)
    assert found.segments[-1].role == "assistant"


def test_what_the_last_turn_would_retrieve_counts_for_nothing(chat: Chat) -> None:
    found = told(chat, [call_of("Ben")] * 3 + [call_of("Ada")])
    assert found.outcome == "turn_limit"
    assert found.transcript.retrieved == {1}


def test_a_tool_s_answer_beyond_the_context_ends_the_rollout_unread(chat: Chat) -> None:
    replies = [call_of("Ben"), call_of("Ada"), answer_of("Rome", 0)]
    whole = told(chat, replies)
    assert (whole.outcome, whole.turns) == ("answered", 3)
    upto = [len(s.ids) for s in whole.segments]
    environment = musique()
    environment.max_context = sum(upto[:5])  # prompt, call, answer, call, answer
    assert told(chat, replies, environment=environment).ids == whole.ids
    environment.max_context -= 1
    cut = told(chat, replies, environment=environment)
    assert (cut.outcome, cut.turns) == ("context_limit", 2)
    assert cut.ids == whole.ids[: sum(upto[:4])]
    assert cut.segments[-1].role == "assistant"
    # what it would have shown counts for nothing
    assert cut.transcript.retrieved == {1}
    assert whole.transcript.retrieved > {1}


def test_no_rows_are_no_rollouts(chat: Chat) -> None:
    sampler = Scripted(chat, lambda _, number: "")
    assert rollout([], musique(), chat, sampler, temperature=1.0, seed=0) == []


def test_a_rollout_that_ended_is_not_asked_again_while_others_go_on(chat: Chat) -> None:
    rows = [replace(ROW, id=name) for name in ("long", "short", "long")]

    def say(row: MuSiQueRow, number: int) -> str:
        return call_of("Ada") if row.id == "long" and number < 2 else row.id

    sampler = Scripted(chat, say)
    found = rollout(rows, musique(), chat, sampler, temperature=1.0, seed=0)
    assert [r.transcript.final for r in found] == ["long", "short", "long"]
    assert [r.turns for r in found] == [3, 1, 3]
    assert [request.slot for request in sampler.requests] == [0, 1, 2, 0, 2, 0, 2]


def test_the_oracle_earns_all_of_a_synthetic_musique_row_but_precision(chat: Chat) -> None:
    shares = {1: 0.25, 2: 0.25, 3: 0.25, 4: 0.25}
    rows = list(synthetic_musique(40, hops=shares, paragraphs=8, same_relation=0.3, seed=0))
    environment = musique(top_n=2, max_turns=5)

    def say(row: MuSiQueRow, number: int) -> str:
        hops = row.question_decomposition
        if number == len(hops):
            return answer_of(row.answer, *(hop.paragraph_support_idx or 0 for hop in hops))
        relation = hops[number].question.split(" >> ")[1]
        entity = hops[number - 1].answer if number else hops[0].question.split(" >> ")[0]
        return f"{CALL_BEFORE} {entity} {relation}{CALL_AFTER}"

    found = rollout(rows, environment, chat, Scripted(chat, say), temperature=1.0, seed=0)
    assert {current.row.hops for current in found} == {1, 2, 3, 4}
    for current in found:
        assert current.outcome == "answered"
        assert not current.call_errors
        assert {n: v for n, v in current.parts.items() if n != "precision"} == {
            "exact_match": 1,
            "f1": 1,
            "recall": 1,
            "citation": 1,
            "format": 1,
        }
        assert 0.5 <= current.parts["precision"] <= 1
        assert current.turns == current.row.hops + 1


def test_the_oracle_earns_all_of_a_synthetic_gsm8k_row(chat: Chat) -> None:
    rows = list(synthetic_gsm8k(20, steps={1: 0.5, 2: 0.5}, seed=0))
    environment = build_environment("gsm8k", {"max_new_tokens": 48, "weights": {"correct": 1.0}})
    right = Scripted(chat, lambda row, _: row.answer)
    wrong = Scripted(chat, lambda row, _: row.answer + "1")
    for sampler, reward in ((right, 1), (wrong, 0)):
        found = rollout(rows, environment, chat, sampler, temperature=1.0, seed=0)
        assert {(r.reward, r.outcome, r.turns) for r in found} == {(reward, "answered", 1)}


# --- the sampler against transformers

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped queries, tied": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "one kv head": {"num_key_value_heads": 1, "hidden_size": 48},
    "head size of its own": {"head_dim": 16, "num_attention_heads": 3, "num_key_value_heads": 3},
    "other rope and epsilon": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
        "rms_norm_eps": 0.1,
    },
    "one layer": {"num_hidden_layers": 1},
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "num_key_value_heads": 2},
    "qwen3 with biases, tied": {
        "model_type": "qwen3",
        "head_dim": 8,
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
    "llama": {"model_type": "llama", "num_key_value_heads": 2},
    "llama with biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama 3": {
        "model_type": "llama",
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "head_dim": 16,
        "rope_parameters": LLAMA_3,
    },
}
EOS = 3
VOCABULARY = 40


def sampler_of(model: Any) -> InProcessSampler:
    weights = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]  # as in a saved file
    return InProcessSampler(model.config.to_dict(), weights, {EOS})


def expected_logprobs(model: Any, ids: list[int], temperature: float) -> torch.Tensor:
    """transformers' log-probabilities of every token after ids[:t], [T, V], without any cache."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    found: torch.Tensor = (logits.float() / (temperature or 1.0)).log_softmax(-1)
    return found


def check(model: Any, context: list[int], sample: Sample, temperature: float, limit: int) -> float:
    """Assert that the model could have said this; return the largest difference."""
    assert 1 <= len(sample.ids) <= limit
    assert sample.stopped == (sample.ids[-1] == EOS)
    assert sample.stopped or len(sample.ids) == limit
    assert EOS not in sample.ids[:-1]
    expected = expected_logprobs(model, context + sample.ids, temperature)[len(context) - 1 : -1]
    chosen = expected.gather(1, torch.tensor(sample.ids)[:, None])[:, 0]
    if temperature == 0:
        assert expected.argmax(-1).tolist() == sample.ids
    return float((chosen - torch.tensor(sample.logprobs)).abs().max())


tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12)
# for each turn, what is added to each conversation before it is continued; none: it has ended
turns = st.lists(st.lists(st.none() | tokens, min_size=3, max_size=3), min_size=1, max_size=4)
TEMPERATURES = (0.0, 0.5, 1.0, 2.0)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@given(turns, st.sampled_from(TEMPERATURES), st.integers(1, 9), st.integers(0, 3))
@settings(max_examples=10)
def test_ids_and_log_probabilities_are_those_of_transformers_over_turns(
    random_model: RandomModel,
    shape: dict[str, Any],
    added: list[list[list[int] | None]],
    temperature: float,
    limit: int,
    seed: int,
) -> None:
    model = random_model(seed, vocab_size=VOCABULARY, **shape)
    sampler = sampler_of(model)
    histories: list[list[int]] = [[], [], []]
    for turn in added:
        slots = [slot for slot, new in enumerate(turn) if new]
        for slot in slots:
            histories[slot] = histories[slot] + (turn[slot] or [])
        if not slots:
            continue
        samples = sampler.sample(
            [Request(slot, histories[slot], None) for slot in slots],
            temperature=temperature,
            max_new_tokens=limit,
            seed=seed,
        )
        for slot, sample in zip(slots, samples, strict=True):
            assert check(model, histories[slot], sample, temperature, limit) < 1e-5
            histories[slot] = histories[slot] + sample.ids


@given(st.lists(tokens, min_size=2, max_size=4), st.integers(0, 20))
@settings(max_examples=25)
def test_a_slot_whose_history_was_rewritten_is_not_answered_from_its_old_cache(
    random_model: RandomModel, histories: list[list[int]], kept: int
) -> None:
    model = random_model(0, vocab_size=VOCABULARY)
    sampler = sampler_of(model)
    ids: list[int] = []
    for new in histories:
        ids = ids[:kept] + new
        [sample] = sampler.sample([Request(0, ids, None)], temperature=0, max_new_tokens=4, seed=0)
        assert check(model, ids, sample, 0, 4) < 1e-5
        ids = ids + sample.ids


def conversation(
    sampler: InProcessSampler, *, seed: int, reset: bool = False, temperature: float = 1.0
) -> list[list[int]]:
    """Three turns of four conversations; all that was sampled."""
    histories = [list(range(5, 5 + n)) for n in (1, 4, 9, 2)]
    said: list[list[int]] = []
    for turn in range(3):
        if reset:
            sampler.reset()
        requests = [Request(slot, ids, None) for slot, ids in enumerate(histories)]
        samples = sampler.sample(
            requests, temperature=temperature, max_new_tokens=8, seed=seed + turn
        )
        said += [sample.ids for sample in samples]
        histories = [
            [*ids, *sample.ids, 7 + turn] for ids, sample in zip(histories, samples, strict=True)
        ]
    return said


def test_samples_depend_on_the_seed_and_not_on_the_cache(random_model: RandomModel) -> None:
    model = random_model(1, vocab_size=VOCABULARY)
    fresh, used = sampler_of(model), sampler_of(model)
    found = [conversation(used, seed=seed) for seed in range(5)]
    assert [conversation(fresh, seed=seed, reset=True) for seed in range(5)] == found
    assert [conversation(used, seed=seed) for seed in range(5)] == found
    assert len({str(said) for said in found}) == 5
    greedy = [conversation(used, seed=seed, temperature=0) for seed in range(2)]
    assert greedy[0] == greedy[1]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_their_probability_at_the_temperature_says(
    random_model: RandomModel, temperature: float
) -> None:
    model = random_model(2, vocab_size=VOCABULARY)
    count, context = 4000, [5, 9, 11]
    samples = sampler_of(model).sample(
        [Request(slot, context, None) for slot in range(count)],
        temperature=temperature,
        max_new_tokens=1,
        seed=0,
    )
    seen = Counter(sample.ids[0] for sample in samples)
    expected = expected_logprobs(model, context, temperature)[-1].exp().tolist()
    for token, probability in enumerate(expected):
        spread = (count * probability * (1 - probability)) ** 0.5
        assert abs(seen[token] - count * probability) <= 5 * spread + 1


def test_load_copies_the_weights_and_forgets_what_the_old_ones_computed(
    random_model: RandomModel,
) -> None:
    old, new = (random_model(seed, vocab_size=VOCABULARY) for seed in (3, 4))
    sampler = sampler_of(old)
    ids = [5, 6, 7, 8]
    for model in (old, new, old):
        sampler.load(model.state_dict())
        [sample] = sampler.sample([Request(0, ids, None)], temperature=1, max_new_tokens=5, seed=0)
        assert check(model, ids, sample, 1, 5) < 1e-5
        ids = ids + sample.ids  # the next model meets a history that this one had cached
    weights = {name: tensor.clone() for name, tensor in old.state_dict().items()}
    sampler.load(weights)
    with torch.no_grad():
        for tensor in weights.values():
            tensor.add_(1.0)
    sampler.reset()
    [sample] = sampler.sample([Request(0, ids, None)], temperature=1, max_new_tokens=5, seed=0)
    assert check(old, ids, sample, 1, 5) < 1e-5


def test_a_rollout_s_log_probabilities_are_those_of_its_own_ids(
    chat: Chat, talkative: Callable[[int], Any]
) -> None:
    rows = list(synthetic_musique(6, hops={2: 1}, paragraphs=4, same_relation=0, seed=0))
    environment = musique(max_new_tokens=8)
    found = []
    for seed in range(2):
        model = talkative(seed)
        samplers = [
            InProcessSampler(model.config.to_dict(), model.state_dict(), chat.ends)
            for _ in range(2)
        ]
        first, again = (
            rollout(rows, environment, chat, fresh, temperature=0.8, seed=seed)
            for fresh in samplers
        )
        assert first == again
        found += first
        for current in first:
            expected = expected_logprobs(model, current.ids, 0.8)[:-1]
            chosen = expected.gather(1, torch.tensor(current.ids)[1:, None])[:, 0]
            sampled = [value for segment in current.segments for value in segment.logprobs]
            difference = chosen[torch.tensor(current.sampled[1:])] - torch.tensor(sampled)
            assert float(difference.abs().max()) < 1e-5
    assert {current.turns for current in found} >= {1, 2}
