"""verl's own training loop on this machine, recorded there and checked here, without verl.

Its driver and its worker with the FSDP engine on gloo run in one process (programs/verl_driver.py); Ray and the servers of
its sampler do not, and one of transformers stands for these.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.processes import variables_apart
from rlvr_debug.replay.store import check_folder
from rlvr_debug.venvs import build_venv
from tests.shared import free_port, ran

PROGRAMS = ROOT / "tests" / "programs"
ADVANTAGES, REWARDS, MASK = ["advantages"], ["rewards"], ["loss mask"]
WEIGHTS, LOSS = "importance weights", ["loss"]
ACTOR = "actor_rollout_ref.actor."
COOL = "actor_rollout_ref.rollout.temperature=0.7"
SQUARES = f"{ACTOR}calculate_sum_pi_squared=True"


def by(estimator: str, *more: str) -> list[str]:
    return [f"algorithm.adv_estimator={estimator}", *more]


def corrected(*told: str) -> list[str]:
    """Return the settings of a correction for a sampler that computes in bfloat16."""
    return ["+coarse=True", COOL, *(f"algorithm.rollout_correction.{each}" for each in told)]


def rejecting(threshold: str) -> list[str]:
    given = ("rollout_rs=token_k1", f"rollout_rs_threshold={threshold}")
    return corrected("rollout_is=token", *given)


def in_reward(estimate: str, *more: str) -> list[str]:
    given = ("use_kl_in_reward=True", "kl_ctrl.kl_coef=0.5", f"kl_penalty={estimate}", *more)
    return [f"{ACTOR}use_kl_loss=False", *(f"algorithm.{each}" for each in given)]


def in_loss(aggregation: str = "token-mean", *told: str) -> list[str]:
    """Return the settings of a loss that clips, in several passes."""
    clip = ("clip_ratio_low=0.01", "clip_ratio_high=0.02", "clip_ratio_c=1.03", "ppo_epochs=2")
    asked = (*clip, "kl_loss_coef=0.1", f"loss_agg_mode={aggregation}", *told)
    return [f"{ACTOR}{each}" for each in asked]


AGGREGATED = ("token-mean", *(f"seq-mean-token-{how}" for how in ("sum", "mean", "sum-norm")))
# estimators without a reference
PLUS = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")
UNKNOWN = ("rloo", "rloo_vectorized", "opo", *PLUS, "gpg", "remax", "grpo_passk")
# overrides of the configuration, and which segments that verl's driver shows are then not seen
HEALTHY: dict[str, tuple[list[str], list[str]]] = {
    "grpo": (by("grpo"), []),
    "unscaled": (by("grpo", "algorithm.norm_adv_by_std_in_grpo=False"), []),
    "grpo_vectorized": (by("grpo_vectorized"), []),
    "another temperature": ([COOL], []),
    "turns with tools": (["+tools=True"], []),
    "a sampler that lags": (["+stale=True", "trainer.v1.trainer_mode=colocate_async"], []),
    "prompts that are cut": (["data.truncation=left", "data.max_prompt_length=12"], []),
    "no log-probabilities": (["actor_rollout_ref.rollout.calculate_log_probs=False"], ["sampler"]),
    "weights of tokens": (corrected("rollout_is=token"), []),
    "weights of sequences": (corrected("rollout_is=sequence"), []),
    "masked": (corrected("rollout_is=token", "rollout_is_threshold=0.99_1.01"), []),
    "normalised": (corrected("rollout_is=token", "rollout_is_batch_normalize=True"), [WEIGHTS]),
    "rejection": (rejecting("0.99_1.01"), MASK + LOSS),
    "rejection of whole rows": (
        [*rejecting("0.99999_1.00001"), "coarse=by turns"],
        MASK + ADVANTAGES + LOSS,
    ),
    "bypass": (corrected("bypass_mode=True"), ["old log-probabilities", WEIGHTS, *LOSS]),
    "KL k1": (in_reward("kl"), []),
    "KL k2": (in_reward("mse"), []),
    "KL k3": (in_reward("low_var_kl"), []),
    "KL abs": (in_reward("abs"), REWARDS),
    "KL that adapts": (in_reward("kl", "kl_ctrl.type=adaptive"), REWARDS),
    **{name: (by(name), ADVANTAGES) for name in UNKNOWN},
    "gdpo": (by("gdpo", "+algorithm.gdpo_reward_keys=[acc]"), ADVANTAGES),
    "optimal_token_baseline": (by("optimal_token_baseline", SQUARES), ADVANTAGES),
    "tir_optimal_token_baseline": (by("tir_optimal_token_baseline", SQUARES), ADVANTAGES),
    **{name: (in_loss(name), []) for name in AGGREGATED},
    "token-sum": (in_loss("token-sum"), LOSS),
    "loss with KL k1": (in_loss("token-mean", "kl_loss_type=k1"), []),
    "loss with KL k2": (in_loss("seq-mean-token-mean", "kl_loss_type=mse"), []),
    "loss with KL k3 by k2": (in_loss("token-mean", "kl_loss_type=k3+"), LOSS),
    "entropy": (in_loss("seq-mean-token-mean", "entropy_coeff=0.1"), []),
    "entropy that is only seen": (in_loss("token-mean", "calculate_entropy=True"), []),
    "gspo": (in_loss("seq-mean-token-mean", "policy_loss.loss_mode=gspo"), []),
    "gpg's loss": (in_loss("token-mean", "policy_loss.loss_mode=gpg"), LOSS),
    "micro-batches by length": (
        [
            *in_loss("token-mean", "use_dynamic_bsz=True", "ppo_max_token_len_per_gpu=100"),
            "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True",
        ],
        ["micro-batches"],
    ),
    "loss with weights of tokens": (in_loss() + corrected("rollout_is=token"), []),
    "loss of turns with tools": ([*in_loss(), "+tools=True"], []),
    "shuffled": (in_loss("seq-mean-token-sum", "shuffle=True"), []),
}
SEEN = (
    *("groups", "prompt", "sampler", "tokens", "loss mask", "rewards", "advantages"),
    *("old log-probabilities", "reference log-probabilities", WEIGHTS),
    *("micro-batches", "policy log-probabilities", "loss", "gradient", "clip"),
    *("weights between steps", "optimizer step"),
)


def overrides(folder: Path) -> list[str]:
    """Write rows and a reward function, and return verl's settings of a small run."""
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"What is {a} + {b}?"}],
            "reward_model": {"ground_truth": str(a + b)},
            "extra_info": {"index": number},
        }
        for number, (a, b) in enumerate([(1, 2), (3, 4), (5, 6), (2, 9)])
    ]
    pd.DataFrame(rows).to_parquet(folder / "rows.parquet")
    (folder / "reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, **_):\n"
        "    return sum(map(ord, solution_str)) % 7 / 7 + len(ground_truth)\n",
        encoding="utf-8",
    )
    actor, ref, rollout, model = (
        f"actor_rollout_ref.{part}." for part in ("actor", "ref", "rollout", "model")
    )
    return [
        *(f"data.{part}_files={folder}/rows.parquet" for part in ("train", "val")),
        *("data.train_batch_size=2", "data.max_prompt_length=64", "data.max_response_length=12"),
        *("data.dataloader_num_workers=0", f"{model}path={ROOT}/models/tiny"),
        *(f"{model}external_lib=verl_on_cpu", f"{model}use_remove_padding=False"),
        f"+{model}override_config.attn_implementation=sdpa",
        f"{model}enable_gradient_checkpointing=False",
        *(f"{part}strategy=fsdp2" for part in (actor, ref)),
        *(f"{part}use_torch_compile=False" for part in (actor, ref)),
        *(f"+{part}fsdp_config.mixed_precision.param_dtype=fp32" for part in (actor, ref)),
        *(f"{ref}fsdp_config.model_dtype=fp32", f"{actor}ppo_mini_batch_size=1"),
        *(f"{actor}ppo_micro_batch_size_per_gpu=2", f"{actor}optim.lr=1e-4"),
        *(f"{part}log_prob_micro_batch_size_per_gpu=8" for part in (ref, rollout)),
        *(f"{actor}use_kl_loss=True", f"{rollout}name=transformers", f"{rollout}n=4"),
        *(f"{rollout}tensor_model_parallel_size=1", f"{rollout}calculate_log_probs=True"),
        *("algorithm.adv_estimator=grpo", "trainer.device=cpu", "trainer.n_gpus_per_node=1"),
        f"reward.custom_reward_function.path={folder}/reward.py",
        *("trainer.nnodes=1", "trainer.val_before_train=False", "trainer.total_epochs=1"),
        *("trainer.logger=[console]", f"trainer.default_local_dir={folder}/checkpoints"),
    ]


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program in verl's environment, on verl's platform for processors."""
    try:
        python = build_venv("verl")
    except InputError as error:
        pytest.skip(str(error))
    paths = os.pathsep.join(map(str, (ROOT / "src", PROGRAMS)))
    variables = {
        **variables_apart(),
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": "1",
        "MASTER_PORT": str(free_port()),
        "VERL_CPU_TOKENS": "8",
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "verl_platform",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "300",
    }
    return ran((python, *command), cwd=folder, env=variables, timeout=1800)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the record of each case and of each fault."""
    found = tmp_path_factory.mktemp("verl")
    cases: list[dict[str, Any]] = [
        *({"name": name, "overrides": told} for name, (told, _) in HEALTHY.items()),
        {"name": "watched", "told": {"steps": 1, "goes_on": True}},
        {"name": "unwatched", "watched": False},
    ]
    told = {"overrides": overrides(found), "cases": cases}
    (found / "cases.json").write_text(json.dumps(told), encoding="utf-8")
    done = run(found, str(PROGRAMS / "verl_driver.py"), "cases.json", str(found))
    assert done.returncode == 0, done.stderr[-2000:]
    errors = {path.stem: path.read_text("utf-8")[-500:] for path in found.glob("*.error")}
    assert errors == {}
    return found


