"""A record of a few real steps of a small model, by plain PyTorch, and what is done with its folder."""

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.replay.record import (
    Batch,
    Call,
    Forward,
    Generation,
    MicroBatch,
    ParameterGroup,
    Record,
    RewardCall,
    Update,
)
from rlvr_debug.replay.settings import Sampling, Settings
from tests.in_process import called

_SIZE, _LENGTH, _RATE, _HEAT = 2, 6, 1e-2, 0.8
_MICRO = 2  # backward passes of an update
SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


def small_record() -> Record:
    """Return two generations of four rollouts and three updates, two of them of the first generation.

    GRPO with a KL term, two reward functions and two micro-batches an update, in float32, by AdamW.
    """
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "models" / "tiny")
    config = Qwen2Config(vocab_size=len(tokenizer), tie_word_embeddings=False, **SHAPE)
    build: Callable[[], Any] = lambda: Qwen2ForCausalLM(copy.deepcopy(config))  # noqa: E731
    policy = build().eval()
    optimizer = torch.optim.AdamW(policy.parameters(), _RATE, weight_decay=0.01)
    record = Record(
        trainer="small 1",
        settings=_settings(tokenizer),
        tokenizer=tokenizer,
        tools=None,
        build=build,
        weights=[_named(policy)],
        trainable=tuple(_named(policy)),
        reference=_named(policy),
    )
    for number, updates in enumerate((2, 1)):
        record.generations.append(_generation(record, policy, number))
        for _ in range(updates):
            record.updates.append(_update(record, policy, optimizer, number))
    record.saved = record.weights[-1]
    return record


def _settings(tokenizer: Any) -> Settings:
    return Settings(
        group_size=_SIZE,
        sampling=Sampling(temperature=_HEAT, max_new_tokens=_LENGTH),
        max_completion_length=_LENGTH,
        num_iterations=2,
        micro_batches=_MICRO,
        steps_per_generation=_MICRO,
        reward_weights=(1.0, 0.5),
        kl_beta=0.04,
        learning_rate=_RATE,
        schedule="constant",
        total_steps=3,
        weight_decay=0.01,
        max_grad_norm=0.05,
        eos_ids=(tokenizer.eos_token_id,),
        pad_id=tokenizer.pad_token_id,
    )


def _named(policy: Any) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in policy.named_parameters()}


def _generation(record: Record, policy: Any, number: int) -> Generation:
    rows = [
        {"prompt": [{"role": "user", "content": text}], "answer": str(number)}
        for text in (f"What is {number} plus 1?", "Why?")
        for _ in range(_SIZE)
    ]
    asked = [
        record.tokenizer.apply_chat_template(
            row["prompt"], add_generation_prompt=True, return_dict=False
        )
        for row in rows
    ]
    prompt_ids, prompt_mask = _padded(asked, record.settings.pad_id)
    sampled = policy.generate(
        prompt_ids,
        attention_mask=prompt_mask,
        do_sample=True,
        temperature=_HEAT,
        top_k=0,
        max_new_tokens=_LENGTH,
        output_scores=True,
        return_dict_in_generate=True,
        pad_token_id=record.settings.pad_id,
        eos_token_id=list(record.settings.eos_ids),
    )
    ids = sampled.sequences[:, prompt_ids.shape[1] :]
    drawn = torch.stack(sampled.scores, 1).log_softmax(-1).gather(2, ids[..., None])[..., 0]
    ends = torch.isin(ids, torch.tensor(record.settings.eos_ids)).int()
    real = (ends.cumsum(1) - ends == 0).long()
    outputs = [row[mask.bool()].tolist() for row, mask in zip(ids, real, strict=True)]
    call = Call(
        asked,
        outputs,
        [row[: len(output)].tolist() for row, output in zip(drawn, outputs, strict=True)],
        record.settings.sampling,
        len(record.weights) - 1,
    )
    columns = {"completion_ids": outputs, "answer": [row["answer"] for row in rows]}
    calls = [
        _reward_call("evens", 0, columns, lambda row: float(sum(x % 2 == 0 for x in row))),
        _reward_call("sum", 1, columns, lambda row: sum(x % 7 for x in row) / _LENGTH),
    ]
    rewards = torch.tensor([each.returned for each in calls]).T.contiguous()
    batch = Batch(
        prompt_ids,
        prompt_mask,
        ids,
        real,
        real,
        _advantages(rewards @ torch.tensor(record.settings.reward_weights)),
        rows=torch.arange(len(rows)),
    )
    with torch.no_grad():
        old = _logprobs(policy, batch)
        reference = build_from(record, record.reference or {})
        kept = {"old": old, "reference": _logprobs(reference, batch)}
    return Generation(
        rows,
        len(record.weights) - 1,
        [call],
        [[{"role": "assistant", "content": record.tokenizer.decode(row)}] for row in outputs],
        calls,
        rewards,
        Batch(**{**vars(batch), **kept}),
    )


