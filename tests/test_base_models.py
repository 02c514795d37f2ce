"""Base models as they come: in shards, with tied embeddings, in 16 bits, from the hub."""

import json
import os
import re
import shutil
import subprocess
import sys
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
from rlvr_debug.models.base_model import load_model, load_weights, model_config, trained_weights
from rlvr_debug.models.places import BaseModel, base_model, weight_files
from rlvr_debug.processes import variables_apart
from rlvr_debug.sampling.base import Request
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers import Job
from rlvr_debug.trainers.own.training import load_policy, train_run
from rlvr_debug.venvs import build_venv
from tests.hub import COMMIT, Hub, serving, variables_of
from tests.shared import ran
from tests.small import random_reward
from tests.study_file import refused as refused_overlay

TINY = ROOT / "models" / "tiny"
PARAMS = load_params(ROOT / "params.yaml")
EOS = 39
Saved = Callable[..., Path]


@pytest.fixture
def saved(random_model: Callable[..., Any], tmp_path: Path) -> Saved:
    """(tied, shards) -> the folder of a random model, as transformers saves it."""

    def save(tied: bool, shards: bool, **config: Any) -> Path:
        model = random_model(3, tie_word_embeddings=tied, num_key_value_heads=2, **config)
        folder = tmp_path / f"{tied}-{shards}"
        model.save_pretrained(folder, max_shard_size="20KB" if shards else "1GB")
        return folder

    return save


KINDS = pytest.mark.parametrize(
    ("tied", "shards"), [(False, False), (False, True), (True, False), (True, True)]
)


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


@KINDS
def test_a_model_as_transformers_saves_it_says_what_transformers_does(
    saved: Saved, tied: bool, shards: bool
) -> None:
    folder = saved(tied, shards)
    assert (folder / "model.safetensors").exists() != shards
    assert ("lm_head.weight" in load_weights(folder / "model.safetensors")) != tied
    prompt = [5, 9, 2, 30]
    sampler = InProcessSampler(
        model_config(folder), load_weights(folder / "model.safetensors"), ends={EOS}
    )
    [sample] = sampler.sample(
        [Request(0, prompt, None)], temperature=1.0, max_new_tokens=12, seed=0
    )
    ids = torch.tensor([prompt + sample.ids])
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = oracle(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
        wanted = torch.ones_like(ids)
        ours = token_logprobs(load_model(folder, "sdpa"), ids, wanted, wanted)[0, 1:]
    assert torch.allclose(ours, expected, atol=1e-5)
    assert torch.allclose(torch.tensor(sample.logprobs), expected[3:], atol=1e-4)


def test_a_tied_model_is_trained_as_one_tensor(saved: Saved) -> None:
    model = load_model(saved(True, True), "sdpa")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not model.training


def test_a_loaded_model_keeps_no_path_of_this_machine(saved: Saved) -> None:
    model = load_model(saved(False, False), "sdpa")
    settings = random_reward(lora_r=4).training
    adapter = build_policy(model, None, settings, 0).adapter_state()
    assert adapter is not None
    assert not adapter.config.base_model_name_or_path


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


def test_a_shard_that_is_missing_is_one_line(saved: Saved) -> None:
    folder = saved(False, True)
    gone = sorted(folder.glob("*.safetensors"))[1]
    gone.unlink()
    index = folder / "model.safetensors.index.json"
    assert refused(folder) == {f"{gone}: no such file, expected a shard that {index} names"}


def test_a_shard_that_was_cut_short_is_one_line(saved: Saved) -> None:
    folder = saved(False, True)
    part = sorted(folder.glob("*.safetensors"))[1]
    part.write_bytes(part.read_bytes()[:-8])
    assert all("found: Error while deserializing header" in said for said in refused(folder))


@pytest.mark.parametrize(
    "names",
    [{}, [], {"a": 1}, {"a": "../model-00001-of-00002.safetensors"}, {"a": "/etc/hostname"}, None],
    ids=str,
)
def test_an_index_makes_nobody_read_outside_of_the_model_s_folder(saved: Saved, names: Any) -> None:
    folder = saved(False, True)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    assert refused(folder) == {
        f"{index}: expected 'weight_map' with a file of this folder for each tensor"
    }


def test_a_tensor_that_the_index_names_and_no_shard_has_is_one_line(saved: Saved) -> None:
    folder = saved(False, True)
    index = folder / "model.safetensors.index.json"
    names = read_json(index)
    names["weight_map"]["model.extra.weight"] = names["weight_map"]["model.norm.weight"]
    index.write_text(json.dumps(names))
    with pytest.raises(InputError, match=r"tensor 'model.extra.weight' is in no shard"):
        load_weights(folder / "model.safetensors")


def test_weights_of_another_model_are_one_line(saved: Saved) -> None:
    folder = saved(False, False)
    config = read_json(folder / "config.json")
    for layers, said in (
        (3, "missing tensor model.layers.2"),
        (1, "unexpected tensor model.layers.1"),
    ):
        change = {"num_hidden_layers": layers, "layer_types": ["full_attention"] * layers}
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(InputError, match=said):
            load_model(folder, "sdpa")


def test_an_output_layer_that_is_not_the_embedding_is_not_called_tied(saved: Saved) -> None:
    folder = saved(False, False)
    config = read_json(folder / "config.json")
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    with pytest.raises(InputError, match=r"lm_head.weight differs from model.embed_tokens.weight"):
        load_model(folder, "sdpa")


# --- a frozen base in 16 bits


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


@KINDS
def test_such_a_model_is_trained_and_evaluated_from_end_to_end(
    talkative: Callable[[int], Any], tmp_path: Path, tied: bool, shards: bool
) -> None:
    folder = tmp_path / "model"
    model = talkative(0)
    model.config.tie_word_embeddings = tied
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    # in 16 bits, as real ones are
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="50KB" if shards else "1GB")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TINY / name, folder / name)
    settings = {**PARAMS.data_settings("musique"), "rows": 40, "heldout": 4}
    prepare("musique", settings, tmp_path / "data")
    run = random_reward(lora_r=4, bf16=True, group_size=2, save_steps=1)
    environment = {**PARAMS.settings("musique"), "max_new_tokens": 8}
    diagnostics = PARAMS.diagnostics
    out = tmp_path / "out"
    rows = tmp_path / "data" / "train.jsonl"
    train_run(Job(run, environment, folder, rows, out, diagnostics))
    assert len(list(read_jsonl(out / "metrics.jsonl"))) == 2
    before = load_weights(folder / "model.safetensors")
    after = trained_weights(out / "model.safetensors", folder)
    assert before.keys() <= after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    linear = {name for name in before if name.endswith("_proj.weight")}
    assert moved == linear
    for weights, name in ((None, "base.json"), (out / "model.safetensors", "trained.json")):
        heldout = tmp_path / "data" / "heldout.jsonl"
        job = Evaluation("musique", environment, folder, weights, heldout, 1.0, 0, Sampling())
        evaluate_model(job, tmp_path / name)
    assert read_json(tmp_path / "trained.json")["rows"] == 4


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
    beside = [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors.index.json",
    ]
    for name in beside[1:3]:
        shutil.copy(TINY / name, folder)
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


