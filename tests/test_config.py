import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlvr_debug import blocks
from rlvr_debug.blocks import checked
from rlvr_debug.causes import hypothesis_names, stage_of, variant_names
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_yaml
from rlvr_debug.grpo.settings import STAGES, TrainingSettings
from rlvr_debug.study import params
from rlvr_debug.study.arms import arms, runs, seeds_of
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers.base import Run
from tests.study_file import changed

CASES = read_yaml(Path(__file__).with_suffix(".yaml"))

ROOT = Path(__file__).parents[1]
PARAMS_FILE = ROOT / "params.yaml"
LOADED = load_params(PARAMS_FILE)
PARAMS: dict[str, Any] = blocks.told(LOADED)
SCHEMA = blocks.json_schema(Params)
KeyPath = Sequence[Any]


def put(value: Any, path: KeyPath, new: Any) -> Any:
    """A copy with `new` at `path`."""
    copied = deepcopy(value)
    place = copied
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = new
    return copied


def without(value: Any, path: KeyPath) -> Any:
    copied = deepcopy(value)
    place = copied
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return copied


def nodes(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Every value in it, with its path."""
    yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from nodes(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from nodes(item, (*path, index))


def full(path: KeyPath) -> str:
    return ".".join(map(str, path))


class Study:
    """A folder with a params.yaml and, where given, an overlay."""

    def __init__(self, folder: Path) -> None:
        self.params, self.overlay = folder / "params.yaml", folder / "overlay.yaml"

    def load(self, params: Any, overlay: Any = None) -> Params:
        """Each a mapping, or the text of the file."""
        given = {self.params: params, **({} if overlay is None else {self.overlay: overlay})}
        for path, value in given.items():
            text = value if isinstance(value, str) else yaml.safe_dump(value, sort_keys=False)
            path.write_text(text, encoding="utf-8")
        return load_params(self.params, None if overlay is None else self.overlay)

    def error(self, params: Any, overlay: Any = None) -> str:
        """What the error says after the name of the file, which it must begin with."""
        with pytest.raises(InputError) as caught:
            self.load(params, overlay)
        message = str(caught.value)
        start = f"{self.params if overlay is None else self.overlay}"
        assert message.startswith(start)
        assert "\n" not in message
        return message.removeprefix(start).removeprefix(": ")


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path)


# --- the files that ship


@pytest.mark.parametrize(
    "overlay",
    [None, *sorted(ROOT.glob("studies/*.yaml")), *sorted(ROOT.glob("tests/studies/*.yaml"))],
    ids=lambda path: path.name if path else "params.yaml",
)
def test_every_study_that_ships_loads_and_has_a_case_a_control_and_all_seeds(
    overlay: Path | None,
) -> None:
    params = load_params(PARAMS_FILE, overlay)
    found = list(runs(params))
    names = [arm.arm for arm in arms(params)]
    assert names[:2] == ["case", "control"]
    assert len(set(names)) == len(names)
    for arm in arms(params):
        own = [run.seed for run in found if run.arm == arm.arm]
        assert len(own) == len(set(own))
        if params.design == "sequential":
            assert own == list(range(len(own)))
        else:
            assert set(own) >= set(seeds_of(params, arm.design))
    if params.design == "fixed":
        told = {seed for arm in arms(params) for seed in seeds_of(params, arm.design)}
        assert {run.seed for run in found} == told


def test_seeds_by_design_are_those_of_each_arm_and_an_overlays_list_is_for_all(
    study: Study,
) -> None:
    by_design = {"others": [0, 1], "control": [0, 1, 2], "alone": [5]}
    found = runs(changed(LOADED, design="fixed", seeds=by_design))
    seeds: dict[str, set[tuple[int, ...]]] = {}
    for design, group in itertools.groupby(found, lambda run: (run.design, run.arm)):
        seeds.setdefault(design[0], set()).add(tuple(run.seed for run in group))
    assert seeds == {
        "case": {(0, 1)},
        "control": {(0, 1, 2)},
        "random_reward": {(0, 1)},
        "repair": {(0, 1)},
        "alone": {(5,)},
    }
    study.load({**PARAMS, "seeds": by_design})
    for_all = study.load(PARAMS, {"study": "other", "seeds": [7]})
    assert {run.seed for run in runs(for_all)} == {7}


def test_arms_that_are_told_the_same_share_all_their_runs() -> None:
    """The only defect of a case, alone, is the case: it was trained on the seeds of both anyway."""
    cases = {"one": {"faults": ["attention-from-loss-mask"]}}
    seeds = {"others": [0], "alone": [0, 1], "control": [2]}
    found = list(runs(changed(LOADED, design="fixed", case="one", cases=cases, seeds=seeds)))
    of = {run.arm: [r.seed for r in found if r.arm == run.arm] for run in found}
    assert of["case"] == of["attention-mask-alone"] == [0, 1]
    assert of["attention-mask"] == of["control"] == [2, 0]
    trained = [(run.trained_as, run.seed) for run in found if run.arm == run.trained_as]
    assert {(run.trained_as, run.seed) for run in found} == set(trained)
    assert len(set(trained)) == len(trained)


def test_the_schema_the_settings_and_the_stages_name_the_same_things() -> None:
    from rlvr_debug.grpo.stages import Stages

    assert tuple(field.name for field in fields(Stages)) == STAGES
    training = SCHEMA["properties"]["training"]["properties"]
    assert list(training) == [field.name for field in fields(TrainingSettings)]
    assert sorted(SCHEMA["properties"]["training"]["required"]) == sorted(training)


# --- errors


@pytest.mark.parametrize(
    ("path", "near"), CASES["an unknown key is named in full with the nearest key"]
)
def test_an_unknown_key_is_named_in_full_with_the_nearest_key(
    path: KeyPath, near: str, study: Study
) -> None:
    said = f"unknown key '{full(path)}': {near}"
    assert study.error(put(PARAMS, path, 1)) == said
    over: Any = 1
    for key in reversed(path):
        over = {key: over}
    assert study.error(PARAMS, {"study": "other", **over}) == said


def test_a_misspelt_key_is_not_just_reported_as_missing(study: Study) -> None:
    misspelt = put(without(PARAMS, ("training", "steps")), ("training", "step"), 40)
    assert study.error(misspelt) == "unknown key 'training.step': did you mean 'steps'?"


# mappings whose keys are names that the user chooses
OPEN = [
    ("cases",),
    ("hypotheses",),
    ("options",),
    *((("hypotheses", s, "arms")) for s in PARAMS["hypotheses"]),
]


def refused(path: KeyPath, value: Any) -> str:
    """What is said of params.yaml with that value there."""
    with pytest.raises(InputError) as caught:
        checked(Params, put(PARAMS, path, value), "params.yaml")
    return str(caught.value)


def test_no_mapping_takes_an_unknown_key() -> None:
    for path, value in nodes(PARAMS):
        if isinstance(value, dict) and path not in OPEN:
            said = f"params.yaml: unknown key '{full((*path, 'zzz'))}'"
            assert refused((*path, "zzz"), 1).startswith(said)


@pytest.mark.parametrize("bad", [-1, math.nan, True, "0.5"], ids=repr)
def test_no_number_takes_what_is_out_of_range_or_no_number(bad: Any) -> None:
    for path, value in nodes(PARAMS):
        if type(value) in (int, float):
            assert refused(path, bad).startswith(f"params.yaml: key '{full(path)}' is ")


@pytest.mark.parametrize(
    "path",
    [
        ("seeds", "others", 0),
        ("data", "musique", "paragraphs"),
        ("environments", "musique", "top_n"),
        ("training", "steps"),
        ("evaluation", "seed"),
    ],
    ids=full,
)
def test_a_whole_number_is_not_taken_as_a_fraction(path: KeyPath, study: Study) -> None:
    """JSON Schema's integer takes 3.0, and range(3.0) fails an hour later."""
    number = float(dict(nodes(PARAMS))[path])
    said = f"key '{full(path)}' is {number}, expected a whole number"
    assert study.error(put(PARAMS, path, number)) == said


@pytest.mark.parametrize(
    ("key", "value", "said"), CASES["what kl in the reward leaves no meaning is refused"]
)
def test_what_kl_in_the_reward_leaves_no_meaning_is_refused(
    key: str, value: Any, said: str, study: Study
) -> None:
    params = put(PARAMS, ("training", "kl_place"), "reward")
    study.load(params)
    error = study.error(put(params, ("training", key), value))
    assert error == f"key 'training.{key}' is {said} with kl_place reward"


@pytest.mark.parametrize(
    ("path", "value", "said"), CASES["a value that makes no sense is named with what was expected"]
)
def test_a_value_that_makes_no_sense_is_named_with_what_was_expected(
    path: KeyPath, value: Any, said: str, study: Study
) -> None:
    assert study.error(put(PARAMS, path, value)).startswith(said)


@pytest.mark.parametrize("path", [(key,) for key in PARAMS], ids=full)
def test_no_key_at_the_top_may_be_missing(path: KeyPath, study: Study) -> None:
    assert study.error(without(PARAMS, path)) == f"key '{full(path)}' is missing"
    assert study.error(put(PARAMS, path, None)).startswith(f"key '{full(path)}' is empty")


def test_rows_of_a_source_need_that_source_s_keys(study: Study) -> None:
    jsonl = put(PARAMS, ("data", "gsm8k", "source"), "jsonl")
    assert study.error(jsonl).startswith("key 'data.gsm8k.path' is missing")
    assert study.error(without(PARAMS, ("data", "gsm8k", "rows"))).startswith(
        "key 'data.gsm8k.rows' is missing"
    )


def with_arm(**arm: Any) -> dict[str, Any]:
    with_it: dict[str, Any] = put(PARAMS, ("hypotheses", "kl-penalty", "arms", "extra"), arm)
    return with_it


@pytest.mark.parametrize(
    ("path", "value", "key", "what", "near"),
    CASES["a name that does not exist is an error with the nearest one"],
)
def test_a_name_that_does_not_exist_is_an_error_with_the_nearest_one(
    path: list[str], value: Any, key: str, what: str, near: str, study: Study
) -> None:
    said = study.error(put(PARAMS, path, value))
    assert said.startswith(f"key '{key}' names the {what} '")
    assert said.endswith(f"which does not exist: did you mean '{near}'?")


def test_two_faults_on_one_stage_are_an_error_and_not_the_last_one(study: Study) -> None:
    of_kl = [name for name in variant_names() if stage_of(name) == "kl"]
    params = put(PARAMS, ("cases", "mine"), {"faults": of_kl[:1]})
    study.load(params)
    params = put(PARAMS, ("cases", "mine"), {"faults": of_kl[:2]})
    assert (
        study.error(params) == "key 'cases.mine.faults' has two faults of one stage, expected one"
    )


@pytest.mark.parametrize("name", ["case", "control", "gsm8k-control", "kl-beta-0-alone"])
def test_an_arm_cannot_take_the_name_of_an_arm_that_every_study_has(
    name: str, study: Study
) -> None:
    params = put(PARAMS, ("hypotheses", "kl-penalty", "arms", name), {"swap": ["kl"]})
    assert study.error(params).endswith(f"arms.{name}' is a reserved name, expected another")


def test_two_arms_cannot_share_a_name_and_so_a_folder(study: Study) -> None:
    arm = {"swap": ["kl"]}
    params = put(with_arm(**arm), ("hypotheses", "hidden-context", "arms", "extra"), arm)
    assert "'hypotheses." in study.error(params)
    assert study.error(params).endswith("too, expected once")


def test_healthy_is_no_name_for_a_case_with_faults(study: Study) -> None:
    params = put(PARAMS, ("cases", "healthy"), {"faults": ["stale-sampler"]})
    assert study.error(params).startswith("key 'cases.healthy' is taken")


# --- YAML


TEXT = PARAMS_FILE.read_text(encoding="utf-8")


def test_a_repeated_key_is_an_error_with_its_line_and_not_the_last_one(study: Study) -> None:
    line = TEXT.count("\n") + 1
    said = study.error(TEXT + "base_model: elsewhere\n")
    assert said == f":{line}: expected YAML, found: key 'base_model' appears twice, expected once"
    nested = study.error(TEXT + "x:\n  1: a\n  '1': b\n")
    assert nested.startswith(f":{line + 2}: ")


@pytest.mark.parametrize("written", ["1e-5", "1E-05", "+1.e-5", "10e-6", "1.0e-5", "0.00001"])
def test_a_number_with_an_exponent_is_a_number(written: str, study: Study) -> None:
    """YAML 1.1 reads 1e-5 as text."""
    overlay = f"study: other\ntraining: {{learning_rate: {written}}}\n"
    assert study.load(PARAMS, overlay).training.learning_rate == 1e-5


@pytest.mark.parametrize("written", ["1e", "e-5", "0x1e-5", "v1e-5", "'1e-5'"])
def test_what_only_resembles_a_number_with_an_exponent_is_text(written: str, study: Study) -> None:
    overlay = f"study: other\ntraining: {{learning_rate: {written}}}\n"
    assert study.error(PARAMS, overlay).startswith("key 'training.learning_rate' is text")


@pytest.mark.parametrize(
    "text", CASES["what is no yaml or no mapping is one line"], ids=lambda text: repr(text[:20])
)
def test_what_is_no_yaml_or_no_mapping_is_one_line(text: str, study: Study) -> None:
    assert "expected" in study.error(text)
    assert "expected" in study.error(PARAMS, text)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"study: caf\xe9")
    for path in (tmp_path, tmp_path / "none.yaml", tmp_path / "latin.yaml"):
        with pytest.raises(InputError) as caught:
            load_params(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)


