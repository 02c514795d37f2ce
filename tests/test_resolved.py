"""results/study.json: what is written is what every job reads, of an older version too."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr_debug import blocks
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json
from rlvr_debug.jobs import Evaluation, Serving, Trained, read_job, settings_digest
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params
from rlvr_debug.study.resolved import Study, read_study, resolve, write_study
from rlvr_debug.trainers import Job
from tests.study_file import changed, overlaid

DEFAULT = load_params(ROOT / "params.yaml")
SHIPPED = sorted((ROOT / "studies").glob("*.yaml"))


def turned(value: Any) -> Any:
    """With all keys in the opposite order."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return value


def digests(study: Study) -> dict[str, str]:
    """Of all that each job is told."""
    return {job: settings_digest(parts) for job, parts in study.jobs({}).items()}


KINDS: dict[str, Any] = {
    "serve": Serving,
    "train": Job,
    "evaluate": Evaluation,
    "check_case": Job,
    "ahead": bool,
    "evaluate_by_verifiers": int,
}


@pytest.mark.parametrize("overlay", [None, *SHIPPED], ids=lambda path: path.stem if path else "-")
def test_a_job_reads_what_the_workflow_resolved(overlay: Path | None, tmp_path: Path) -> None:
    study = resolve(load_params(ROOT / "params.yaml", overlay), Path("../.."))
    write_study(study, tmp_path / "study.json")
    read = read_study(tmp_path / "study.json")
    assert read.results == tmp_path
    jobs = replace(study, results=tmp_path).jobs({})
    assert read.jobs({}) == jobs
    # of each kind and environment the first: the others are read by the same code
    first = {tuple(name.split("/")[:2]): name for name in reversed(jobs)}
    for name in first.values():
        kind, expected = KINDS.get(name.split("/")[0], dict), jobs[name]
        found = read_job(tmp_path / "study.json", name, kind)
        assert settings_digest(found) == settings_digest(expected)
        assert kind is dict or found == expected
    assert (read.runs, read.phases, read.unmapped) == (study.runs, study.phases, study.unmapped)


def test_the_order_of_keys_changes_neither_the_file_nor_what_a_job_is_told(tmp_path: Path) -> None:
    study = resolve(DEFAULT, Path())
    other = resolve(blocks.checked(Params, turned(blocks.told(DEFAULT)), "params"), Path())
    for name, each in (("a", study), ("b", other)):
        write_study(each, tmp_path / name / "study.json")
    assert (tmp_path / "a/study.json").read_bytes() == (tmp_path / "b/study.json").read_bytes()
    assert digests(study) == digests(other)


def touched(**keys: Any) -> set[str]:
    """The jobs of the default study that are told something else with these values of params.yaml."""
    before = digests(resolve(DEFAULT, Path()))
    after = digests(resolve(changed(DEFAULT, **keys), Path()))
    return {job for job in before if before[job] != after.get(job)}


def test_an_edit_reaches_the_jobs_that_it_touches_and_no_others() -> None:
    hypotheses = {"kl-penalty": {"arms": {"kl-beta-0": {"training": {"kl_beta": 0.01}}}}}
    assert {job.split("/")[2] for job in touched(hypotheses=hypotheses)} == {"kl-beta-0"}
    assert touched(verdicts={"minimum_effect": 0.2}) == {"judged_by"}
    assert touched(launch={"devices": "0"}) == set()
    evaluations = touched(evaluation={"seed": 5})
    assert {job.split("/")[0] for job in evaluations} == {"evaluate"}
    # what another trainer would read
    assert touched(command={"stall_seconds": 5}) == set()


def test_an_environment_with_another_base_model_has_it_in_every_job_and_no_shared_server() -> None:
    params = changed(DEFAULT, base_models={"gsm8k": "models/other"}, sampler="vllm")
    study = resolve(params, Path("../.."))
    assert {"musique", "gsm8k"} <= set(study.environments)
    for name, run in study.trained.items():
        model = "models/other" if run.environment == "gsm8k" else "models/tiny"
        for job in (study.training(name), study.evaluation(run.environment, name)):
            assert job.base_model == Path("../..", model)
    assert study.serving().base_model == Path("../../models/tiny")
    shared = Path("results/server/endpoint.json")
    assert study.evaluation("musique").sampling.endpoint == shared
    assert study.evaluation("gsm8k").sampling.endpoint is None


