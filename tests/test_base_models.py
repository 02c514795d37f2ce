"""Base models as they come: of every family, in shards, with tied embeddings, in 16 bits, from the hub; others are refused."""

import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lab.model.calculator import FRAGMENTS
from lab.model.tokenizer import build_tokenizer, rename_for_older
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare
from rlvr_debug.errors import InputError
from rlvr_debug.evaluation import evaluate_model
from rlvr_debug.files import read_json, read_jsonl
from rlvr_debug.grpo.logprobs import token_logprobs
from rlvr_debug.grpo.policy import build_policy
from rlvr_debug.jobs import Evaluation, Sampling
from rlvr_debug.models.architectures import FAMILIES, Architecture, why_unread
from rlvr_debug.models.base_model import load_model, load_weights, model_config, trained_weights
from rlvr_debug.models.places import BaseModel, base_model, weight_files
from rlvr_debug.processes import variables_apart
from rlvr_debug.sampling.base import Request
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.generate import GenerateSampler, base_sampler
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers.base import Job, Run
from rlvr_debug.trainers.own.training import load_policy, train_run
from rlvr_debug.venvs import build_venv
from tests.families import MODELS, OTHERS, save_family
from tests.hub import COMMIT, Hub, serving, variables_of
from tests.shared import ran
from tests.small import random_reward
from tests.study_file import refused as refused_overlay

TINY = ROOT / "models" / "tiny"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
PARAMS = load_params(ROOT / "params.yaml")
RandomModel = Callable[..., Any]
Saved = Callable[..., Path]


@pytest.fixture
def saved(random_model: RandomModel, tmp_path: Path) -> Saved:
    """(tied, shards) -> the folder of a random model, as transformers saves it."""

    def save(tied: bool, shards: bool) -> Path:
        model = random_model(3, tie_word_embeddings=tied, num_key_value_heads=2)
        folder = tmp_path / f"{tied}-{shards}"
        model.save_pretrained(folder, max_shard_size="20KB" if shards else "1GB")
        return folder

    return save


@pytest.fixture
def gpt2(random_model: RandomModel, tmp_path: Path) -> Any:
    """A model that our own sampler does not read, whose folder is `tmp_path`."""
    return save_family(tmp_path, "gpt2", random_model)


def change(file: Path, **values: Any) -> None:
    """Give keys of a file in JSON other values."""
    file.write_text(json.dumps({**read_json(file), **values}))


# --- what is shipped

SHIPPED = {"tiny": (), "tiny-calculator": FRAGMENTS}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_files_are_those_that_lab_writes_and_transformers_4_reads(
    name: str, tmp_path: Path
) -> None:
    shipped = ROOT / "models" / name
    build_tokenizer(SHIPPED[name]).save_pretrained(tmp_path)
    AutoConfig.from_pretrained(shipped).save_pretrained(tmp_path)
    rename_for_older(tmp_path)
    assert {f.name: f.read_text() for f in tmp_path.iterdir()} == {
        f.name: f.read_text() for f in shipped.iterdir() if f.suffix != ".safetensors"
    }
    named = read_json(shipped / "tokenizer_config.json")
    # `backend` and the class TokenizersBackend came with transformers 5, as `rope_parameters` did
    assert (named["tokenizer_class"], "backend" in named) == ("PreTrainedTokenizerFast", False)
    config = read_json(shipped / "config.json")
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]


READ = """
import json, sys
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
import torch
folder, texts, messages = json.load(sys.stdin)
tokenizer, config = AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder)
rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
given = tokenizer(rendered, return_tensors="pt")
model = AutoModelForCausalLM.from_pretrained(folder).float()
print(json.dumps({
    "ids": [tokenizer(text)["input_ids"] for text in texts],
    "rendered": rendered,
    "given": {name: tensor.tolist() for name, tensor in given.items()},
    "ends": [tokenizer.eos_token_id, tokenizer.pad_token_id, config.eos_token_id, config.pad_token_id],
    "sizes": [len(tokenizer), config.vocab_size, config.hidden_size, config.num_key_value_heads],
    "said": model.generate(**given, do_sample=False, max_new_tokens=12).tolist(),
}))
"""