def outcome(record: Path) -> tuple[list[str], list[str]]:
    """Return the segments that deviate, and those that verl shows and that are not seen."""
    found = {each["segment"]: each["status"] for each in check_folder(record)["segments"]}
    deviating = [segment for segment, status in found.items() if status == "deviates"]
    return deviating, [segment for segment in SEEN if found[segment] == "not seen"]


@pytest.mark.heavy
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_step_of_verl_agrees_in_every_segment_that_is_seen(
    folder: Path, name: str
) -> None:
    assert outcome(folder / name) == ([], HEALTHY[name][1])


@pytest.mark.heavy
def test_faults_are_found_in_the_segment_that_they_are_planted_in(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    firsts = {case: outcome(folder / case)[0][:1] for case in expected}
    wrong = {f: firsts[case] for case, (f, place) in expected.items() if firsts[case] != [place]}
    assert len(expected) >= 62
    assert len(wrong) <= 0.1 * len(expected), wrong


@pytest.mark.heavy
def test_a_recorded_run_ends_in_the_same_weights_to_the_bit(folder: Path) -> None:
    digests = {name: (folder / f"{name}.digest").read_text() for name in ("watched", "unwatched")}
    assert digests["watched"] == digests["unwatched"]
    assert digests["watched"] != (folder / "unscaled.digest").read_text()


@pytest.mark.deep
@pytest.mark.parametrize("v1", [True, False])
def test_the_command_of_a_user_is_recorded_through_ray(tmp_path: Path, v1: bool) -> None:
    """Both trainers, with Ray, verl's agent loop, its reward worker and its FSDP engine as they are."""
    ray = ("num_cpus=32", "resources.NPU=1", "include_dashboard=False")
    more = [f"+ray_kwargs.ray_init.{each}" for each in ray]
    more += ["actor_rollout_ref.rollout.agent.num_workers=1", "reward.num_workers=1"]
    more += ["transfer_queue.backend.SimpleStorage.num_data_storage_units=1"]
    module = ("-m", "verl.trainer.main_ppo", *overrides(tmp_path), *more, f"trainer.use_v1={v1}")
    done = run(tmp_path, "-m", "rlvr_debug.verl", "--record", "record", *module)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "rlvr-debug check --record record"
    assert outcome(tmp_path / "record") == ([], [])