def build_from(record: Record, weights: Mapping[str, Tensor]) -> Any:
    """Return the record's model with these weights."""
    with torch.random.fork_rng():
        module = record.build().eval()
    module.load_state_dict(weights)
    return module


def _padded(rows: list[list[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Return ids and mask, padded on the left."""
    flipped = [torch.tensor(row[::-1]) for row in rows]
    ids = pad_sequence(flipped, batch_first=True, padding_value=pad).flip(1)
    mask = pad_sequence([torch.ones_like(row) for row in flipped], batch_first=True).flip(1)
    return ids, mask


def _reward_call(
    name: str, index: int, columns: Mapping[str, list[Any]], of: Callable[[list[int]], float]
) -> RewardCall:
    said = [of(row) for row in columns["completion_ids"]]
    return RewardCall(name, index, columns, said, list(said), list(said), list(said))


def _advantages(rewards: Tensor) -> Tensor:
    groups = rewards.view(-1, _SIZE)
    mean, spread = groups.mean(1, keepdim=True), groups.std(1, keepdim=True)
    return ((groups - mean) / (spread + 1e-4)).flatten()


def _forward(batch: Batch) -> Forward:
    return Forward(
        torch.cat([batch.prompt_ids, batch.completion_ids], 1),
        torch.cat([batch.prompt_mask, batch.completion_mask], 1),
    )


def _logprobs(policy: Any, batch: Batch) -> Tensor:
    given, start = _forward(batch), batch.prompt_ids.shape[1]
    logits = policy(given.input_ids, attention_mask=given.attention_mask).logits
    drawn = (logits[:, start - 1 : -1] / _HEAT).log_softmax(-1)
    chosen: Tensor = drawn.gather(2, batch.completion_ids[..., None])[..., 0]
    return chosen


def _update(record: Record, policy: Any, optimizer: Any, number: int) -> Update:
    whole = record.generations[number].batch
    assert whole is not None
    before = len(record.weights) - 1
    named = dict(policy.named_parameters())
    optimizer.zero_grad()
    micros = []
    for rows in torch.tensor([3, 0, 2, 1]).view(_MICRO, -1):
        given = Batch(
            **{name: each[rows] for name, each in vars(whole).items() if each is not None}
        )
        assert given.old is not None
        assert given.reference is not None
        logprobs = _logprobs(policy, given)
        logprobs.retain_grad()
        ratio, gains = (logprobs - given.old).exp(), given.advantages[:, None]
        gap = given.reference - logprobs
        gain = torch.minimum(ratio * gains, ratio.clamp(0.8, 1.2) * gains)
        each = (0.04 * (gap.exp() - gap - 1) - gain) * given.loss_mask
        loss = each.sum() / whole.loss_mask.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        micros.append(
            MicroBatch(
                number,
                given,
                before,
                _forward(given),
                logprobs.detach(),
                grad_logprobs=logprobs.grad,
                loss=float(loss.detach()),
            )
        )
    gradients = {name: each.grad.clone() for name, each in named.items()}
    torch.nn.utils.clip_grad_norm_(policy.parameters(), record.settings.max_grad_norm)
    clipped = {name: each.grad.clone() for name, each in named.items()}
    state = _state(optimizer, named)
    optimizer.step()
    record.weights.append(_named(policy))
    return Update(
        micros,
        gradients,
        clipped,
        before,
        before + 1,
        "AdamW",
        [ParameterGroup(tuple(named), _RATE, 0.01)],
        state,
        _state(optimizer, named),
    )


def _state(optimizer: Any, named: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    return {
        name: {key: value.clone() for key, value in optimizer.state[each].items()}
        for name, each in named.items()
        if each in optimizer.state
    }


Change = Callable[[dict[str, Any]], object]


def change(folder: Path, how: Change, name: str = "record.json") -> None:
    told = json.loads((folder / name).read_text(encoding="utf-8"))
    how(told)
    (folder / name).write_text(json.dumps(told), encoding="utf-8")


def line(folder: Path) -> str:
    """Return the line that a bad record is refused with, without the folder's path."""
    done = called(main, "rlvr-debug", "check", "--record", str(folder))
    assert (done.returncode, done.stdout) == (2, "")
    [said] = done.stderr.splitlines()
    return str(said).removeprefix("error: ").replace(f"{folder}/", "")


def shares(segments: Any) -> dict[str, tuple[str, float]]:
    return {each["segment"]: (each["status"], each["share"]) for each in segments}


def bare_record(**told: Any) -> Record:
    """A record without a model, and with nothing but what is told."""
    settings = Settings(2, Sampling(), 4)
    given = {"trainer": "bare", "settings": settings, "tokenizer": None, "tools": None}
    return Record(**{**given, "build": lambda: torch.nn.Linear(1, 1), **told})


def only(told: dict[str, Any], *names: str) -> None:
    for name in set(told) - {"version", "trainer", "settings", *names}:
        del told[name]


def nothing(told: dict[str, Any]) -> None:
    only(told)