def as_read_by(python: Path | str, folder: Path) -> dict[str, Any]:
    texts = [
        *FRAGMENTS,
        "",
        " a  b\n\n",
        "12 + 345",
        "<|im_start|>user\nhi<|im_end|>",
        "e\u0301 東京 😀",
    ]
    messages = [{"role": "user", "content": "What is 3 + 4?"}]
    done = ran(
        [str(python), "-c", READ],
        input=json.dumps([str(folder), texts, messages]),
        env=variables_apart(),
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["ids"] == [Chat(folder).encode(text) for text in texts]
    return found


@pytest.mark.releases
@pytest.mark.parametrize("name", SHIPPED)
def test_transformers_4_reads_the_shipped_models_as_transformers_5_does(name: str) -> None:
    """4.48.3, the oldest that pyproject.toml allows, said that there is no class TokenizersBackend."""
    try:
        python = build_venv("trl-0.14.0")
    except InputError as error:
        pytest.skip(str(error))
    folder = ROOT / "models" / name
    assert as_read_by(python, folder) == as_read_by(sys.executable, folder)


# --- what is loaded


def assert_as_in_transformers(folder: Path, sampler: InProcessSampler | GenerateSampler) -> Any:
    """Trainer and sampler say what transformers says; return the trainer's model."""
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours = load_model(folder, "sdpa")
    assert type(ours) is type(oracle)
    assert not ours.training
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, min(256, oracle.config.vocab_size), (3, 90), generator=generator)
    everything = torch.ones_like(ids)
    with torch.no_grad():
        expected = oracle(ids).logits
        assert torch.equal(ours(ids).logits, expected)
        chosen = expected.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
        trained = token_logprobs(ours, ids, everything, everything)[:, 1:]
    assert torch.allclose(trained, chosen, rtol=0, atol=1e-5)
    # read at once, and read token by token behind a cache
    assert torch.allclose(torch.tensor(sampler.logprobs(ids.tolist())), chosen, rtol=0, atol=1e-5)
    prompt = ids[0, :40].tolist()
    [sample] = sampler.sample(
        [Request(0, prompt, None)], temperature=1.0, max_new_tokens=40, seed=0
    )
    [whole] = sampler.logprobs([prompt + sample.ids])
    step_by_step = torch.tensor(sample.logprobs)
    assert torch.allclose(step_by_step, torch.tensor(whole[39:]), rtol=0, atol=1e-5)
    return ours


def test_a_model_of_every_family_is_among_those_that_are_tested() -> None:
    assert {told["model_type"] for told in MODELS.values()} == FAMILIES.keys()


@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
def test_trainer_and_sampler_say_what_transformers_says_of_each_family(
    random_model: RandomModel, tmp_path: Path, name: str
) -> None:
    save_family(tmp_path, name, random_model)
    assert bool(why_unread(read_json(tmp_path / "config.json"))) == (name in OTHERS)
    with warnings.catch_warnings(record=True) as warned:
        sampler = base_sampler(tmp_path, Chat(tmp_path))
    slower = [each for each in warned if "from transformers' generate" in str(each.message)]
    assert isinstance(sampler, GenerateSampler) == bool(slower) == (name in OTHERS)
    assert_as_in_transformers(tmp_path, sampler)


@pytest.mark.parametrize(
    ("tied", "shards"), [(False, False), (False, True), (True, False), (True, True)]
)
def test_a_model_as_transformers_saves_it_says_what_transformers_does(
    saved: Saved, tied: bool, shards: bool
) -> None:
    folder = saved(tied, shards)
    assert (folder / "model.safetensors").exists() != shards
    weights = load_weights(folder / "model.safetensors")
    assert ("lm_head.weight" in weights) != tied
    model = assert_as_in_transformers(
        folder, InProcessSampler(model_config(folder), weights, ends={39})
    )
    # a tied one is trained as one tensor
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


