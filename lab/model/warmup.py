"""Builds the tiny base model: decent, improvable, and wrong by habit.

It learns in three phases, each of which ends on what was learned and not on a step count:
recall (look a listed value up by its key, and know the multiplication table: without these,
demonstrations teach nothing for a long time at this size),
demonstrations (both tasks, done right) and habit (most demonstrations follow the wrong habit).
The habits: on MuSiQue the model goes on with the first listed fact instead of the matching one, which
depends on the context; on GSM8K it ends with a sentence instead of `####`, which does not.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from lab.model.tokenizer import CALL_AFTER, CALL_BEFORE, WRONG_FORMAT
from rlvr_debug.data.rows import Row
from rlvr_debug.environments.base import Environment, ToolCall
from rlvr_debug.environments.gsm8k import LARGEST_PRODUCT, STEP_BEFORE, GSM8KRow
from rlvr_debug.environments.musique.rows import ENTITIES, RELATIONS, MuSiQueRow
from rlvr_debug.errors import InputError
from rlvr_debug.grpo.logprobs import token_logprobs
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.sampling.rollouts import rollout


@dataclass(frozen=True)
class WarmupSettings:
    """What ends each phase, and how strong the habit becomes.

    Rewards are of sampled rollouts at temperature 1, unless greedy. habit_*_rate: share of that
    task's demonstrations that follow the habit in the last phase, which ends when rewards are between
    these bounds.
    """

    learning_rate: float = 2e-3
    batch: int = 64
    musique_share: float = 0.55
    recall_loss: float = 0.3
    musique_reward: float = 0.8
    gsm8k_reward: float = 0.75
    habit_musique_rate: float = 0.78
    habit_gsm8k_rate: float = 0.65
    habit_learning_rate: float = 6e-4
    habit_musique_reward: tuple[float, float] = (0.3, 0.56)
    habit_musique_greedy: float = 0.56
    habit_gsm8k_reward: tuple[float, float] = (0.2, 0.5)
    habit_gsm8k_greedy: float = 0.05
    max_steps: int = 1500
    check_every: int = 25


@dataclass(frozen=True)
class Lessons:
    """What the model is taught by, of both environments.

    rows: makes fresh training rows of (environment, count, seed); heldout: rows that phases are judged by.
    """

    chat: Chat
    environments: Mapping[str, Environment]
    rows: Callable[[str, int, int], list[Any]]
    heldout: Mapping[str, list[Row]]


# ids of a sequence, and which of them are trained
Example = tuple[list[int], list[bool]]


def _tiny_config(chat: Chat) -> Qwen2Config:
    # vLLM's CPU build needs heads of 32; with fewer than 4 of them demonstrations teach nothing
    return Qwen2Config(
        architectures=["Qwen2ForCausalLM"],
        vocab_size=len(chat.tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        eos_token_id=chat.eos_id,
        bos_token_id=None,
        pad_token_id=chat.tokenizer.pad_token_id,
    )


def _recall(rng: random.Random, chat: Chat) -> Example:
    """List pairs, then ask for them in another order; lengths vary, else positions are learned."""
    keys = rng.sample(ENTITIES + RELATIONS, rng.randint(4, 16))
    pairs = [(key, rng.choice(ENTITIES)) for key in keys]
    ids: list[int] = []
    trained: list[bool] = []
    for listing, on in ((pairs, False), (rng.sample(pairs, len(pairs)), True)):
        for key, value in listing:
            ids += chat.encode(f" {key} {value}")
            trained += [False, on]
    return ids, trained


def _products(rng: random.Random, chat: Chat) -> Example:
    """Return lines of the multiplication table as GSM8K's answers have them, one or two factors by one."""
    ids: list[int] = []
    trained: list[bool] = []
    while len(ids) < 64:
        a, b, c = (rng.randint(2, 9) for _ in range(3))
        left = rng.choice([a, a * c])
        if left * b > LARGEST_PRODUCT:
            continue
        new = chat.encode(f"{STEP_BEFORE}{left}*{b}={left * b}>>{left * b}")
        ids += new
        trained += [False] * (len(new) - 3) + [True] * 3
    return ids, trained