@pytest.fixture
def hub(saved: Saved) -> Iterator[Hub]:
    folder = saved(True, True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TINY / name, folder / name)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files |= {"pytorch_model.bin": b"a pickle", "modeling.py": b"code", "onnx/config.json": b"{}"}
    with serving({"owner/model": files}) as found:
        yield found


def fetch(url: str, model: str, out: Path, home: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return ran(
        [sys.executable, "scripts/fetch_model.py", "--model", model, "--out", str(out)],
        cwd=ROOT,
        env={**kept, **variables_of(url, home)},
    )


def test_a_model_of_the_hub_is_fetched_without_pickles_and_code(hub: Hub, tmp_path: Path) -> None:
    out = tmp_path / "fetched"
    done = fetch(hub.url, "owner/model@main", out, tmp_path / "home")
    assert done.returncode == 0, done.stderr
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


def test_a_model_without_safetensors_is_one_line_and_not_taken_for_whole(
    hub: Hub, tmp_path: Path
) -> None:
    files = hub.repositories["owner/model"]
    hub.repositories["owner/model"] = {n: d for n, d in files.items() if "safetensors" not in n}
    out = tmp_path / "fetched"
    done = fetch(hub.url, "owner/model@main", out, tmp_path / "home")
    assert done.returncode == 2
    assert "error: owner/model@main: it has no model.safetensors, expected" in done.stderr
    assert not (out / "manifest.json").exists()


def test_of_a_model_that_names_no_architecture_no_weights_are_fetched(
    hub: Hub, tmp_path: Path
) -> None:
    files = dict(hub.repositories["owner/model"])
    told = {**json.loads(files["config.json"]), "model_type": None}
    hub.repositories["owner/model"] = {**files, "config.json": json.dumps(told).encode()}
    out = tmp_path / "fetched"
    done = fetch(hub.url, "owner/model@main", out, tmp_path / "home")
    assert done.returncode == 2
    assert done.stderr == (
        "error: owner/model@main/config.json: model_type is None, expected a name\n"
    )
    assert not any(path.endswith(".safetensors") for path in hub.asked)
    assert not (out / "manifest.json").exists()


@pytest.mark.parametrize("model", ["owner/model@main", "owner/other@main"])
def test_a_hub_that_does_not_answer_or_has_no_such_model_is_one_line(
    hub: Hub, tmp_path: Path, model: str
) -> None:
    # port 9 of loopback is nobody's
    url = "http://127.0.0.1:9" if model == "owner/model@main" else hub.url
    done = fetch(url, model, tmp_path / "out", tmp_path / "home")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"error: base model '{model}' cannot be fetched (")
    assert "copy .models/owner--" in done.stderr


def test_a_folder_is_not_fetched(tmp_path: Path) -> None:
    done = fetch("http://127.0.0.1:9", "models/tiny", tmp_path / "out", tmp_path)
    assert done.stderr == "error: --model: found 'models/tiny', expected owner/name@revision\n"
