import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from rlvr_debug import environments
from rlvr_debug.audit import ScriptedSampler
from rlvr_debug.blocks import checked, told
from rlvr_debug.data.prepare import read_rows
from rlvr_debug.environments import build_environment, gsm8k, musique, task_of
from rlvr_debug.environments.base import Environment, ToolCall, Transcript, refused
from rlvr_debug.environments.gsm8k import GSM8KRow, final_answer
from rlvr_debug.environments.musique.rows import Hop, MuSiQueRow, Paragraph
from rlvr_debug.environments.musique.settings import Settings
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import rollout
from tests.test_rewards import CASES

ROOT = Path(__file__).parents[1]
WEIGHTS = Settings().weights


def environment(**changes: Any) -> Environment:
    settings = {
        "retrieval": "bm25",
        "top_n": 2,
        "max_turns": 4,
        "max_new_tokens": 60,
        "weights": WEIGHTS,
    }
    return build_environment("musique", {**settings, **changes})


def row_of(supporting: str, hops: int = 2, identity: str = "row") -> MuSiQueRow:
    """A paragraph per letter, s for one that supports; the answer is Oslo, or Christiania."""
    paragraphs = tuple(
        Paragraph(i, f"Town {i}", "It is in Norway.", letter == "s")
        for i, letter in enumerate(supporting)
    )
    steps = tuple(Hop(i, "where?", "Oslo", None) for i in range(hops))
    return MuSiQueRow(identity, paragraphs, "Where?", steps, "Oslo", ("Christiania",), True)


ROW = row_of("-s-s-")


def submitted(answer: str, citations: list[Any]) -> Transcript:
    return Transcript([""], submitted={"answer": answer, "citations": citations})


# --- an environment is a folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_new_tokens": 0}, "key 'max_new_tokens' is 0, expected at least 1"),
        ({"weights": {"corect": 1.0}}, "unknown key 'weights.corect': did you mean 'correct'?"),
        ({"top_n": 1}, "unknown key 'top_n': expected one of max_new_tokens, max_context, weights"),
    ],
)
def test_a_mistake_in_an_environments_block_of_params_yaml_is_one_line(
    change: dict[str, Any], said: str
) -> None:
    block = environments.settings_of("gsm8k").Settings
    with pytest.raises(InputError) as error:
        checked(block, {**told(block()), **change}, "params.yaml")
    assert str(error.value) == f"params.yaml: {said}"


# --- what the tiny model has learned


def test_the_shipped_tokenizer_has_a_token_for_each_prompt_and_tool() -> None:
    tokens = {t["content"] for t in read_json(ROOT / "models/tiny/tokenizer.json")["added_tokens"]}
    assert {musique.SYSTEM, json.dumps(musique.TOOL), gsm8k.SYSTEM} <= tokens


# --- MuSiQue: the answer in tags


@pytest.mark.parametrize(
    ("reply", "outcome"),
    CASES["outcomes"],
)
def test_the_outcome_tells_an_answer_from_one_without_citation(reply: str, outcome: str) -> None:
    assert environment().outcome(Transcript([reply])) == outcome


# --- MuSiQue: the answer by a call

COMPLETE = environment(answer_by="complete")


def test_complete_is_offered_only_where_answers_are_given_by_it() -> None:
    assert environment().tools == [musique.TOOL]
    assert COMPLETE.tools == [musique.TOOL, musique.COMPLETE]
    assert COMPLETE.messages(ROW)[0]["content"] == musique.SYSTEM_COMPLETE
    assert environment().messages(ROW)[0]["content"] == musique.SYSTEM


@pytest.mark.parametrize(
    ("arguments", "sound"),
    CASES["calls of complete"],
)
def test_complete_ends_the_rollout_if_its_arguments_are_sound(
    arguments: dict[str, Any], sound: bool
) -> None:
    call = ToolCall("complete", arguments)
    refusal = refused(call, COMPLETE.tools)
    if sound:
        assert refusal is None
        assert COMPLETE.call_tool(ROW, call).ends
    else:
        assert refusal is not None
        assert (refusal.error, refusal.ends) == ("bad_arguments", False)
        assert refusal.text == "Error: complete takes answer (string), citations (array)."