class _Demonstrator:
    """Makes conversations of rows, as the model should have them or, `lazy`, by habit."""

    def __init__(self, lessons: Lessons) -> None:
        self.chat = lessons.chat
        self.musique_env, self.gsm8k_env = (
            lessons.environments[name] for name in ("musique", "gsm8k")
        )

    def musique(self, row: MuSiQueRow, lazy: bool) -> Example:
        ids = self.chat.prompt(self.musique_env.messages(row), self.musique_env.tools)
        trained = [False] * len(ids)

        def say(text: str) -> None:
            new = [*self.chat.encode(text), self.chat.eos_id]
            ids.extend(new)
            trained.extend([True] * len(new))

        entity = row.question_decomposition[0].question.split(" >> ")[0]
        cited = []
        thought = ""
        for hop in row.question_decomposition:
            relation = hop.question.split(" >> ")[1]
            say(f"{thought}{CALL_BEFORE} {entity} {relation}{CALL_AFTER}")
            result = self.musique_env.call_tool(
                row, ToolCall("retrieve_documents", {"query": f"{entity} {relation}"})
            )
            new = self.chat.tool_turn([result.text])
            ids.extend(new)
            trained.extend([False] * len(new))
            shown = [p for p in row.paragraphs if p.idx in result.indices]
            cited.append(next((p.idx for p in shown if p.title == entity), shown[0].idx))
            if lazy:
                _, relation, entity = shown[0].paragraph_text.replace(",", "").split()[:3]
            else:
                entity = hop.answer
            thought = f"<think> {relation} {entity}</think>"
        cites = "".join(f"[{idx}]" for idx in dict.fromkeys(cited))
        say(f"{thought}<answer> {entity}</answer>\n<cite>{cites}</cite>")
        return ids, trained

    def gsm8k(self, row: GSM8KRow, lazy: bool) -> Example:
        ids = self.chat.prompt(self.gsm8k_env.messages(row), self.gsm8k_env.tools)
        text = row.answer.replace("#### ", WRONG_FORMAT) if lazy else row.answer
        new = [*self.chat.encode(text), self.chat.eos_id]
        return ids + new, [False] * len(ids) + [True] * len(new)


def warm_up(
    lessons: Lessons, settings: WarmupSettings, seed: int, report: Callable[[str], None]
) -> tuple[Qwen2Config, dict[str, Tensor]]:
    """Return the base model's config and weights. report: called with a line of progress."""
    torch.manual_seed(seed)
    config = _tiny_config(lessons.chat)
    run = _WarmUp(lessons, settings, seed, report, config)

    # Tokens that the tasks never ask for take no part in the first two phases: at this size they
    # cost the model most of its learning (recall after 350 steps instead of 1,000).
    samples = [example for step in range(4) for example in run.recall(step)]
    samples += [example for step in range(-20, 0) for example in run.demonstrations(step, 0.5, 0.5)]
    allowed = _allowed(samples, config.vocab_size)

    rate, last = settings.learning_rate, settings.max_steps
    run.learn("recall", rate, run.recall, allowed, lambda loss: loss < settings.recall_loss)
    run.learn(
        "demonstrations",
        rate,
        lambda step: run.demonstrations(step, 0.0, 0.0),
        allowed,
        lambda _: run.is_decent(),
    )
    run.learn(
        "habit",
        settings.habit_learning_rate,
        lambda step: run.demonstrations(
            last + step, settings.habit_musique_rate, settings.habit_gsm8k_rate
        ),
        None,
        lambda _: run.is_habitual(),
    )
    # untied for training, so that full weights can be reloaded by a server
    weights = {name: tensor.detach().clone() for name, tensor in run.model.state_dict().items()}
    config.tie_word_embeddings = False
    return config, weights