@pytest.mark.parametrize("shared_by", ["run", "arm", "study"])
def test_trainings_share_a_server_of_vllm_as_params_yaml_says(shared_by: str) -> None:
    vllm = {"environment": "vllm-cpu", "shared_by": shared_by}
    params = changed(DEFAULT, sampler="vllm", vllm=vllm, training={"lora_r": 8})
    study = resolve(params, Path())
    run = study.run("musique/case/0")
    place = {"run": None, "arm": "case", "study": "study"}[shared_by]
    expected = Path(f"results/server/musique/{place}/endpoint.json") if place else None
    assert study.training(run.name).sampling.endpoint == study.shared_server(run) == expected
    if not expected:
        return
    serving = study.serving_policies(expected)
    sharing = [r for r in study.trained.values() if study.shared_server(r) == expected]
    assert serving.trained == Trained(8, len(sharing))
    assert serving.sampling.server["port"] == 0
    assert {r.arm for r in sharing} == {"case"} if shared_by == "arm" else len(sharing) > 3
    with pytest.raises(InputError, match="no run of the study samples from this server"):
        study.serving_policies(Path("results/server/musique/other/endpoint.json"))


def test_a_run_that_the_study_does_not_have_is_one_line_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no run 'musique/cas/0': did you mean 'musique/case/0'"):
        resolve(DEFAULT, Path()).training("musique/cas/0")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"runs": 3}', '{"runs": [{}], "root": "."}'])
def test_a_file_that_is_no_study_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(InputError, match=r"study\.json: (expected JSON|not a study)"):
        read_study(tmp_path / "study.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "expected JSON"),
        ("[]", "no job 'train/musique/case/0'"),
        ('{"train/musique/case/1": {}}', "did you mean 'train/musique/case/1'"),
        ('{"train/musique/case/0": {"run": 3}}', "key 'train/musique/case/0.run': "),
    ],
)
def test_a_file_without_the_job_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.json").write_text(text)
    with pytest.raises(InputError, match=re.escape(said)) as error:
        read_job(tmp_path / "study.json", "train/musique/case/0", Job)
    assert str(error.value).startswith(f"{tmp_path / 'jobs.json'}: ")


# --- what was written for an older version


# arms as the first params.yaml had them, each with all that it changes
FIRST: dict[str, Any] = {
    "hidden-context": {"attention-mask": {"swap": ["attention_mask"]}},
    "sequence-mismatch": {
        "prompt-tools": {"swap": ["trained_prompt"]},
        "generation-prompt": {"swap": ["trained_tool_turn"]},
    },
    "kl-penalty": {"kl-beta-0": {"training": {"kl_beta": 0.0}}},
    "advantage-scaling": {"no-scaling": {"training": {"scale_rewards": "none"}}},
    "lora-weight-sync": {"forced-sync": {"swap": ["sync"]}},
    "library-functionality": {"gsm8k": {"environment": "gsm8k"}},
}
NAMED = {"design": "fixed", "seeds": [0, 1], "training": {"steps": 8}}


def test_arms_that_are_spelled_out_as_in_the_first_version_are_those_of_their_causes(
    tmp_path: Path,
) -> None:
    spelled = {slug: {"arms": arms} for slug, arms in FIRST.items()}
    first = resolve(overlaid(tmp_path, **NAMED, hypotheses=spelled), ROOT)
    assert first.runs == resolve(overlaid(tmp_path, **NAMED), ROOT).runs


def test_a_study_that_was_resolved_before_a_key_was_there_is_read(tmp_path: Path) -> None:
    """A newer key that says what was so before stands in no resolved study, so that nothing runs again for it either."""
    path = tmp_path / "study.json"
    write_study(resolve(overlaid(tmp_path, **NAMED), ROOT), path)
    params = read_json(path)["params"]
    assert "verifiers_rows" not in params["evaluation"]
    assert read_study(path).params.evaluation.verifiers_rows == 0