def test_a_loaded_model_keeps_no_path_of_this_machine(saved: Saved) -> None:
    model = load_model(saved(False, False), "sdpa")
    settings = random_reward(lora_r=4).training
    adapter = build_policy(model, None, settings, 0).adapter_state()
    assert adapter is not None
    assert not adapter.config.base_model_name_or_path


# --- from end to end


def trained_and_judged(folder: Path, run: Run, environment: str) -> list[dict[str, Any]]:
    """Train the model in that folder on a few rows, beside it, and judge it; return the metrics."""
    data, out = folder.with_name("data"), folder.with_name("out")
    prepare(environment, {**PARAMS.data_settings(environment), "rows": 40, "heldout": 4}, data)
    told = {**PARAMS.settings(environment), "max_new_tokens": 8}
    run = replace(run, environment=environment)
    train_run(Job(run, told, folder, data / "train.jsonl", out, PARAMS.diagnostics))
    saved, judged = out / "model.safetensors", out / "judged.json"
    for weights in (None, saved):
        heldout = data / "heldout.jsonl"
        job = Evaluation(environment, told, folder, weights, heldout, 1.0, 0, Sampling())
        evaluate_model(job, judged)
        assert read_json(judged)["rows"] == 4
    before = load_weights(folder / "model.safetensors")
    after = trained_weights(saved, folder)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    # Qwen3's norms of heads are among all weights, and in no adapter
    linear = ("_proj.weight", "c_attn.weight", "c_fc.weight")
    assert moved == {name for name in before if not run.training.lora_r or name.endswith(linear)}
    metrics = [row for _, row in read_jsonl(out / "metrics.jsonl")]
    assert len(metrics) == run.training.steps
    return metrics


@pytest.mark.parametrize(
    ("name", "lora_r"), [("qwen3", 0), ("gpt2", 0), *((name, 4) for name in (*MODELS, *OTHERS))]
)
def test_a_family_is_trained_and_judged_from_end_to_end(
    random_model: RandomModel, tmp_path: Path, name: str, lora_r: int
) -> None:
    save_family(tmp_path / "model", name, random_model)
    for row in trained_and_judged(tmp_path / "model", random_reward(lora_r=lora_r), "gsm8k"):
        # the trainer trains on what the sampler said, after updates too
        assert row["sampler_gap/max_abs"] < 1e-4
        assert row["grad_norm"] > 0


@pytest.mark.parametrize(("tied", "shards"), [(False, True), (True, False)])
def test_a_model_in_16_bits_is_trained_and_judged_from_end_to_end(
    talkative: Callable[[int], Any], tmp_path: Path, tied: bool, shards: bool
) -> None:
    folder = tmp_path / "model"
    model = talkative(0)
    model.config.tie_word_embeddings = tied
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    # as real ones are
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="50KB" if shards else "1GB")
    for name in TOKENIZER:
        shutil.copy(TINY / name, folder)
    run = random_reward(lora_r=4, bf16=True, group_size=2, save_steps=1)
    trained_and_judged(folder, run, "musique")


def test_only_weights_that_nothing_moves_are_held_in_16_bits() -> None:
    for lora, bf16, dtype in (
        (0, False, torch.float32),
        (0, True, torch.float32),
        (4, False, torch.float32),
        (4, True, torch.bfloat16),
    ):
        settings = random_reward(lora_r=lora, bf16=bf16).training
        policy = build_policy(*load_policy(TINY, settings), settings, 0)
        moved = {p.dtype for p in policy.trained}
        kept = {p.dtype for p in policy.model.parameters() if not p.requires_grad}
        assert moved == {torch.float32}
        assert kept == ({dtype} if lora else set())
        # rotary frequencies in 16 bits would be those of other positions
        assert policy.model.model.rotary_emb.inv_freq.dtype == torch.float32
        weights = policy.weights()
        assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
        # the shipped checkpoint has 16 bits: nothing was rounded
        original = load_weights(TINY / "model.safetensors")
        assert all(torch.equal(weights[name], original[name]) for name in original)


# --- any other architecture


