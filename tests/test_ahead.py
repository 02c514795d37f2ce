"""The held-out evaluation of a run in the process that trained it: the same bytes, taken only where they are."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare
from rlvr_debug.errors import InputError
from rlvr_debug.evaluation import evaluate_ahead, evaluate_model, take_evaluation
from rlvr_debug.files import write_text
from rlvr_debug.jobs import Evaluation, Sampling
from rlvr_debug.study.params import load_params
from rlvr_debug.study.resolved import Study, resolve
from rlvr_debug.trainers import load_trainer

RUN = "musique/control/0"


def study_in(folder: Path, overlay: str = "") -> Study:
    write_text(folder / "overlay.yaml", f"study: ahead\ndesign: fixed\nseeds: [0]\n{overlay}")
    params = load_params(ROOT / "params.yaml", folder / "overlay.yaml")
    return replace(resolve(params, ROOT), results=folder / "results")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """With one run of one step, that is evaluated ahead; not to be changed."""
    folder = tmp_path_factory.mktemp("ahead")
    study = study_in(folder, "training: {steps: 1, prompts_per_step: 2, save_steps: 1}\n")
    data = {**study.params.data_settings("musique"), "rows": 40, "heldout": 4}
    prepare("musique", data, study.rows("musique", "train").parent)
    job = study.training(RUN)

    def then() -> None:
        # a kill now goes on from here
        assert list((job.out / "checkpoint").iterdir())
        evaluate_ahead(study.evaluation("musique", RUN))

    load_trainer("own").train(job, then)
    assert not (job.out / "checkpoint").exists()
    return study


def taken(job: Evaluation, left: bytes, out: Path) -> bool:
    """Whether that evaluation is of that job, where it is left."""
    assert job.weights is not None
    place = job.weights.with_name("evaluated.json")
    place.write_bytes(left)
    found = take_evaluation(job, out)
    assert not place.exists()
    return found


@pytest.fixture(scope="module")
def left(trained: Study) -> bytes:
    return (trained.results / "runs" / RUN / "evaluated.json").read_bytes()


def test_what_a_training_left_is_what_a_job_of_its_own_finds_to_the_byte(
    trained: Study, left: bytes, tmp_path: Path
) -> None:
    job = trained.evaluation("musique", RUN)
    assert taken(job, left, tmp_path / "ahead.json")
    evaluate_model(job, tmp_path / "own.json")
    assert (tmp_path / "ahead.json").read_bytes() == (tmp_path / "own.json").read_bytes()
    # with nothing left, the job is for it
    assert not take_evaluation(job, tmp_path / "again.json")


CHANGES: dict[str, Callable[[Evaluation], Evaluation]] = {
    "seed": lambda job: replace(job, seed=1),
    "temperature": lambda job: replace(job, temperature=0.7),
    "settings": lambda job: replace(job, settings={**job.settings, "top_n": 2}),
    "sampler": lambda job: replace(job, sampling=Sampling("vllm")),
    "code": lambda job: replace(job, code="0123456789ab"),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_an_evaluation_by_other_settings_or_code_is_not_taken(
    trained: Study, left: bytes, changed: str, tmp_path: Path
) -> None:
    job = CHANGES[changed](trained.evaluation("musique", RUN))
    assert not taken(job, left, tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("file", ["weights", "rows"])
def test_an_evaluation_of_other_weights_or_rows_is_not_taken(
    trained: Study, left: bytes, file: str, tmp_path: Path
) -> None:
    job = trained.evaluation("musique", RUN)
    other = Path(getattr(job, file))
    before = other.read_bytes()
    other.write_bytes(before + b" ")
    try:
        assert not taken(job, left, tmp_path / "out.json")
    finally:
        other.write_bytes(before)


def test_rows_that_cannot_be_evaluated_do_not_end_a_training_and_their_job_says_why(
    trained: Study, tmp_path: Path
) -> None:
    job = trained.evaluation("musique", RUN)
    before = job.rows.read_bytes()
    job.rows.write_text("{}\n", encoding="utf-8")
    try:
        evaluate_ahead(job)
        assert not take_evaluation(job, tmp_path / "out.json")
        with pytest.raises(InputError, match=r"heldout\.jsonl:1"):
            evaluate_model(job, tmp_path / "out.json")
    finally:
        job.rows.write_bytes(before)


@pytest.mark.parametrize(
    ("overlay", "ahead"),
    [
        ("", True),
        ("sampler: vllm\n", False),
        ("trainer: trl\ncase: healthy\nhypotheses: {}\n", False),
        ("launch: {config: configs/zero3.yaml, processes: 2}\ntraining: {lora_r: 0}\n", False),
    ],
    ids=["own", "served", "trl", "several processes"],
)
def test_only_our_trainer_in_one_process_that_samples_itself_evaluates_too(
    overlay: str, ahead: Any, tmp_path: Path
) -> None:
    assert study_in(tmp_path, overlay).evaluates_ahead == ahead