# --- overlays


def test_an_overlay_needs_a_name_of_its_own(study: Study) -> None:
    assert study.error(PARAMS, {"seeds": [0]}).startswith("key 'study' is missing")
    said = study.error(PARAMS, {"study": PARAMS["study"]})
    assert said.startswith(f"key 'study' is '{PARAMS['study']}'")
    assert said.endswith("choose another")


def test_an_overlay_changes_what_it_names_and_nothing_else(study: Study) -> None:
    path = ("environments", "musique", "weights", "f1")
    overlay = {"study": "other", "environments": {"musique": {"weights": {"f1": 0.25}}}}
    assert blocks.told(study.load(PARAMS, overlay)) == put(
        put(PARAMS, path, 0.25), ("study",), "other"
    )


def test_null_in_an_overlay_removes_the_key(study: Study) -> None:
    overlay = {"study": "other", "hypotheses": {"kl-penalty": None}}
    loaded = blocks.told(study.load(PARAMS, overlay))
    assert loaded == put(without(PARAMS, ("hypotheses", "kl-penalty")), ("study",), "other")
    said = study.error(PARAMS, {"study": "other", "seeds": None})
    assert said == "key 'seeds' is missing"


def test_null_for_a_misspelt_key_is_not_ignored(study: Study) -> None:
    said = study.error(PARAMS, {"study": "other", "hypotheses": {"kl-penlty": None}})
    assert said == "no key 'hypotheses.kl-penlty' that could be removed: did you mean 'kl-penalty'?"
    said = study.error(PARAMS, {"study": "other", "hypothesis": {"kl-penalty": None}})
    assert said == "unknown key 'hypothesis': did you mean 'hypotheses'?"