@pytest.mark.parametrize(
    ("answer", "citations", "outcome", "exact", "citation"),
    [
        ("Oslo", [3, 1], "answered", 1, 1),
        ("christiania!", [1, 1, 3.0], "answered", 1, 1),
        ("Bergen", [1], "answered", 0, 2 / 3),
        ("Oslo", [-1, 10**300], "answered", 1, 0),
        ("Oslo", [], "answered_without_citation", 1, 0),
        ("", [], "answered_without_citation", 0, 0),
    ],
)
def test_a_submitted_answer_is_scored_from_the_call(
    answer: str, citations: list[Any], outcome: str, exact: float, citation: float
) -> None:
    transcript = submitted(answer, citations)
    assert COMPLETE.outcome(transcript) == outcome
    parts = COMPLETE.score(ROW, transcript)
    assert parts["exact_match"] == exact
    assert parts["citation"] == pytest.approx(citation)
    assert parts["format"] == 1


def test_tags_earn_nothing_where_answers_are_given_by_a_call() -> None:
    told = Transcript(["<answer>Oslo</answer>\n<cite>[1][3]</cite>"])
    assert environment().reward(ROW, environment().score(ROW, told)) > 0
    assert COMPLETE.outcome(told) == "no_answer"
    assert set(COMPLETE.score(ROW, told).values()) == {0}
    # and beside a call they change nothing
    both = Transcript(told.replies, submitted={"answer": "Bergen", "citations": []})
    assert COMPLETE.score(ROW, both) == COMPLETE.score(ROW, submitted("Bergen", []))


def test_a_rollout_that_retrieves_and_completes_earns_everything(chat: Chat) -> None:
    def policy(row: Any, turn: int) -> str:
        name, arguments = (
            ("retrieve_documents", {"query": "Norway"}),
            ("complete", {"answer": "Oslo", "citations": [1, 3]}),
        )[turn]
        call = json.dumps({"name": name, "arguments": arguments})
        return f"<tool_call>\n{call}\n</tool_call>"

    env = environment(answer_by="complete", retrieval="golden")
    sampler = ScriptedSampler(policy, chat)
    (done,) = rollout([ROW], env, chat, sampler, temperature=0.0, seed=0)
    assert (done.outcome, done.turns) == ("answered", 2)
    assert done.parts == dict.fromkeys(WEIGHTS, 1.0)
    assert done.reward == 1


# --- MuSiQue: noise and hops


@pytest.mark.parametrize("retrieval", ["bm25", "golden"])
@given(st.floats(0, 1), st.text("-s", min_size=1, max_size=12), st.text())
def test_only_what_noise_left_and_all_that_supports_can_be_retrieved(
    retrieval: str, rate: float, supporting: str, query: str
) -> None:
    assume("s" in supporting)
    row = row_of(supporting)
    env = environment(retrieval=retrieval, top_n=len(supporting), noise_rate=rate, noise_seed=1)
    result = env.call_tool(row, ToolCall("retrieve_documents", {"query": query}))
    assert set(row.supporting) <= set(result.indices) <= set(range(len(supporting)))
    kept = round(rate * supporting.count("-")) if retrieval == "bm25" else 0
    assert len(result.indices) == len(row.supporting) + kept
    assert re.findall(r"^\[(\d+)\]", result.text, re.MULTILINE) == list(map(str, result.indices))


