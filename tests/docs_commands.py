"""Every command of README.md and docs/, and how it is run by a test.

What stands in none of these tables fails tests/test_docs.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.docs_accounts import Account, Elsewhere, Here, InCI, NotHere

__all__ = ["COMMANDS", "TABLES"]

_WORKFLOW = "tests/test_workflow.py"
_PLAIN = "tests/test_plain.py"
_ORIGINAL = "tests/test_original.py"
_DVC = "tests/test_dvc.py"
_SLURM = "tests/test_slurm.py"
_STUDY = Elsewhere(
    f"{_WORKFLOW}::test_a_study_ends_with_everything_that_people_read", ("rlvr-debug run",)
)
_OVERLAY = Elsewhere(
    f"{_WORKFLOW}::test_the_overlay_s_study_leaves_the_default_one_alone",
    ("rlvr-debug run", "--overlay"),
)
_ON_SLURM = f"{_SLURM}::test_a_study_on_slurm_ends_with_the_bytes_of_a_local_one"
_VALUES = f"{_DVC}::test_values_are_changed_and_taken_back_with_one_training"
_FRESH = f"{_DVC}::test_a_fresh_clone_has_nothing_to_do_once_it_has_pulled"
_BESIDE = f"{_DVC}::test_a_study_that_was_run_is_put_under_dvc_without_running_anything"
_QUEUED = f"{_DVC}::test_a_queued_experiment_runs_the_code_that_it_was_queued_with"
_APPLIED = f"{_DVC}::test_an_experiment_elsewhere_leaves_the_working_tree_alone_until_it_is_applied"
_CHECKED = Elsewhere(
    "tests/test_trainers.py::test_a_program_can_be_checked_before_a_study",
    ("check-program", "--overlay"),
)
_CHANGED = Elsewhere(
    "tests/test_ci.py::test_a_change_that_breaks_the_trainer_fails_with_a_line_and_an_annotation",
    ("rlvr-debug-baseline.json", "train.py"),
)
_EXTEND = "tests/test_extend.py"
_FOLLOWED = f"{_EXTEND}::test_a_study_of_a_new_cause_takes_its_arms_and_plants_its_variant"
_HOURS = NotHere("trains for hours, or on GPUs")
_INSTALLS = NotHere("installs from outside, into the environment that the tests run in")
_ACCOUNT = NotHere("needs an account at a place of somebody else's")
_HELP = Here(says="usage:", adds="--help")
_SLOW_HELP = Here(says="usage:", adds="--help", heavy=True)

_MAKE: Mapping[str, Account] = {
    "make bench": NotHere("twelve minutes of timing, which other tests beside it would spoil"),
    "make bench-faults": NotHere("trains for more than an hour; its subset is a line of .ci/run"),
    "make bench-faults SUBSET=1": InCI(),
    "make bench-faults CASES=../my-faults": Elsewhere(
        "tests/test_folder_of_faults.py::test_a_fault_of_somebody_s_is_located_and_scored",
        ("--snakefile", "--configfile"),
    ),
    "make bench-faults CASES=benchmarks/faults/rewritten": NotHere(
        "trains twenty healthy studies; tests/test_folder_of_faults.py looks at their first steps"
    ),
    "make bench-releases": Elsewhere(
        "tests/test_release_checks.py::"
        "test_a_known_bug_deviates_in_the_broken_release_and_not_in_the_mended_one",
        ("bench_releases",),
    ),
    'make bench-releases ONLY="verifiers 0.1.3"': Elsewhere(
        "tests/test_release_checks.py::test_each_fix_of_0_1_3_mends_its_own_segment_and_no_other",
        ("bench_releases",),
    ),
    "make clean": Here(says="only what git tracks is left"),
    "make compare REV=HEAD~1": Here(says="have the same verdicts"),
    "make compare REV=HEAD~5": Here(says="have the same verdicts", heavy=True),
    "make docs": Here(leaves="site/index.html"),
    "make install": InCI(),
    "make lint": InCI(),
    "make lock": NotHere("asks an index for the newest packages"),
    "make model": NotHere("trains for five minutes"),
    "make plan": Here(says="Study default: "),
    "make plan OVERLAY=skipped-steps.yaml": Elsewhere(_FOLLOWED, ("rlvr-debug plan", "--overlay")),
    "make plan OVERLAY=studies/healthy.yaml": Here(says="Study healthy: ", heavy=True),
    "make plan OVERLAY=studies/qwen2.5-0.5b.yaml": Here(
        says="GPUs, estimated by formula", heavy=True
    ),
    "make plan OVERLAY=studies/qwen2.5-7b.yaml": Here(
        says="GPUs, estimated by formula", heavy=True
    ),
    "make plots": Here(leaves="results/plots/index.html", heavy=True),
    "make plots REV=HEAD~1": Here(leaves="results/plots/index.html", heavy=True),
    "make prune": Here(says="params.yaml names all that is there"),
    "make run": _STUDY,
    "make run ALL=1": Elsewhere(
        f"{_WORKFLOW}::test_a_gate_that_found_a_cause_leaves_the_next_phase_out",
        ("rlvr-debug run", "--all"),
    ),
    "make run OVERLAY=mine.yaml": _OVERLAY,
    "make run OVERLAY=skipped-steps.yaml": _OVERLAY,
    "make run OVERLAY=studies/command.yaml": Elsewhere(
        "tests/test_trainers.py::test_the_example_s_stale_sampler_alone_deviates_in_what_its_files_hold",
        ("command.yaml",),
    ),
    "make run OVERLAY=studies/default-vllm.yaml": Elsewhere(
        "tests/test_vllm_server.py::"
        "test_a_study_whose_engine_is_killed_goes_on_and_ends_as_one_in_process",
        ("vllm",),
    ),
    "make run OVERLAY=studies/original.yaml": NotHere(
        "trains for most of an hour; tests run its parts: two processes, vLLM's server, vf-eval"
    ),
    "make results": NotHere("runs all studies whose results are committed, for hours"),
    "make run OVERLAY=studies/full.yaml": _OVERLAY,
    "make run OVERLAY=studies/full.yaml ALL=1": _OVERLAY,
    "make run OVERLAY=studies/healthy.yaml": _OVERLAY,
    "make run OVERLAY=studies/gpu.yaml": _HOURS,
    "make run OVERLAY=studies/qwen2.5-0.5b.yaml PROFILE=gpu": _HOURS,
    "make run OVERLAY=studies/qwen2.5-7b.yaml PROFILE=slurm-four-gpus": _HOURS,
    "make run OVERLAY=studies/smoke.yaml": InCI(),
    "make run OVERLAY=studies/trl-....yaml": NotHere("stands for four studies of ten minutes"),
    "make run OVERLAY=studies/verifiers-0.1.3.yaml": _OVERLAY,
    "make run OVERLAY=studies/verifiers-0.1.6.post0.yaml": _OVERLAY,
    "make run OVERLAY=studies/kl-explodes.yaml": _OVERLAY,
    "make run PROFILE=gpu OVERLAY=studies/healthy.yaml": Elsewhere(
        f"{_SLURM}::test_jobs_that_need_the_gpu_of_one_machine_run_one_after_another",
        ("--profile", "gpu"),
    ),
    "make run PROFILE=path/to/my/profile": Elsewhere(
        "tests/test_workspace.py::test_a_profile_is_one_of_the_workflow_s_or_a_user_s_own",
        ("profile",),
    ),
    "make run PROFILE=slurm": Elsewhere(_ON_SLURM, ("--profile", "slurm")),
    "make run-real": InCI(),
    "make smoke": InCI(),
    "make test": InCI(),
    "make test-deep": NotHere(
        "takes over five minutes a test; each of its tests has a shorter one"
    ),
    "make test-heavy": InCI(),
    "make track": Here(says="OVERLAY is missing, expected a study's overlay", status=2),
    "make track OVERLAY=studies/full.yaml": Here(leaves="studies/full/dvc.yaml", heavy=True),
    "make track OVERLAY=studies/smoke.yaml": Here(leaves="studies/smoke/dvc.yaml"),
    "make unlock": Here(says="was not locked"),
}

_PYTHON: Mapping[str, Account] = {
    "python -m benchmarks.mistakes.make": _SLOW_HELP,
    "python -m benchmarks.mistakes.score": _HELP,
    "python -m benchmarks.check.run": NotHere("runs 386 trainings under the check"),
    'python -m benchmarks.bench_gpu --gpu "H100 80GB" --profile': Here(
        says="of FLOPs", adds="--device cpu --sizes tiny tiny-lora --repeats 1", heavy=True
    ),
    "python -m benchmarks.check.seeds": _HELP,
    "python -m benchmarks.check.cost --threads 1": _HELP,
    "python -m benchmarks.same_bytes": _HELP,
    "python -m benchmarks.bench_workflow": Here(
        says="no finished study, expected that of `make run`", status=2
    ),
    "python -m benchmarks.faults.located": Elsewhere(
        "tests/test_benchmark.py::test_a_fault_is_located_in_its_stage_or_setting_without_training",
        ("benchmarks.faults.located",),
    ),
    "git worktree add ../rlvr-debug-0.1 330fc7b": NotHere("a checkout of that version"),
    "cd ../rlvr-debug-0.1": NotHere("a checkout of that version"),
    "python -m benchmarks.faults.page": _SLOW_HELP,
    "python -m pytest -m slurm": Here(
        says="tests/test_slurm.py::", adds="--collect-only tests/test_slurm.py"
    ),
    "python -m tests.openai_server": Elsewhere(
        "tests/test_tasksets.py::test_vf_eval_gives_our_rewards", ("tests.openai_server",)
    ),
    "python -m lab.releases.fixes --unpacked .envs/verifiers-0.1.3/lib/python3.11/site-packages "
    "--out .run/patched": Elsewhere(
        "tests/test_fixes.py::test_all_patches_apply_together_to_a_copy",
        ("fixes",),
    ),
    "python scripts/build_env.py vllm-cpu": Elsewhere(
        "tests/test_vllm_server.py::test_vllm_s_own_parser_reads_what_params_say",
        ("vllm-cpu",),
    ),
    "python scripts/draw_charts.py --study results/study.json --out .run/charts": Here(
        leaves=".run/charts/effects.svg"
    ),
    'python scripts/train_musique.py train --datasets "bdsaglam/musique-mini,answerable,train[:100]" '
    "--batch-size 8 --num-generations 8 --max-steps 50 --logging-steps 1 --output-dir "
    "./outputs/debug-h0X-test": Elsewhere(
        f"{_ORIGINAL}::test_a_command_for_one_process_trains", ("outputs/debug-h0X-test",)
    ),
    "python scripts/train_musique.py train --sampler vllm --vllm-environment vllm-cpu --max-steps 2": (
        Elsewhere(
            f"{_ORIGINAL}::test_vllm_s_server_rolls_out",
            ("python scripts/train_musique.py train --sampler vllm --vllm-environment vllm-cpu",),
        )
    ),
    "python scripts/train_musique.py train --help": Here(says="--loss-type"),
    "python scripts/verify_kl_direction.py": Here(says="KL", heavy=True),
    "python scripts/verify_kl_importance_sampling.py": Here(says="k3", heavy=True),
    "python -m lab.pages": Here(says="docs/hypotheses.md", heavy=True),
    "python -m lab.scaling": Here(says=""),
    "python -m lab.scaling --overlay studies/qwen2.5-7b.yaml": Here(
        says="GPUs, estimated by formula"
    ),
}

_CLI = "tests/test_cli.py"
_COMMAND_LINE: Mapping[str, Account] = {
    "rlvr-debug COMMAND --help": Elsewhere(
        f"{_CLI}::test_help_has_examples_that_are_commands_with_options_that_there_are", ("--help",)
    ),
    "rlvr-debug check train.py --model Qwen/Qwen2.5-0.5B-Instruct": Elsewhere(
        "tests/test_check_command.py::test_a_script_is_checked_and_ended", ("rlvr-debug", "check")
    ),
    "python examples/record_steps.py runs/plain": Elsewhere(
        "tests/test_record.py::test_a_plain_loop_that_records_itself_agrees_and_its_mistake_is_found_and_named",
        ("examples/record_steps.py",),
    ),
    "python examples/record_steps.py runs/mistaken --mistake": Elsewhere(
        "tests/test_record.py::test_a_plain_loop_that_records_itself_agrees_and_its_mistake_is_found_and_named",
        ("examples/record_steps.py", "--mistake"),
    ),
    "rlvr-debug check --save runs/record train.py": Elsewhere(
        "tests/test_record.py::test_the_record_of_a_script_says_what_the_script_s_check_said",
        ("check", "--save"),
    ),
    "rlvr-debug check --record runs/record": Elsewhere(
        "tests/test_check_command.py::test_words_that_are_no_check_are_one_line",
        ("check", "--record"),
    ),
    "rlvr-debug check": Here(says="found no script, expected one", status=2),
    "rlvr-debug diagnose": Here(says="Missing argument", status=2),
    "rlvr-debug check train.py": Elsewhere(
        "tests/test_check_command.py::test_a_script_is_checked_and_ended", ("rlvr-debug", "check")
    ),
    "rlvr-debug check --json-out rlvr-debug-baseline.json train.py": _CHANGED,
    "rlvr-debug check --baseline rlvr-debug-baseline.json --annotate train.py": _CHANGED,
    "SCRIPT=train.py BASELINE=rlvr-debug-baseline.json path/to/rlvr-debug/ci/check.sh": _CHANGED,
    "rlvr-debug check-program --overlay mine.yaml": _CHECKED,
    "rlvr-debug check-program --overlay studies/command.yaml": _CHECKED,
    "rlvr-debug clean --overlay studies/smoke.yaml": Here(says="no such study yet"),
    "rlvr-debug compare HEAD~5": Here(says="have the same verdicts"),
    "rlvr-debug diagnose checkpoint-500/trainer_state.json": Here(says="optimizer-no-op"),
    "rlvr-debug diagnose outputs/my-run": Here(says="optimizer-no-op", heavy=True),
    "rlvr-debug diagnose outputs/my-run --html found.html": Here(
        says="optimizer-no-op", leaves="found.html"
    ),
    "rlvr-debug diagnose outputs/my-run --gpus 8 --overlay-out mine.yaml": Here(
        says="optimizer-no-op", leaves="mine.yaml"
    ),
    "rlvr-debug diagnose tests/logs/healthy-gsm8k tests/logs/kl-blow-up": Here(
        says="learning_rate  from step 2"
    ),
    "rlvr-debug diagnose tests/logs/dead-groups --limit 1": Here(says=" 1. reward-signal"),
    "rlvr-debug diagnose tests/logs/truncation --gpus 0": Here(says="context-truncation"),
    "rlvr-debug new-hypothesis my-cause": Here(leaves="src/rlvr_debug/causes/my_cause/cause.yaml"),
    "rlvr-debug new-hypothesis learning-rate": Here(
        leaves="src/rlvr_debug/causes/learning_rate/cause.yaml"
    ),
    "rlvr-debug plan --overlay studies/smoke.yaml": Here(says="Study smoke: "),
    "rlvr-debug history": Here(says="kl-explodes"),
    "rlvr-debug plots HEAD~1": Here(leaves="results/plots/index.html"),
    "rlvr-debug prune --dry-run": Here(says="params.yaml names all that is there"),
    "rlvr-debug check-case": Elsewhere(
        f"{_CLI}::test_a_study_of_which_a_run_is_missing_is_taken_to_its_report", ("check-case",)
    ),
    "rlvr-debug report --overlay studies/smoke.yaml": Here(
        says="study smoke has no report yet", status=2
    ),
    "rlvr-debug run --overlay studies/smoke.yaml --cores 2": Elsewhere(
        f"{_CLI}::test_a_study_of_which_a_run_is_missing_is_taken_to_its_report",
        ("run", "--overlay"),
    ),
    "rlvr-debug run --overlay reverse.yaml -- results/audit/reverse.json": Elsewhere(
        "tests/test_extend.py::test_a_new_environment_is_prepared_and_audited", ("audit",)
    ),
    "rlvr-debug run -- results/metrics.json --dry-run": Here(says="write_tables"),
    "rlvr-debug status --overlay studies/smoke.yaml --json": Here(says='"study": "smoke"'),
    "rlvr-debug status --overlay studies/smoke.yaml --watch": Here(says="not at work"),
    "rlvr-debug status --watch": Here(says="not at work", heavy=True),
    "rlvr-debug track --overlay studies/smoke.yaml": Here(
        leaves="studies/smoke/dvc.yaml", heavy=True
    ),
    "rlvr-debug unlock": Here(says="was not locked"),
}

_DVC_AND_SNAKEMAKE: Mapping[str, Account] = {
    "SNAKEMAKE_PROFILE=workflow/profiles/slurm dvc repro": Elsewhere(
        _ON_SLURM, ("SNAKEMAKE_PROFILE", "dvc repro")
    ),
    "SNAKEMAKE_PROFILE=workflow/profiles/slurm snakemake": Elsewhere(
        _ON_SLURM, ("SNAKEMAKE_PROFILE", "snakemake")
    ),
    "dvc checkout": Elsewhere(_VALUES, ("checkout",)),
    "dvc commit -f": NotHere("what the page says never to do"),
    "dvc exp apply low": Elsewhere(_APPLIED, ("exp apply",)),
    "dvc exp run --queue -S $KEY=0.03": Elsewhere(_QUEUED, ("exp run --queue",)),
    "dvc exp run --run-all": Elsewhere(_QUEUED, ("exp run --run-all",)),
    "dvc exp run --temp --name low -S $KEY=0.02": Elsewhere(_APPLIED, ("exp run --temp --name",)),
    "dvc exp run -S $KEY=0.01": Elsewhere(
        f"{_DVC}::test_an_experiment_runs_what_it_changes", ("exp run -S",)
    ),
    "dvc exp show --only-changed": Here(says="workspace"),
    "dvc metrics diff": Here(),
    "dvc metrics diff HEAD~1": Here(heavy=True),
    "dvc params diff HEAD~1": Here(),
    "dvc plots": NotHere("a group of commands; the one that is used stands below it"),
    "dvc plots diff HEAD~1 --targets results/tables/curves.csv": Here(
        leaves="dvc_plots/index.html"
    ),
    "dvc pull": Elsewhere(_FRESH, ("pull",)),
    "dvc push": Elsewhere(_FRESH, ("push",)),
    "dvc remote add --default store /mnt/results": Here(says="Setting 'store' as a default"),
    "dvc remote add --default store s3://bucket/path": _ACCOUNT,
    "dvc remote modify --local store access_key_id ...": _ACCOUNT,
    "dvc remote modify --local store secret_access_key ...": _ACCOUNT,
    "dvc repro": Elsewhere(_VALUES, ("repro",)),
    "dvc repro studies/smoke/dvc.yaml": Elsewhere(_BESIDE, ("repro",)),
    "dvc status": Here(says="study"),
    "snakemake --cores 2": Elsewhere(
        f"{_PLAIN}::test_plain_snakemake_does_a_default_study_with_the_train_pins_alone",
        ("snakemake --cores 2",),
    ),
    "snakemake --lint": InCI(),
    "snakemake --sdm conda": Elsewhere(
        f"{_PLAIN}::test_sdm_conda_makes_one_environment_of_the_train_pins", ("--sdm conda",)
    ),
    "snakemake --profile": NotHere("a flag that the page warns of"),
    "snakemake -n": Here(says="train", heavy=True),
}

_OTHERS: Mapping[str, Account] = {
    "HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_API_KEY=... "
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True .envs/vllm-cpu/bin/python -m "
    "vllm.entrypoints.launchers.api_server.entry --model models/tiny --served-model-name tiny "
    "--host 127.0.0.1 --port 8000 --dtype float32 --enforce-eager --max-model-len 1024 "
    "--max-num-seqs 64 --no-enable-chunked-prefill --generation-config vllm --logprobs-mode "
    "processed_logprobs --enable-lora --max-loras 4 --max-lora-rank 8 --max-cpu-loras 8": Elsewhere(
        "tests/test_vllm_server.py::test_greedy_rollouts_are_those_in_process", ("vllm-cpu",)
    ),
    "KEY=++hypotheses.kl-penalty.arms.kl-beta-0.training.kl_beta": Elsewhere(
        _VALUES, ("hypotheses.kl-penalty.arms.kl-beta-0.training.kl_beta",)
    ),
    "accelerate launch": NotHere("a name; the commands stand in docs/original.md"),
    "CUDA_VISIBLE_DEVICES=1,2,3 accelerate launch --num-processes 3 --config-file "
    'configs/zero3.yaml scripts/train_musique.py train --datasets "bdsaglam/musique-mini,answerable,'
    'train" --model $MODEL --bf16 --loss-type "grpo" --no-scale-rewards --lora-r 16 --lora-alpha 32 '
    "--batch-size 8 --num-generations 8 --gradient-accumulation-steps 4 --max-grad-norm 0.1 "
    "--learning-rate 1e-5 --num-epochs 10": Elsewhere(
        f"{_ORIGINAL}::test_a_command_for_three_gpus_trains_on_musique_in_two_processes",
        ("--num-processes 3",),
    ),
    'git add . && git commit -m "kl_beta 0.02"': Elsewhere(_VALUES, ("add .", "commit")),
    'git add studies/smoke && git commit -m "smoke under DVC"': Elsewhere(_BESIDE, ("commit",)),
    "cp -r examples/skipped_steps src/rlvr_debug/causes/": Elsewhere(
        f"{_EXTEND}::test_a_study_of_a_new_cause_takes_its_arms_and_plants_its_variant",
        ("cp -r examples/skipped_steps src/rlvr_debug/causes/",),
    ),
    "cp -r examples/reverse src/rlvr_debug/environments/": Elsewhere(
        f"{_EXTEND}::test_a_new_environment_is_prepared_and_audited",
        ("cp -r examples/reverse src/rlvr_debug/environments/",),
    ),
    "git checkout HEAD~1": Elsewhere(_VALUES, ("checkout",)),
    'git commit -m "remote" .dvc/config': NotHere("git's own"),
    "pip check": NotHere("of an environment that is not this one; the page says what it answers"),
    'pip install -c envs/train.txt "dvc[s3]==3.67.1"': _INSTALLS,
    "pip install -e '.[verifiers]'": _INSTALLS,
    "pip install '.[check]'": Elsewhere(
        "tests/test_wheel.py::test_the_check_is_installed_beside_somebody_s_trl_and_leaves_its_versions",
        ("install", "check"),
    ),
    "pip install .": Elsewhere(
        "tests/test_wheel.py::test_the_wheel_in_an_empty_environment_diagnoses_a_log", ("install",)
    ),
    "pip install rlvr_debug-*.whl": Elsewhere(
        "tests/test_wheel.py::test_the_wheel_in_an_empty_environment_diagnoses_a_log", ("install",)
    ),
    "pip install -r envs/train.txt -e .": Elsewhere(
        f"{_PLAIN}::test_plain_snakemake_does_the_default_study_in_an_environment_made_by_pip",
        ("install", "-r envs/train.txt -e ."),
    ),
    "pip wheel --no-deps .": Elsewhere("tests/test_wheel.py::built", ("wheel", "--no-deps")),
    "vf-eval rlvr-debug-musique -n 8 -r 2 -c 2 -m tiny --client.base-url http://127.0.0.1:8000/v1 "
    "--client.api-key-var NONE --sampling.temperature 0 --sampling.max-tokens 24 --no-push --no-rich "
    "-o out --run.name musique": Elsewhere(
        "tests/test_tasksets.py::test_vf_eval_gives_our_rewards",
        ("vf-eval", "--client.base-url", "--sampling.max-tokens", "--no-push", "--run.name"),
    ),
}

TABLES = (_MAKE, _PYTHON, _COMMAND_LINE, _DVC_AND_SNAKEMAKE, _OTHERS)
COMMANDS = {command: account for table in TABLES for command, account in table.items()}