def test_what_the_sampler_draws_follows_the_model_and_the_seed(gpt2: Any, tmp_path: Path) -> None:
    """Of many draws of one token, as often as the model says; what a generation_config.json asks for is not heard."""
    (tmp_path / "generation_config.json").write_text('{"top_k": 1, "repetition_penalty": 9.0}')
    sampler = GenerateSampler(tmp_path, [gpt2.config.eos_token_id], "gpt2")
    prompts = [[5, 9, 2], [30, 1, 7, 8, 4, 3]]  # of two lengths
    asked = [Request(n, prompts[n % 2], None) for n in range(2000)]
    first = sampler.sample(asked, temperature=0.7, max_new_tokens=1, seed=4)
    assert first == sampler.sample(asked, temperature=0.7, max_new_tokens=1, seed=4)
    assert first != sampler.sample(asked, temperature=0.7, max_new_tokens=1, seed=5)
    for which, prompt in enumerate(prompts):
        with torch.no_grad():
            expected = (gpt2(torch.tensor([prompt])).logits[0, -1] / 0.7).softmax(-1)
        drawn = torch.tensor([sample.ids[0] for sample in first[which::2]])
        shares = torch.bincount(drawn, minlength=len(expected)) / len(drawn)
        assert float((shares - expected).abs().sum()) < 0.5
        for sample in first[which::2]:
            assert sample.logprobs[0] == pytest.approx(
                float(expected[sample.ids[0]].log()), abs=1e-4
            )
    [greedy] = sampler.sample(asked[:1], temperature=0.0, max_new_tokens=1, seed=0)
    with torch.no_grad():
        plain = gpt2(torch.tensor([prompts[0]])).logits[0, -1].log_softmax(-1)
    assert greedy.ids == [int(plain.argmax())]
    assert greedy.logprobs[0] == pytest.approx(float(plain.max()), abs=1e-4)


def test_a_reply_ends_with_the_token_that_ends_it(gpt2: Any, tmp_path: Path) -> None:
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


def test_more_tokens_than_the_model_has_positions_are_one_line(gpt2: Any, tmp_path: Path) -> None:
    sampler = GenerateSampler(tmp_path, {0}, "gpt2")
    asked = [Request(0, [1] * 2040, None)]
    with pytest.raises(
        InputError,
        match=r"a conversation and its reply have 2056 tokens, .* at most the model's 2048",
    ):
        sampler.sample(asked, temperature=1.0, max_new_tokens=16, seed=0)


def test_weights_of_another_model_are_refused_by_name(gpt2: Any, tmp_path: Path) -> None:
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


def refused(folder: Path) -> set[str]:
    """What both ways to load it say."""
    said = set()
    for load in (
        lambda: load_model(folder, "sdpa"),
        lambda: load_weights(folder / "model.safetensors"),
    ):
        with pytest.raises(InputError) as caught:
            load()
        said.add(str(caught.value))
    return said


def test_a_shard_that_was_cut_short_or_is_missing_is_one_line(saved: Saved) -> None:
    folder = saved(False, True)
    part = sorted(folder.glob("*.safetensors"))[1]
    part.write_bytes(part.read_bytes()[:-8])
    assert all("found: Error while deserializing header" in said for said in refused(folder))
    part.unlink()
    index = folder / "model.safetensors.index.json"
    assert refused(folder) == {f"{part}: no such file, expected a shard that {index} names"}


@pytest.mark.parametrize(
    "names",
    [{}, [], {"a": 1}, {"a": "../model-00001-of-00002.safetensors"}, {"a": "/etc/hostname"}, None],
    ids=str,
)
def test_an_index_makes_nobody_read_outside_of_the_model_s_folder(saved: Saved, names: Any) -> None:
    folder = saved(False, True)
    index = folder / "model.safetensors.index.json"
    change(index, weight_map=names)
    assert refused(folder) == {
        f"{index}: expected 'weight_map' with a file of this folder for each tensor"
    }