# --- arms and runs


SICK = {"faults": ["stale-sampler"], "training": {"learning_rate": 0.5, "clip": 0.7}}


def sick_study(study: Study, **arm: Any) -> dict[str, Run]:
    """First run by arm, of a case with one fault and two settings, and with an arm `extra`."""
    params = put(put(with_arm(**arm), ("cases", "mine"), SICK), ("case",), "mine")
    found: dict[str, Run] = {}
    for run in runs(study.load(params)):
        found.setdefault(run.arm, run)
    return found


def test_a_control_has_neither_the_case_s_faults_nor_its_settings(study: Study) -> None:
    controls = [run for run in sick_study(study, swap=["kl"]).values() if run.design == "control"]
    assert {run.arm: run.environment for run in controls} == {
        "control": "musique",
        "gsm8k-control": "gsm8k",
    }
    for run in controls:
        assert (run.faults, run.hypothesis) == ((), "")
        assert run.training == LOADED.training


def test_a_repair_is_the_case_with_what_the_arm_changes(study: Study) -> None:
    found = sick_study(study, training={"clip": 0.9}, swap=["sync"])
    case = found["case"]
    assert (case.design, case.faults) == ("case", ("stale-sampler",))
    assert (case.training.learning_rate, case.training.clip) == (0.5, 0.7)
    repairs = [run for run in found.values() if run.design == "repair"]
    # no arm is about the learning rate, which has one of its own
    [unnamed] = [run for run in repairs if run.hypothesis == "unnamed-training-learning-rate"]
    repairs.remove(unnamed)
    assert unnamed.training == replace(case.training, learning_rate=LOADED.training.learning_rate)
    mended = {run.arm for run in repairs if not run.faults}
    assert mended == {"extra", "forced-sync"}
    assert {run.training.learning_rate for run in repairs} == {0.5}
    assert found["extra"] in repairs
    assert found["extra"].training.clip == 0.9
    assert found["extra"].hypothesis == "kl-penalty"