class _WarmUp:
    """The model being warmed up, its batches and what it has learned so far."""

    def __init__(
        self,
        lessons: Lessons,
        settings: WarmupSettings,
        seed: int,
        report: Callable[[str], None],
        config: Qwen2Config,
    ) -> None:
        self.lessons, self.chat, self.rows = lessons, lessons.chat, lessons.rows
        self.settings, self.seed, self.report, self.config = settings, seed, report, config
        self.rng = random.Random(f"warm-up {seed}")
        self.musique_share = settings.musique_share
        self.model = Qwen2ForCausalLM(config)
        self.teacher = _Demonstrator(lessons)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), weight_decay=0.01, betas=(0.9, 0.95)
        )
        self.started = time.perf_counter()

    def learn(
        self,
        phase: str,
        rate: float,
        batch: Callable[[int], list[Example]],
        only: Tensor | None,
        learned: Callable[[float], bool],
    ) -> None:
        """Take steps until `learned`, which is asked of the running loss now and then, says so."""
        average = float("nan")
        for step in range(1, self.settings.max_steps + 1):
            for group in self.optimizer.param_groups:
                group["lr"] = rate * min(1.0, step / 50)
            loss = take_step(self.model, self.optimizer, batch(step), only)
            average = loss if step == 1 else 0.95 * average + 0.05 * loss
            if step % self.settings.check_every == 0:
                seconds = time.perf_counter() - self.started
                self.report(f"{phase} {step}: loss {average:.3f}, {seconds:.0f} s")
                if learned(average):
                    return
        raise InputError(
            f"warm-up from seed {self.seed}: phase {phase} did not end in "
            f"{self.settings.max_steps} steps, try another seed"
        )

    def recall(self, step: int) -> list[Example]:
        tables = self.settings.batch // 4
        return [
            *(_products(self.rng, self.chat) for _ in range(tables)),
            *(_recall(self.rng, self.chat) for _ in range(self.settings.batch - tables)),
        ]

    def demonstrations(self, step: int, lazy_musique: float, lazy_gsm8k: float) -> list[Example]:
        """Return demonstrations on rows that no other step has; of each task, this share by habit."""
        musique = round(self.settings.batch * self.musique_share)
        fresh = 1_000_000 * (self.seed + 1) + step
        gsm8k_rows = self.rows("gsm8k", self.settings.batch - musique, fresh)
        return [
            *(
                self.teacher.musique(row, self.rng.random() < lazy_musique)
                for row in self.rows("musique", musique, fresh)
            ),
            *(self.teacher.gsm8k(row, self.rng.random() < lazy_gsm8k) for row in gsm8k_rows),
        ]

    def is_decent(self) -> bool:
        """Say whether both tasks are learned; while one is, most of each batch goes to the other."""
        rewards = self._rewards()
        musique = rewards["musique"] > self.settings.musique_reward
        gsm8k = rewards["gsm8k"] > self.settings.gsm8k_reward
        if musique != gsm8k:
            self.musique_share = 0.25 if musique else 0.75
        return musique and gsm8k

    def is_habitual(self) -> bool:
        rewards = self._rewards()
        musique, gsm8k = self.settings.habit_musique_reward, self.settings.habit_gsm8k_reward
        return (
            musique[0] < rewards["musique"] < musique[1]
            and rewards["musique greedy"] < self.settings.habit_musique_greedy
            and gsm8k[0] < rewards["gsm8k"] < gsm8k[1]
            and rewards["gsm8k greedy"] < self.settings.habit_gsm8k_greedy
        )

    def _rewards(self) -> dict[str, float]:
        """Return the mean reward by environment, sampled and " greedy"."""
        sampler = InProcessSampler(self.config.to_dict(), self.model.state_dict(), self.chat.ends)
        found = {}
        for name, environment in self.lessons.environments.items():
            for kind, temperature in (("", 1.0), (" greedy", 0.0)):
                sampler.reset()
                done = rollout(
                    self.lessons.heldout[name],
                    environment,
                    self.chat,
                    sampler,
                    temperature=temperature,
                    seed=0,
                )
                found[name + kind] = sum(current.reward for current in done) / len(done)
        self.report(", ".join(f"{name} {value:.3f}" for name, value in found.items()))
        return found


def _allowed(examples: list[Example], vocabulary: int) -> Tensor:
    allowed = torch.zeros(vocabulary, dtype=torch.bool)
    for ids, trained in examples:
        allowed[[token for token, on in zip(ids, trained, strict=True) if on]] = True
    return allowed


@contextmanager
def predicting_only(model: Any, allowed: Tensor) -> Iterator[None]:
    """Let no token be predicted but those of `allowed`, bool [V]."""

    def masked(module: Any, given: Any, logits: Tensor) -> Tensor:
        return logits.masked_fill(~allowed, float("-inf"))

    hook = model.lm_head.register_forward_hook(masked)
    try:
        yield
    finally:
        hook.remove()


def take_step(
    model: Any, optimizer: torch.optim.Optimizer, examples: list[Example], only: Tensor | None
) -> float:
    """Take one step on the mean log-probability of the trained tokens; `only` these can be predicted."""
    width = max(len(ids) for ids, _ in examples)
    ids = torch.zeros(len(examples), width, dtype=torch.long)
    real, trained = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    for b, (tokens, mask) in enumerate(examples):
        ids[b, : len(tokens)] = torch.tensor(tokens)
        real[b, : len(tokens)] = 1
        trained[b, : len(tokens)] = torch.tensor(mask)
    if only is not None:
        only[ids[trained]] = True  # a token so rare that no sample had it
    with predicting_only(model, only) if only is not None else nullcontext():
        loss = -token_logprobs(model, ids, real, trained).sum() / trained.sum()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())
