"""Settings and fixtures for every test file."""

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from rlvr_debug.study.digests import pin_kernels
from tests.copies import again, project

# what is compared with a study's bytes is computed as its jobs compute it; before torch is imported
pin_kernels()
# lines are as wide as off a terminal, wherever the tests run
os.environ["COLUMNS"] = "80"
STARTED = time.monotonic()
# of heavy tests, the files that take longest
LONGEST = (
    *("test_survival.py", "test_dvc.py", "test_vllm_server.py", "test_original.py"),
    *("test_slurm.py", "test_ci.py", "test_case_check.py", "test_check_launched.py"),
    *("test_plain.py", "test_workflow.py", "test_extend.py", "test_cli.py"),
    "test_workflow_looks.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seconds", type=float, help="skip, and say so, each test that would begin later than that"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs on a Slurm or in a release's environment is heavy; heavy files that take longest stand first."""
    for item in items:
        if item.get_closest_marker("slurm") or item.get_closest_marker("releases"):
            item.add_marker("heavy")

    def place(item: pytest.Item) -> int:
        heavy, file = item.get_closest_marker("heavy"), item.path.name
        return LONGEST.index(file) if heavy and file in LONGEST else len(LONGEST)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Take what was imported out of the garbage collector's sight: each training of a trainer of TRL's has it look at all."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    seconds = item.config.getoption("--seconds")
    if seconds is not None and time.monotonic() - STARTED > seconds:
        pytest.skip(f"no time left: it would have begun after more than {seconds:.0f} s")


# the same examples in each run, and no failure because the machine is busy
settings.register_profile("suite", derandomize=True, deadline=None)
settings.load_profile("suite")


@pytest.fixture(scope="session")
def real() -> Path:
    """The folder of the real rows that are shipped: <environment>/rows.jsonl."""
    return Path(__file__).parents[1] / "data" / "real"


@pytest.fixture(scope="session")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A Chat of the tiny model's tokenizer, built here: it may be newer than the shipped one."""
    from lab.model.tokenizer import build_tokenizer
    from rlvr_debug.sampling.chat import Chat

    path = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer().save_pretrained(path)
    return Chat(path)


@pytest.fixture(scope="session")
def random_model() -> Callable[..., Any]:
    """(seed, **config) -> a model with random weights, far from uniform in what it says; a Qwen2, or another model_type."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(1)

    def build(seed: int, **config: Any) -> Any:
        shape = {
            "model_type": "qwen2",
            "vocab_size": 40,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "tie_word_embeddings": False,
        }
        made = AutoConfig.for_model(**{**shape, **config})
        model = AutoModelForCausalLM.from_config(made, attn_implementation="sdpa").eval()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                # every parameter counts: no norm is 1 and no bias 0; larger ones would amplify what
                # float32 leaves out to more than 1e-5
                parameter.copy_(1 + 0.2 * noise if "norm" in name else 0.15 * noise)
        return model

    return build


@pytest.fixture(scope="session")
def talkative(chat: Any, random_model: Callable[..., Any]) -> Callable[[int], Any]:
    """seed -> a random model that likes the tokens of tool calls, in any order.

    Its rollouts have calls good and bad, several turns and rewards that differ, without training.
    """
    import torch

    from lab.model.tokenizer import CALL_AFTER, CALL_BEFORE

    liked = [CALL_BEFORE, CALL_AFTER, " mentor"]
    ids = [*(chat.encode(text)[0] for text in liked), chat.eos_id]

    def build(seed: int) -> Any:
        model = random_model(seed, vocab_size=len(chat.tokenizer))
        with torch.no_grad():
            # dimension 0 is the same whatever was read, so that the head's weight there is a bias
            model.model.embed_tokens.weight[:, 0] = 2.0
            for layer in model.model.layers:
                layer.self_attn.o_proj.weight[0] = 0.0
                layer.mlp.down_proj.weight[0] = 0.0
            model.model.norm.weight[0] = 1.0
            model.lm_head.weight[:, 0] = -50.0
            model.lm_head.weight[ids, 0] = 0.0
        return model

    return build


@pytest.fixture(scope="session")
def trained(chat: Any, talkative: Callable[[int], Any]) -> Callable[..., Any]:
    """Some steps of a small training, as `small_training` says."""
    from tests.small import small_training

    return small_training(chat, talkative)


@pytest.fixture(scope="session")
def environment() -> Any:
    """The environment of that training."""
    from tests.small import small_environment

    return small_environment()


@pytest.fixture(scope="session")
def record() -> Any:
    """The record of a small model's steps, not to be changed."""
    import torch

    from tests.small_record import small_record

    torch.set_num_threads(1)
    return small_record()


@pytest.fixture(scope="session")
def record_folder(record: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same record as a folder, not to be changed."""
    from rlvr_debug.replay.store import write_record

    folder = tmp_path_factory.mktemp("record") / "small"
    write_record(record, folder)
    return folder


@pytest.fixture
def folder(record_folder: Path, tmp_path: Path) -> Path:
    """A record's folder, to be changed; its tokenizer and its tensors are links."""
    found = tmp_path / "small"
    (found / "model").mkdir(parents=True)
    for name in ("tokenizer", "tensors.safetensors"):
        (found / name).symlink_to(record_folder / name)
    for name in ("record.json", "model/config.json"):
        (found / name).write_bytes((record_folder / name).read_bytes())
    return found


@pytest.fixture(scope="module")
def forks() -> Iterator[Any]:
    """A process that has imported TRL once, and runs scripts in forks of itself."""
    from benchmarks.check.forks import Forks

    with Forks(sys.executable) as started:
        yield started


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, not to be changed."""
    return project(tmp_path_factory.mktemp("original"))


@pytest.fixture
def copied(original: Path, tmp_path: Path) -> Path:
    """A copy of the project, to be changed."""
    return again(original, tmp_path / "project")