def test_a_defect_alone_is_the_control_with_that_part_of_the_case(study: Study) -> None:
    found = sick_study(study, training={"clip": 0.9, "kl_beta": 0.0}, swap=["sync", "kl"])
    alone = {name: run for name, run in found.items() if run.design == "alone"}
    unnamed = alone.pop("unnamed-training-learning-rate-alone")
    assert unnamed.training == replace(LOADED.training, learning_rate=0.5)
    assert unnamed.faults == ()
    # the case differs from the control in the sync and the clip, not in any other arm's part
    assert set(alone) == {"extra-alone", "forced-sync-alone"}
    assert {run.hypothesis for run in alone.values()} == {"kl-penalty", "lora-weight-sync"}
    healthy = {**PARAMS["training"]}
    for run, training in (
        (alone["extra-alone"], {**healthy, "clip": 0.7}),
        (alone["forced-sync-alone"], healthy),
    ):
        assert run.faults == ("stale-sampler",)
        assert run.training == TrainingSettings(**training)


def test_the_healthy_case_has_no_fault_in_any_arm(study: Study) -> None:
    sick = put(PARAMS, ("case",), next(iter(PARAMS["cases"])))
    assert any(run.faults for run in runs(study.load(sick)))
    healthy = list(runs(study.load(put(PARAMS, ("case",), "healthy"))))
    assert {run.faults for run in healthy if run.design != "random_reward"} == {()}
    assert "alone" not in {run.design for run in healthy}
    by_arm = {run.arm: run for run in healthy}
    assert by_arm["case"].training == by_arm["control"].training


