"""Models of every family that we train: against transformers, from a folder to a trained and judged model; others are refused."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare
from rlvr_debug.errors import InputError
from rlvr_debug.evaluation import evaluate_model
from rlvr_debug.files import read_json, read_jsonl
from rlvr_debug.grpo.logprobs import token_logprobs
from rlvr_debug.jobs import Evaluation, Sampling
from rlvr_debug.models.architectures import FAMILIES, Architecture, why_unread
from rlvr_debug.models.base_model import load_model, load_weights, trained_weights
from rlvr_debug.sampling.base import Request
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.generate import GenerateSampler, base_sampler
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers import Job
from rlvr_debug.trainers.own.training import train_run
from tests.families import MODELS, OTHERS, save_family
from tests.small import random_reward
from tests.study_file import refused

PARAMS = load_params(ROOT / "params.yaml")
RandomModel = Callable[..., Any]
any_model = pytest.mark.parametrize("name", [*MODELS, *OTHERS])


def test_a_model_of_every_family_is_among_those_that_are_tested() -> None:
    assert {told["model_type"] for told in MODELS.values()} == FAMILIES.keys()


@any_model
def test_trainer_and_sampler_say_what_transformers_says(
    random_model: RandomModel, tmp_path: Path, name: str
) -> None:
    save_family(tmp_path, name, random_model)
    oracle = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ours = load_model(tmp_path, "sdpa")
    assert type(ours) is type(oracle)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 256, (3, 90), generator=generator)
    everything = torch.ones_like(ids)
    with torch.no_grad():
        expected = oracle(ids).logits
        assert torch.equal(ours(ids).logits, expected)
        chosen = expected.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
        trained = token_logprobs(ours, ids, everything, everything)[:, 1:]
    assert torch.allclose(trained, chosen, rtol=0, atol=1e-5)
    # read at once, and read token by token behind a cache
    sampler = base_sampler(tmp_path, Chat(tmp_path))
    assert torch.allclose(torch.tensor(sampler.logprobs(ids.tolist())), chosen, rtol=0, atol=1e-5)
    prompt = ids[0, :40].tolist()
    [sample] = sampler.sample(
        [Request(0, prompt, None)], temperature=1.0, max_new_tokens=40, seed=0
    )
    [whole] = sampler.logprobs([prompt + sample.ids])
    step_by_step = torch.tensor(sample.logprobs)
    assert torch.allclose(step_by_step, torch.tensor(whole[39:]), rtol=0, atol=1e-5)


@any_model
@pytest.mark.parametrize("lora_r", [0, 4])
def test_a_family_is_trained_and_judged_from_end_to_end(
    random_model: RandomModel, tmp_path: Path, name: str, lora_r: int
) -> None:
    folder, out = tmp_path / "model", tmp_path / "out"
    save_family(folder, name, random_model)
    settings = {**PARAMS.data_settings("gsm8k"), "rows": 40, "heldout": 4}
    prepare("gsm8k", settings, tmp_path / "data")
    environment = {**PARAMS.settings("gsm8k"), "max_new_tokens": 8}
    rows = tmp_path / "data" / "train.jsonl"
    run = replace(random_reward(lora_r=lora_r), environment="gsm8k")
    train_run(Job(run, environment, folder, rows, out, PARAMS.diagnostics))
    metrics = [row for _, row in read_jsonl(out / "metrics.jsonl")]
    assert len(metrics) == run.training.steps
    for row in metrics:
        # the trainer trains on what the sampler said, after updates too
        assert row["sampler_gap/max_abs"] < 1e-4
        assert row["grad_norm"] > 0
    job = Evaluation(
        "gsm8k",
        environment,
        folder,
        out / "model.safetensors",
        tmp_path / "data" / "heldout.jsonl",
        1.0,
        0,
        Sampling(),
    )
    evaluate_model(job, tmp_path / "judged.json")
    assert read_json(tmp_path / "judged.json")["rows"] == 4
    before = load_weights(folder / "model.safetensors")
    after = trained_weights(out / "model.safetensors", folder)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    # Qwen3's norms of heads are among all weights, and in no adapter
    linear = ("_proj.weight", "c_attn.weight", "c_fc.weight")
    assert moved == {name for name in before if not lora_r or name.endswith(linear)}


# --- any other architecture


def test_no_other_model_is_one_that_our_own_sampler_reads(
    random_model: RandomModel, tmp_path: Path
) -> None:
    for name in OTHERS:
        save_family(tmp_path / name, name, random_model)
        assert why_unread(read_json(tmp_path / name / "config.json"))
        with pytest.warns(UserWarning, match="rollouts come from transformers' generate"):
            assert isinstance(base_sampler(tmp_path / name, Chat(tmp_path / name)), GenerateSampler)


def test_what_the_sampler_draws_follows_the_model_and_the_seed(
    random_model: RandomModel, tmp_path: Path
) -> None:
    """Of many draws of one token, as often as the model says; what a generation_config.json asks for is not heard."""
    model = save_family(tmp_path, "gpt2", random_model)
    (tmp_path / "generation_config.json").write_text('{"top_k": 1, "repetition_penalty": 9.0}')
    sampler = GenerateSampler(tmp_path, [model.config.eos_token_id], "gpt2")
    prompts = [[5, 9, 2], [30, 1, 7, 8, 4, 3]]  # of two lengths
    asked = [Request(n, prompts[n % 2], None) for n in range(2000)]
    first = sampler.sample(asked, temperature=0.7, max_new_tokens=1, seed=4)
    assert first == sampler.sample(asked, temperature=0.7, max_new_tokens=1, seed=4)
    assert first != sampler.sample(asked, temperature=0.7, max_new_tokens=1, seed=5)
    for which, prompt in enumerate(prompts):
        with torch.no_grad():
            expected = (model(torch.tensor([prompt])).logits[0, -1] / 0.7).softmax(-1)
        drawn = torch.tensor([sample.ids[0] for sample in first[which::2]])
        shares = torch.bincount(drawn, minlength=len(expected)) / len(drawn)
        assert float((shares - expected).abs().sum()) < 0.5
        for sample in first[which::2]:
            assert sample.logprobs[0] == pytest.approx(
                float(expected[sample.ids[0]].log()), abs=1e-4
            )
    [greedy] = sampler.sample(asked[:1], temperature=0.0, max_new_tokens=1, seed=0)
    with torch.no_grad():
        plain = model(torch.tensor([prompts[0]])).logits[0, -1].log_softmax(-1)
    assert greedy.ids == [int(plain.argmax())]
    assert greedy.logprobs[0] == pytest.approx(float(plain.max()), abs=1e-4)


def test_a_reply_ends_with_the_token_that_ends_it(
    random_model: RandomModel, tmp_path: Path
) -> None:
    save_family(tmp_path, "gpt2", random_model)
    ends = set(range(0, 256, 3))
    sampler = GenerateSampler(tmp_path, ends, "gpt2")
    asked = [Request(n, [5, 9, 2], None) for n in range(50)]
    samples = sampler.sample(asked, temperature=1.0, max_new_tokens=4, seed=0)
    assert {len(sample.ids) for sample in samples} == {1, 2, 3, 4}
    for sample in samples:
        assert len(sample.logprobs) == len(sample.ids)
        assert sample.stopped == (sample.ids[-1] in ends)
        assert not ends & set(sample.ids[:-1])
        assert sample.stopped or len(sample.ids) == 4


def test_more_tokens_than_the_model_has_positions_are_one_line(
    random_model: RandomModel, tmp_path: Path
) -> None:
    save_family(tmp_path, "gpt2", random_model)
    sampler = GenerateSampler(tmp_path, {0}, "gpt2")
    asked = [Request(0, [1] * 2040, None)]
    with pytest.raises(
        InputError,
        match=r"a conversation and its reply have 2056 tokens, .* at most the model's 2048",
    ):
        sampler.sample(asked, temperature=1.0, max_new_tokens=16, seed=0)


def test_weights_of_another_model_are_refused_by_name(
    random_model: RandomModel, tmp_path: Path
) -> None:
    save_family(tmp_path, "gpt2", random_model)
    sampler = GenerateSampler(tmp_path, {0}, "gpt2")
    weights = sampler.weights()
    assert "lm_head.weight" in weights
    dropped = {k: v for k, v in weights.items() if k != "transformer.h.1.ln_1.bias"}
    for wrong in (dropped, {**weights, "more": torch.zeros(1)}):
        with pytest.raises(
            InputError, match=r"tensor '(transformer.h.1.ln_1.bias|more)' is in only one"
        ):
            sampler.load(wrong)
    sampler.load(load_weights(tmp_path / "model.safetensors"))


# --- what is refused

REFUSED: dict[str, tuple[Any, str]] = {
    "no family": ({"model_type": None}, "model_type is None, expected a name"),
    "no object": ([], "expected an object, as config.json has it"),
}


@pytest.mark.parametrize(("change", "said"), REFUSED.values(), ids=REFUSED)
def test_a_config_that_is_none_is_refused_in_one_line(
    tmp_path: Path, change: Any, said: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "models" / "tiny", folder)
    file = folder / "config.json"
    file.write_text(json.dumps({**read_json(file), **change} if change else change))
    for load in (lambda: load_model(folder, "sdpa"), lambda: base_sampler(folder, Chat(folder))):
        with pytest.raises(InputError) as caught:
            load()
        assert str(caught.value).endswith(said)
    # before anything of a study runs
    found = refused(tmp_path, base_model=str(folder))
    assert found == f"key 'base_model': {folder}/config.json: {said}"


def test_a_model_that_transformers_does_not_know_is_one_line(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "models" / "tiny", tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps({**read_json(file), "model_type": "no-such"}))
    with pytest.raises(InputError, match=r"expected the model of config.json, found: .*no-such"):
        load_model(tmp_path / "model", "sdpa")


def test_a_config_without_its_sizes_is_one_line() -> None:
    with pytest.raises(
        InputError, match=r"^here: key 'hidden_size' is missing, expected a number$"
    ):
        Architecture.of({"model_type": "llama"}, "here")
    with pytest.raises(InputError, match=r"^config.json: expected an object"):
        Architecture.of([])  # type: ignore[arg-type]