def test_a_tensor_that_the_index_names_and_no_shard_has_is_one_line(saved: Saved) -> None:
    folder = saved(False, True)
    index = folder / "model.safetensors.index.json"
    names = read_json(index)["weight_map"]
    change(index, weight_map={**names, "model.extra.weight": names["model.norm.weight"]})
    with pytest.raises(InputError, match=r"tensor 'model.extra.weight' is in no shard"):
        load_weights(folder / "model.safetensors")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3},
            "missing tensor model.layers.2",
        ),
        (
            {"num_hidden_layers": 1, "layer_types": ["full_attention"]},
            "unexpected tensor model.layers.1",
        ),
        ({"tie_word_embeddings": True}, "lm_head.weight differs from model.embed_tokens.weight"),
        ({"model_type": "no-such"}, "expected the model of config.json, found: .*no-such"),
    ],
)
def test_weights_of_another_model_than_config_json_s_are_one_line(
    saved: Saved, values: dict[str, Any], said: str
) -> None:
    folder = saved(False, False)
    change(folder / "config.json", **values)
    with pytest.raises(InputError, match=said):
        load_model(folder, "sdpa")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": None}, "model_type is None, expected a name"),
        ([], "expected an object, as config.json has it"),
    ],
)
def test_a_config_that_is_none_is_refused_in_one_line(
    tmp_path: Path, config: Any, said: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(TINY, folder)
    (folder / "config.json").write_text(json.dumps(config))
    for load in (lambda: load_model(folder, "sdpa"), lambda: base_sampler(folder, Chat(folder))):
        with pytest.raises(InputError) as caught:
            load()
        assert str(caught.value).endswith(said)
    # before anything of a study runs
    found = refused_overlay(tmp_path, base_model=str(folder))
    assert found == f"key 'base_model': {folder}/config.json: {said}"


def test_a_config_without_its_sizes_is_one_line() -> None:
    with pytest.raises(
        InputError, match=r"^here: key 'hidden_size' is missing, expected a number$"
    ):
        Architecture.of({"model_type": "llama"}, "here")
    with pytest.raises(InputError, match=r"^config.json: expected an object"):
        Architecture.of([])  # type: ignore[arg-type]


# --- where they are


def test_a_name_with_a_revision_is_the_hub_s_and_a_path_is_a_folder() -> None:
    hub = base_model("Qwen/Qwen2.5-7B-Instruct@0123abc")
    assert hub == BaseModel("Qwen/Qwen2.5-7B-Instruct", "0123abc")
    assert hub.folder == ".models/Qwen--Qwen2.5-7B-Instruct-0123abc"
    assert hub.files(ROOT) == [ROOT / hub.folder / "manifest.json"]
    assert base_model("models/tiny").folder == "models/tiny"
    assert base_model("models/tiny").files(ROOT) == [TINY / "model.safetensors"]
    assert weight_files(TINY / "model.safetensors") == [TINY / "model.safetensors"]


def test_jobs_depend_on_every_shard_of_a_folder_and_on_each_file_beside_them(saved: Saved) -> None:
    folder = saved(False, True)
    model = BaseModel(str(folder))
    assert set(model.files(Path("/"))) == set(folder.glob("*.safetensors"))
    for name in TOKENIZER:
        shutil.copy(TINY / name, folder)
    beside = ["config.json", *TOKENIZER[:2], "model.safetensors.index.json"]
    digests = [model.digest(Path("/"))]
    for name in beside:
        with (folder / name).open("a") as file:
            file.write(" ")
        digests.append(model.digest(Path("/")))
    assert len(set(digests)) == 5


def test_a_folder_without_a_tokenizer_is_one_line_before_the_study(tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    said = refused_overlay(tmp_path, base_model=str(tmp_path / "model"))
    assert re.match(r"key 'base_model' is .*, expected a folder with tokenizer.json, or", said)


@pytest.mark.parametrize(
    "name", ["a@b", "a/b@", "@main", "a/b/c@main", "../b@main", "a/b@x/y", "a/b@m n"]
)
def test_a_name_that_is_none_of_the_hub_s_is_one_line(name: str) -> None:
    with pytest.raises(InputError, match=r"expected owner/name@revision"):
        base_model(name)


def test_an_environment_may_have_a_base_model_of_its_own() -> None:
    params = replace(PARAMS, base_model="models/tiny", base_models={"gsm8k": "a/b@c"})
    assert params.base_model_of("musique") == BaseModel("models/tiny")
    assert params.base_model_of("gsm8k") == BaseModel("a/b", "c")


# --- from the hub

# all that one process fetches, as the hub's client takes its address once
FETCH = """
import json, sys
from tests.in_process import script
ends = [script("scripts/fetch_model.py", "--model", model, "--out", out) for model, out in json.load(sys.stdin)]
print(json.dumps([[end.returncode, end.stderr] for end in ends]))
"""


def fetched(url: str, folder: Path, *models: str) -> list[tuple[int, str]]:
    """How fetching each of these models ends, and what it says; the first goes to the folder `0`, and so on."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = ran(
        [sys.executable, "-c", FETCH],
        input=json.dumps([(model, str(folder / str(n))) for n, model in enumerate(models)]),
        cwd=ROOT,
        env={**kept, **variables_of(url, folder / "home")},
    )
    assert done.returncode == 0, done.stderr
    return [(status, said) for status, said in json.loads(done.stdout)]


@pytest.fixture
def hub(saved: Saved) -> Iterator[Hub]:
    folder = saved(True, True)
    for name in TOKENIZER:
        shutil.copy(TINY / name, folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files |= {"pytorch_model.bin": b"a pickle", "modeling.py": b"code", "onnx/config.json": b"{}"}
    told = {**json.loads(files["config.json"]), "model_type": None}
    repositories = {
        "owner/model": files,
        "owner/unnamed": {**files, "config.json": json.dumps(told).encode()},
        "owner/pickled": {n: d for n, d in files.items() if "safetensors" not in n},
    }
    with serving(repositories) as found:
        yield found


def test_a_model_of_the_hub_is_fetched_without_pickles_and_code(hub: Hub, tmp_path: Path) -> None:
    assert fetched(hub.url, tmp_path, "owner/model@main") == [(0, "")]
    out = tmp_path / "0"
    manifest = read_json(out / "manifest.json")
    assert (manifest["name"], manifest["revision"]) == ("owner/model", "main")
    assert manifest["commit"] == COMMIT
    files = hub.repositories["owner/model"]
    wanted = {n: d for n, d in files.items() if n.endswith((".safetensors", ".json", ".jinja"))}
    wanted.pop("onnx/config.json")
    assert manifest["files"] == {n: sha256(d).hexdigest() for n, d in wanted.items()}
    assert {path.name for path in out.iterdir()} == {*wanted, "manifest.json"}
    assert not any(path.endswith((".bin", ".py")) for path in hub.asked)
    # and it is a model
    assert load_model(out, "sdpa").config.tie_word_embeddings
    assert Chat(out).eos_id == Chat(TINY).eos_id


def test_what_is_no_whole_model_is_one_line_and_not_taken_for_one(hub: Hub, tmp_path: Path) -> None:
    asked = ("owner/unnamed@main", "owner/pickled@main", "owner/other@main", "models/tiny")
    said = [said for status, said in fetched(hub.url, tmp_path, *asked) if status == 2]
    assert said[0] == "error: owner/unnamed@main/config.json: model_type is None, expected a name\n"
    assert "error: owner/pickled@main: it has no model.safetensors, expected" in said[1]
    assert said[2].startswith("error: base model 'owner/other@main' cannot be fetched (")
    assert said[3] == "error: --model: found 'models/tiny', expected owner/name@revision\n"
    assert [len(each.splitlines()) for each in said] == [1, 1, 1, 1]
    # of a model that names no architecture no weights are fetched
    assert not any(path.endswith(".safetensors") for path in hub.asked)
    assert not list(tmp_path.glob("*/manifest.json"))


def test_a_hub_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    # port 9 of loopback is nobody's
    [(status, said)] = fetched("http://127.0.0.1:9", tmp_path, "owner/model@main")
    assert (status, len(said.splitlines())) == (2, 1)
    assert said.startswith("error: base model 'owner/model@main' cannot be fetched (")
    assert "copy .models/owner--model-main/ from a machine that has it" in said