def test_an_arm_runs_the_case_in_the_environment_that_it_names(study: Study) -> None:
    found = sick_study(study, environment="gsm8k", swap=["kl"])
    assert (found["extra"].environment, found["case"].environment) == ("gsm8k", "musique")
    assert found["extra"].faults == found["case"].faults != ()
    assert found["gsm8k-control"].environment == "gsm8k"
    assert "extra-alone" not in found  # of another environment there is no case to compare with


def test_an_arm_that_mends_what_the_case_has_right_is_the_case_and_not_trained_again(
    study: Study,
) -> None:
    found = sick_study(study, swap=["kl"])
    assert found["extra"].trained_as == "case"
    assert found["kl-beta-0"].trained_as == "kl-beta-0"
    assert sick_study(study, training={"kl_beta": 0.0})["extra"].trained_as == "extra"
    healthy = runs(study.load(put(PARAMS, ("case",), "healthy")))
    assert {run.trained_as for run in healthy if run.arm == "control"} == {"case"}


def test_an_arm_gives_the_case_a_fault_in_place_of_its_own_of_that_stage(study: Study) -> None:
    case = {"faults": ["stale-sampler", "eos-not-trained"]}
    params = put(with_arm(faults=["tool-tokens-trained"]), ("cases", "mine"), case)
    found = {run.arm: run for run in runs(study.load(put(params, ("case",), "mine")))}
    assert found["extra"].faults == ("stale-sampler", "tool-tokens-trained")
    assert found["extra"].design == "repair"
    # nothing that the case has is tried alone by it
    assert "extra-alone" not in found
    same = put(params, ("hypotheses", "kl-penalty", "arms", "extra"), {"faults": case["faults"]})
    found = {run.arm: run for run in runs(study.load(put(same, ("case",), "mine")))}
    assert found["extra"].trained_as == "case"
    healthy = {run.arm: run for run in runs(study.load(put(params, ("case",), "healthy")))}
    assert healthy["extra"].faults == ("tool-tokens-trained",)