@given(st.permutations(sorted(WEIGHTS)), st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_a_reward_is_the_same_to_the_last_bit_in_whatever_order_its_weights_are_written(
    order: list[str], values: list[float]
) -> None:
    turned = environment(weights={name: WEIGHTS[name] for name in order})
    parts = dict(zip(sorted(WEIGHTS), values, strict=True))
    assert turned.reward(ROW, parts) == environment().reward(ROW, parts)


def test_the_hop_factor_multiplies_the_reward_by_half_the_number_of_hops() -> None:
    plain, by_hops = environment(), environment(hop_factor=True)
    for hops in (1, 2, 3, 4):
        row = row_of("-s-s-", hops)
        told = Transcript(["<answer>Oslo</answer><cite>[1]</cite>"], retrieved={1, 2})
        parts = plain.score(row, told)
        assert parts == by_hops.score(row, told)
        assert by_hops.reward(row, parts) == pytest.approx(plain.reward(row, parts) * hops / 2)


replies = st.lists(
    st.sampled_from(
        ["<answer>", "</answer>", "<cite>", "</cite>", "<think>", "</think>", "Oslo", "[1]", "[3]"]
    )
    | st.text(max_size=5)
).map("".join)
transcripts = st.builds(
    Transcript,
    st.lists(replies, max_size=2),
    st.integers(0, 3),
    st.sets(st.integers(0, 4)),
    st.none()
    | st.fixed_dictionaries(
        {"answer": replies, "citations": st.lists(st.integers() | st.just(3.0))}
    ),
)


@given(transcripts, st.sampled_from(["tags", "complete"]))
def test_every_part_and_the_reward_are_between_0_and_1_whatever_was_said(
    transcript: Transcript, answer_by: str
) -> None:
    env = environment(answer_by=answer_by)
    parts = env.score(ROW, transcript)
    assert set(parts) == set(WEIGHTS)
    assert all(0 <= value <= 1 for value in parts.values())
    assert 0 <= env.reward(ROW, parts) <= 1
    assert env.outcome(transcript) in ("answered", "answered_without_citation", "no_answer")


# --- GSM8K

GSM8K = build_environment("gsm8k", {"max_new_tokens": 48, "weights": {"correct": 1.0}})


@pytest.mark.parametrize(
    ("reply", "final"),
    CASES["marked answers"],
)
def test_the_last_marked_answer_of_a_reply_counts(reply: str, final: str | None) -> None:
    assert final_answer(reply) == final
    expected = "no_answer" if final is None else "answered"
    assert GSM8K.outcome(Transcript([reply])) == expected
    right = float(final is not None and "18" in final and "17" not in final)
    assert GSM8K.score(GSM8KRow("row", "How many?", "#### 18"), Transcript([reply])) == {
        "correct": right
    }


@given(
    st.text() | st.lists(st.sampled_from(["####", "\\boxed{", "}", "{", "\\", "7"])).map("".join)
)
@example("\\boxed{" * 2000)
def test_what_is_boxed_has_balanced_braces(reply: str) -> None:
    final = final_answer(reply)
    if final is not None and "####" not in reply:
        plain = re.sub(r"\\[{}]", "", final)
        assert plain.count("{") == plain.count("}")
        assert "\\boxed" in reply


def test_every_real_solution_earns_its_reward_in_either_form_and_another_number_none(
    real: Path,
) -> None:
    for row in read_rows("gsm8k", real / "gsm8k/rows.jsonl"):
        assert isinstance(row, GSM8KRow)
        wrong = int(row.final.replace(",", "")) + 1
        said = {
            row.answer: 1,
            f"So it is \\boxed{{\\${row.final}}}.": 1,
            f"{row.answer}\nNo: \\boxed{{{wrong}}}": 0,
            f"#### {wrong}": 0,
        }
        for reply, correct in said.items():
            assert GSM8K.score(row, Transcript([reply])) == {"correct": correct}


@pytest.mark.parametrize("name", ["oracle", "spoiler"])
def test_a_task_without_the_policies_of_the_audit_is_an_error(name: str) -> None:
    task = task_of("gsm8k")
    others = {key: policy for key, policy in task.policies.items() if key != name}
    said = f"GSM8KRow: policies has no '{name}', it needs oracle and spoiler, found "
    with pytest.raises(InputError, match=re.escape(said)):
        replace(task, policies=others)
    with pytest.raises(InputError, match="found none"):
        replace(task, policies={})