def test_what_an_arm_s_faults_cannot_be_is_named(study: Study) -> None:
    said = study.error(with_arm(faults=["tool-token-trained"]))
    assert said.endswith("did you mean 'tool-tokens-trained'?")
    for arm in (
        {"faults": ["eos-not-trained", "tool-tokens-trained"]},
        {"swap": ["loss_mask"], "faults": ["eos-not-trained"]},
    ):
        said = study.error(with_arm(**arm))
        assert said.endswith("arms.extra.faults' has two faults of one stage, expected one")


def test_rollouts_that_the_environment_has_anyway_change_nothing(study: Study) -> None:
    usual = PARAMS["environments"]["musique"]["top_n"]
    found = sick_study(study, rollouts={"top_n": usual, "max_context": 0})
    assert found["extra"].trained_as == "case"
    assert sick_study(study, rollouts={"max_context": 9})["extra"].rollouts == {"max_context": 9}


def test_a_run_that_is_only_watched_is_trained_and_changes_nothing(study: Study) -> None:
    found = sick_study(study, options={"sync_bound": 1e-3})
    assert found["extra"].options == {"sync_bound": 1e-3}
    assert found["extra"].trained_as == "extra"
    # vLLM's server is asked in every run
    served = put(with_arm(options={"sync_bound": 1e-3}), ("sampler",), "vllm")
    by_arm = {run.arm: run for run in runs(study.load(served))}
    assert (by_arm["extra"].options, by_arm["extra"].trained_as) == ({}, "case")


def test_a_limit_on_contexts_is_refused_with_a_trainer_that_knows_none(study: Study) -> None:
    said = study.error(put(with_arm(rollouts={"max_context": 9}), ("trainer",), "trl"))
    key = "hypotheses.kl-penalty.arms.extra.rollouts.max_context"
    assert said == f"key '{key}' is given, expected none with trainer trl"
    whole = put(PARAMS, ("environments", "musique", "max_context"), 9)
    assert "key 'environments.musique.max_context' is given" in study.error(
        put(whole, ("trainer",), "trl")
    )


def test_arms_combine(study: Study) -> None:
    found = sick_study(study, **{"with": ["kl-beta-0", "forced-sync"]}, training={"clip": 0.6})
    assert found["extra"].faults == ()
    assert (found["extra"].training.kl_beta, found["extra"].training.clip) == (0.0, 0.6)


def test_an_arm_cannot_be_combined_with_itself_or_with_none(study: Study) -> None:
    assert "leads back to 'extra'" in study.error(with_arm(**{"with": ["extra"]}))
    said = study.error(with_arm(**{"with": ["kl-beta-zero"]}))
    assert said.endswith("did you mean 'kl-beta-0'?")


def test_training_rollouts_change_and_the_case_s_changes_are_mended_and_tried_alone(
    study: Study,
) -> None:
    params = with_arm(rollouts={"top_n": 2})
    sick = put(params, ("cases", "mine"), {"faults": [], "rollouts": {"top_n": 3, "max_turns": 1}})
    found = {run.arm: run for run in runs(study.load(put(sick, ("case",), "mine")))}
    assert found["case"].rollouts == {"top_n": 3, "max_turns": 1}
    assert found["extra"].rollouts == {"top_n": 2, "max_turns": 1}
    assert found["extra-alone"].rollouts == {"top_n": 3}
    assert found["control"].rollouts == {}
    said = study.error(with_arm(rollouts={"weights": {"exact_mach": 1}}))
    assert said.endswith("did you mean 'exact_match'?")
    # another environment has no such settings
    assert all(run.rollouts == {} for run in found.values() if run.environment == "gsm8k")
    said = study.error(with_arm(rollouts={"weights": {"exact_match": 0}}))
    assert said.endswith("arms.extra.rollouts.weights' sums to 0, expected more")
    said = study.error(with_arm(environment="gsm8k", rollouts={"top_n": 2}))
    assert "names the setting 'top_n', which does not exist" in said


@pytest.mark.parametrize(
    "training", [{"steps": 1000}, {"group_size": 64}, {"num_iterations": 9}], ids=str
)
def test_an_arm_with_a_larger_budget_than_the_case_is_refused(
    study: Study, training: dict[str, Any]
) -> None:
    assert "a larger budget shows nothing" in study.error(with_arm(training=training))


# --- whatever is written there


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([*STAGES, *variant_names(), *hypothesis_names(), "gsm8k", "healthy"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)
PLACES = [path for path, _ in nodes(PARAMS) if path]


@st.composite
def mutations(draw: Callable[[Any], Any]) -> Any:
    path = draw(st.sampled_from(PLACES))
    kind = draw(st.sampled_from(["replace", "number", "remove", "unknown", "rename"]))
    old = dict(nodes(PARAMS))[path]
    if kind == "number" and isinstance(old, (int, float)):
        return put(PARAMS, path, old + draw(st.sampled_from([1, -1, 0.5, -0.5, 10**9, -(10**9)])))
    if kind == "unknown" and isinstance(old, dict):
        return put(PARAMS, (*path, draw(st.text(max_size=5))), draw(values))
    if kind == "rename" and isinstance(path[-1], str):
        return put(without(PARAMS, path), (*path[:-1], path[-1][:-1]), old)
    if kind == "remove":
        return without(PARAMS, path)
    return put(PARAMS, path, draw(values))


def loads(study: Study, params: Any) -> bool:
    """Whether they load. An error must be one line that begins with the file's name."""
    line = None
    try:
        found = list(runs(study.load(params)))
    except InputError as error:
        line = str(error)
    if line is not None:
        assert line.startswith(str(study.params))
        assert len(line.splitlines()) == 1
        return False
    for run in found:
        text = json.dumps(asdict(run), allow_nan=False)
        assert checked(Run, json.loads(text), "study.json") == run
    return True


def test_any_mutation_of_params_loads_or_is_one_line(tmp_path: Path) -> None:
    outcomes = []

    @settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
    @given(mutations())
    def mutate(params: Any) -> None:
        outcomes.append(loads(Study(tmp_path), params))

    mutate()
    assert sum(outcomes) >= 4
    assert len(outcomes) - sum(outcomes) >= 24


def test_any_slip_in_the_text_of_params_loads_or_is_one_line(tmp_path: Path) -> None:
    outcomes = []
    slips = st.text(st.characters(codec="utf-8"), max_size=3) | st.sampled_from(
        "{}[]:,&*!|>?\t-#'\""
    )

    @settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
    @given(st.integers(0, len(TEXT)), st.integers(0, 3), slips)
    def slip(place: int, cut: int, inserted: str) -> None:
        text = TEXT[:place] + inserted + TEXT[place + cut :]
        outcomes.append(loads(Study(tmp_path), text))

    slip()
    assert 0 < sum(outcomes) < len(outcomes)


@pytest.mark.parametrize("name", ["kl-penalty", "gradient-explosion"])
@pytest.mark.parametrize("overlaid", [False, True])
def test_a_study_of_one_hypothesis_has_its_arms_and_the_controls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, overlaid: bool
) -> None:
    """It took `~` for five others, and arms for what else the case departs in came all the same."""
    (tmp_path / "studies").mkdir()
    (tmp_path / "params.yaml").write_bytes(PARAMS_FILE.read_bytes())
    monkeypatch.setattr(params, "checkout", lambda: tmp_path)
    rest = {"study": "mine", "training": {"steps": 7}, "hypotheses": {"prompt-tool-alignment": {}}}
    overlay = tmp_path / "mine.yaml" if overlaid else None
    if overlay:
        overlay.write_text(yaml.safe_dump(rest), encoding="utf-8")
    path = params.only([name], overlay)
    found = load_params(PARAMS_FILE, path)
    assert path == tmp_path / "studies" / f"{'mine-' if overlaid else ''}{name}.yaml"
    assert found.training.steps == (7 if overlaid else LOADED.training.steps)
    assert {*found.hypotheses} == {name}
    tested = {arm.hypothesis for arm in arms(found) if arm.hypothesis}
    assert tested == {name}
    with pytest.raises(InputError, match=rf"--hypothesis: found '{name}s', did you mean '{name}'"):
        params.only([f"{name}s"], overlay)
