"""params.yaml: what it and an overlay may say, the runs that come of it, and its schema."""

import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.pages import SCHEMA as FOR_EDITORS
from lab.parameters import schema_text
from rlvr_debug import blocks
from rlvr_debug.blocks import checked
from rlvr_debug.causes import hypothesis_names, stage_of, variant_names
from rlvr_debug.environments import environment_names
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_yaml
from rlvr_debug.grpo.settings import STAGES
from rlvr_debug.study import params
from rlvr_debug.study.arms import arms, runs, seeds_of
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers import Run
from tests.study_file import changed, overlaid, refused

CASES = read_yaml(Path(__file__).with_suffix(".yaml"))

ROOT = Path(__file__).parents[1]
PARAMS_FILE = ROOT / "params.yaml"
LOADED = load_params(PARAMS_FILE)
PARAMS: dict[str, Any] = blocks.told(LOADED)
OVERLAYS = [*sorted(ROOT.glob("studies/*.yaml")), *sorted(ROOT.glob("tests/studies/*.yaml"))]
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
            # JSON is YAML, and written faster
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
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
    "overlay", [None, *OVERLAYS], ids=lambda path: path.name if path else "params.yaml"
)
def test_every_study_that_ships_loads_and_has_a_case_a_control_and_all_seeds(
    overlay: Path | None,
) -> None:
    params = load_params(PARAMS_FILE, overlay)
    seeds: dict[str, list[int]] = {}
    for run in runs(params):
        seeds.setdefault(run.arm, []).append(run.seed)
    designs = [(arm.arm, arm.design) for arm in arms(params)]
    assert [name for name, _ in designs] == [*seeds]
    assert [*seeds][:2] == ["case", "control"]
    assert all(len(own) == len(set(own)) for own in seeds.values())
    if params.design == "sequential":
        assert all(own == list(range(len(own))) for own in seeds.values())
    else:
        told = {name: set(seeds_of(params, design)) for name, design in designs}
        assert all(told[name] <= set(own) for name, own in seeds.items())
        assert set().union(*seeds.values()) == set().union(*told.values())


def test_seeds_by_design_are_those_of_each_arm_and_an_overlays_list_is_for_all(
    study: Study,
) -> None:
    by_design = {"others": [0, 1], "control": [0, 1, 2], "alone": [5]}
    found = runs(changed(LOADED, design="fixed", seeds=by_design))
    seeds: dict[str, set[tuple[int, ...]]] = {}
    for design, group in itertools.groupby(found, lambda run: (run.design, run.arm)):
        seeds.setdefault(design[0], set()).add(tuple(run.seed for run in group))
    others = {design: {(0, 1)} for design in ("case", "random_reward", "repair")}
    assert seeds == {**others, "control": {(0, 1, 2)}, "alone": {(5,)}}
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


def test_settings_and_stages_name_the_same_stages() -> None:
    from rlvr_debug.grpo.stages import Stages

    assert tuple(field.name for field in fields(Stages)) == STAGES


# --- the schema


# what the study is about has no default
OPEN = {"cases", "hypotheses"}
# what params.yaml does not say
LEFT_OUT = {
    *("first_seed", "unnamed", "diagnostics.debug", "evaluation.verifiers_rows"),
    *(f"environments.{name}.max_context" for name in environment_names()),
    *(
        f"environments.musique.{key}"
        for key in ("retrieval_model", "noise_rate", "noise_seed", "answer_by", "hop_factor")
    ),
}
VALIDATOR = jsonschema.Draft202012Validator(json.loads(FOR_EDITORS.read_text(encoding="utf-8")))


def keys(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key that the schema names, in full, and what it says of it; `*` is a name of the user's."""
    for kind in (node, *node.get("oneOf", ()), *node.get("anyOf", ())):
        children = list(kind.get("properties", {}).items())
        children += [("*", child) for child in kind.get("patternProperties", {}).values()]
        if isinstance(kind.get("additionalProperties"), dict):
            children.append(("*", kind["additionalProperties"]))
        for name, child in children:
            place = f"{path}.{name}".removeprefix(".")
            yield place, child
            yield from keys(child, place)


def plain(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The plain values of params.yaml by key."""
    for name, item in value.items():
        place = f"{path}.{name}".removeprefix(".")
        if isinstance(item, dict) and item and place not in OPEN:
            yield from plain(item, place)
        elif place not in OPEN:
            yield place, item


SCHEMA = blocks.json_schema(Params)
KEYS = dict(keys(SCHEMA))


def test_every_key_has_a_description_and_a_default_that_it_may_have() -> None:
    assert sorted(SCHEMA["required"]) == sorted(PARAMS)
    for key, node in KEYS.items():
        assert node.get("description", "").strip().endswith("."), key
        if "default" in node:
            jsonschema.validate(node["default"], node)


def test_every_plain_value_of_params_is_the_default_that_the_schema_tells() -> None:
    defaults: dict[str, Any] = {}
    for key, node in KEYS.items():
        if "default" in node and key.partition(".")[0] not in OPEN:
            defaults |= plain({key: node["default"]})
    defaults = {key: value for key, value in defaults.items() if key not in LEFT_OUT}
    # as JSON: 1 and true are not the same
    assert json.dumps(defaults, sort_keys=True) == json.dumps(dict(plain(PARAMS)), sort_keys=True)


def test_the_schema_for_editors_is_that_of_the_model() -> None:
    assert FOR_EDITORS.read_text(encoding="utf-8") == schema_text(), "run python -m lab.pages"


def as_written(path: Path) -> dict[str, Any]:
    return params.parse_params(path.read_text(encoding="utf-8"), str(path))


@pytest.mark.parametrize("path", [PARAMS_FILE, *OVERLAYS], ids=lambda path: path.name)
def test_every_shipped_study_is_right_by_the_schema_for_editors(path: Path) -> None:
    assert list(VALIDATOR.iter_errors(as_written(path))) == []


@pytest.mark.parametrize(("place", "key", "value"), CASES["an editor marks what the model refuses"])
def test_an_editor_marks_what_the_model_refuses(place: str, key: str, value: Any) -> None:
    written = as_written(PARAMS_FILE)
    written[place][key] = value
    [error] = VALIDATOR.iter_errors(written)
    assert error.absolute_path[0] == place


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


def wrong(given: Any) -> str:
    """What is said of such a params.yaml."""
    with pytest.raises(InputError) as caught:
        checked(Params, given, "params.yaml")
    return str(caught.value).removeprefix("params.yaml: ")


def test_a_misspelt_key_is_not_just_reported_as_missing() -> None:
    misspelt = put(without(PARAMS, ("training", "steps")), ("training", "step"), 40)
    assert wrong(misspelt) == "unknown key 'training.step': did you mean 'steps'?"


def test_no_mapping_takes_an_unknown_key() -> None:
    # in these the user chooses the names
    arms_of = (("hypotheses", slug, "arms") for slug in PARAMS["hypotheses"])
    names = {("cases",), ("hypotheses",), ("options",), *arms_of}
    for path, value in nodes(PARAMS):
        if isinstance(value, dict) and path not in names:
            said = f"unknown key '{full((*path, 'zzz'))}'"
            assert wrong(put(PARAMS, (*path, "zzz"), 1)).startswith(said)


@pytest.mark.parametrize("bad", [-1, math.nan, True, "0.5"], ids=repr)
def test_no_number_takes_what_is_out_of_range_or_no_number(bad: Any) -> None:
    for path, value in nodes(PARAMS):
        if type(value) in (int, float):
            assert wrong(put(PARAMS, path, bad)).startswith(f"key '{full(path)}' is ")


@pytest.mark.parametrize(
    ("path", "value", "said"), CASES["a value that makes no sense is named with what was expected"]
)
def test_a_value_that_makes_no_sense_is_named_with_what_was_expected(
    path: KeyPath, value: Any, said: str, study: Study
) -> None:
    assert study.error(put(PARAMS, path, value)).startswith(said)


def test_no_key_at_the_top_may_be_missing() -> None:
    for key in PARAMS:
        assert wrong(without(PARAMS, (key,))) == f"key '{key}' is missing"
        assert wrong(put(PARAMS, (key,), None)).startswith(f"key '{key}' is empty")


def extra(name: str = "extra", /, **arm: Any) -> dict[str, Any]:
    """An overlay's hypotheses with one more arm."""
    return {"hypotheses": {"kl-penalty": {"arms": {name: arm}}}}


OF_KL = [name for name in variant_names() if stage_of(name) == "kl"]
TWO = "faults' has two faults of one stage, expected one"
NEAREST = "that could be removed: did you mean 'kl-penalty'?"
BUDGET = "a larger budget shows nothing"
ON_TRL = "max_context' is given, expected none with trainer trl"


@pytest.mark.parametrize(
    ("overlay", "said"),
    [
        ({"data": {"gsm8k": {"source": "jsonl"}}}, "key 'data.gsm8k.path' is missing"),
        ({"data": {"gsm8k": {"rows": None}}}, "key 'data.gsm8k.rows' is missing"),
        ({"cases": {"mine": {"faults": OF_KL[:2]}}}, f"key 'cases.mine.{TWO}"),
        ({"cases": {"healthy": {"faults": OF_KL[:1]}}}, "key 'cases.healthy' is taken"),
        ({"seeds": None}, "key 'seeds' is missing"),
        ({"hypotheses": {"kl-penlty": None}}, f"no key 'hypotheses.kl-penlty' {NEAREST}"),
        ({"hypothesis": {"kl-penalty": None}}, "unknown key 'hypothesis': did you mean"),
        *(
            ({"training": {"kl_place": "reward", key: value}}, f"key 'training.{key}' is {said}")
            for key, value, said in CASES["what kl in the reward leaves no meaning is refused"]
        ),
        # names of arms that every study has
        *(
            (extra(name, swap=["kl"]), f"arms.{name}' is a reserved name, expected another")
            for name in ("case", "control", "gsm8k-control", "kl-beta-0-alone")
        ),
        # and so a folder
        (extra("attention-mask", swap=["kl"]), "too, expected once"),
        (extra(faults=["tool-token-trained"]), "did you mean 'tool-tokens-trained'?"),
        (extra(faults=["eos-not-trained", "tool-tokens-trained"]), f"arms.extra.{TWO}"),
        (extra(swap=["loss_mask"], faults=["eos-not-trained"]), f"arms.extra.{TWO}"),
        (extra(**{"with": ["extra"]}), "leads back to 'extra'"),
        (extra(**{"with": ["kl-beta-zero"]}), "did you mean 'kl-beta-0'?"),
        (extra(rollouts={"weights": {"exact_mach": 1}}), "did you mean 'exact_match'?"),
        (extra(rollouts={"weights": {"exact_match": 0}}), "rollouts.weights' sums to 0"),
        (extra(environment="gsm8k", rollouts={"top_n": 2}), "setting 'top_n', which does not"),
        (extra(training={"steps": 1000}), BUDGET),
        (extra(training={"group_size": 64}), BUDGET),
        (extra(training={"num_iterations": 9}), BUDGET),
        (
            {"trainer": "trl", **extra(rollouts={"max_context": 9})},
            f"key 'hypotheses.kl-penalty.arms.extra.rollouts.{ON_TRL}",
        ),
        (
            {"trainer": "trl", "environments": {"musique": {"max_context": 9}}},
            f"key 'environments.musique.{ON_TRL}",
        ),
    ],
    ids=str,
)
def test_what_means_nothing_is_named(overlay: Any, said: str, tmp_path: Path) -> None:
    assert said in refused(tmp_path, **overlay)


# --- YAML


TEXT = PARAMS_FILE.read_text(encoding="utf-8")


def test_a_repeated_key_is_an_error_with_its_line_and_not_the_last_one(study: Study) -> None:
    line = TEXT.count("\n") + 1
    said = study.error(TEXT + "base_model: elsewhere\n")
    assert said == f":{line}: expected YAML, found: key 'base_model' appears twice, expected once"
    nested = study.error(TEXT + "x:\n  1: a\n  '1': b\n")
    assert nested.startswith(f":{line + 2}: ")


def test_a_number_with_an_exponent_is_a_number_and_what_resembles_one_is_text() -> None:
    """YAML 1.1 reads 1e-5 as text."""

    def read(written: str) -> Any:
        return params.parse_params(f"learning_rate: {written}", "params.yaml")["learning_rate"]

    for written in ("1e-5", "1E-05", "+1.e-5", "10e-6", "1.0e-5", "0.00001"):
        assert read(written) == 1e-5
    for written in ("1e", "e-5", "0x1e-5", "v1e-5"):
        assert read(written) == written
    assert read("'1e-5'") == "1e-5"


@pytest.mark.parametrize(
    "text", CASES["what is no yaml or no mapping is one line"], ids=lambda text: repr(text[:20])
)
def test_what_is_no_yaml_or_no_mapping_is_one_line(text: str, study: Study) -> None:
    assert "expected" in study.error(text)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"study: caf\xe9")
    for path in (tmp_path, tmp_path / "none.yaml", tmp_path / "latin.yaml"):
        with pytest.raises(InputError) as caught:
            load_params(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)


# --- overlays


def test_an_overlay_needs_a_name_of_its_own(study: Study) -> None:
    assert study.error(PARAMS, "- a\n").startswith("is list ['a'], expected keys")
    assert study.error(PARAMS, {"seeds": [0]}).startswith("key 'study' is missing")
    said = study.error(PARAMS, {"study": PARAMS["study"]})
    assert said.startswith(f"key 'study' is '{PARAMS['study']}'")


def test_an_overlay_changes_or_removes_what_it_names_and_nothing_else(study: Study) -> None:
    weights = {"musique": {"weights": {"f1": 0.25}}}
    removed = {"kl-penalty": None}
    overlay = {"study": "other", "environments": weights, "hypotheses": removed}
    expected = put(PARAMS, ("environments", "musique", "weights", "f1"), 0.25)
    expected = without({**expected, "study": "other"}, ("hypotheses", "kl-penalty"))
    assert blocks.told(study.load(PARAMS, overlay)) == expected


# --- arms and runs


SICK = {"faults": ["stale-sampler"], "training": {"learning_rate": 0.5, "clip": 0.7}}


def by_arm(params: Params) -> dict[str, Run]:
    """The first run of each arm."""
    return {run.arm: run for run in reversed([*runs(params)])}


def sick_study(folder: Path, case: Any = SICK, **arm: Any) -> dict[str, Run]:
    """First run by arm, of such a case and with an arm `extra`."""
    return by_arm(overlaid(folder, case="mine", cases={"mine": case}, **extra(**arm)))


def test_a_control_has_neither_the_case_s_faults_nor_its_settings(tmp_path: Path) -> None:
    controls = [
        run for run in sick_study(tmp_path, swap=["kl"]).values() if run.design == "control"
    ]
    places = {run.arm: run.environment for run in controls}
    assert places == {"control": "musique", "gsm8k-control": "gsm8k"}
    for run in controls:
        assert (run.faults, run.hypothesis) == ((), "")
        assert run.training == LOADED.training


def test_a_repair_is_the_case_with_what_the_arm_changes(tmp_path: Path) -> None:
    found = sick_study(tmp_path, training={"clip": 0.9}, swap=["sync"])
    case = found["case"]
    assert (case.design, case.faults) == ("case", ("stale-sampler",))
    assert (case.training.learning_rate, case.training.clip) == (0.5, 0.7)
    repairs = {name: run for name, run in found.items() if run.design == "repair"}
    # no arm is about the learning rate, which has one of its own
    unnamed = repairs.pop("unnamed-training-learning-rate")
    assert unnamed.hypothesis == unnamed.arm
    assert unnamed.training == replace(case.training, learning_rate=LOADED.training.learning_rate)
    assert {name for name, run in repairs.items() if not run.faults} == {"extra", "forced-sync"}
    assert {run.training.learning_rate for run in repairs.values()} == {0.5}
    own = repairs["extra"]
    assert (own.training.clip, own.hypothesis) == (0.9, "kl-penalty")


def test_a_defect_alone_is_the_control_with_that_part_of_the_case(tmp_path: Path) -> None:
    found = sick_study(tmp_path, training={"clip": 0.9, "kl_beta": 0.0}, swap=["sync", "kl"])
    alone = {name: run for name, run in found.items() if run.design == "alone"}
    # the case differs from the control in the sync and the clip, not in any other arm's part
    expected: dict[str, Any] = {
        "extra-alone": ("kl-penalty", ("stale-sampler",), {"clip": 0.7}),
        "forced-sync-alone": ("lora-weight-sync", ("stale-sampler",), {}),
    }
    slug = "unnamed-training-learning-rate"
    expected[f"{slug}-alone"] = (slug, (), {"learning_rate": 0.5})
    assert {name: (run.hypothesis, run.faults, run.training) for name, run in alone.items()} == {
        name: (hypothesis, faults, replace(LOADED.training, **own))
        for name, (hypothesis, faults, own) in expected.items()
    }


def test_the_healthy_case_has_no_fault_in_any_arm_and_is_its_own_control() -> None:
    healthy = list(runs(changed(LOADED, case="healthy")))
    assert {run.faults for run in healthy if run.design != "random_reward"} == {()}
    assert "alone" not in {run.design for run in healthy}
    assert {run.trained_as for run in healthy if run.arm == "control"} == {"case"}


def test_an_arm_runs_the_case_in_the_environment_that_it_names(tmp_path: Path) -> None:
    found = sick_study(tmp_path, environment="gsm8k", training={"clip": 0.9})
    assert (found["extra"].environment, found["case"].environment) == ("gsm8k", "musique")
    assert found["extra"].faults == found["case"].faults != ()
    assert found["gsm8k-control"].environment == "gsm8k"
    assert "extra-alone" not in found  # of another environment there is no case to compare with


TOP_N = PARAMS["environments"]["musique"]["top_n"]


@pytest.mark.parametrize(
    ("block", "given", "left"),
    [
        ("swap", ["kl"], {}),
        ("training", {"kl_beta": 0.0}, {"kl_beta": 0.0}),
        # the environment has them anyway
        ("rollouts", {"top_n": TOP_N, "max_context": 0}, {}),
        ("rollouts", {"max_context": 9}, {"max_context": 9}),
        # a run that is only watched is another one
        ("options", {"sync_bound": 1e-3}, {"sync_bound": 1e-3}),
    ],
)
def test_an_arm_that_mends_what_the_case_has_right_is_the_case_and_not_trained_again(
    block: str, given: Any, left: dict[str, Any], tmp_path: Path
) -> None:
    found = sick_study(tmp_path, **{block: given})["extra"]
    assert found.trained_as == ("extra" if left else "case")
    if block in ("rollouts", "options"):
        assert getattr(found, block) == left


def test_vllm_s_server_is_asked_in_every_run_whether_or_not_an_arm_watches(tmp_path: Path) -> None:
    watched = extra(options={"sync_bound": 1e-3})
    found = by_arm(overlaid(tmp_path, sampler="vllm", **watched))["extra"]
    assert (found.options, found.trained_as) == ({}, "case")


def test_an_arm_gives_the_case_a_fault_in_place_of_its_own_of_that_stage(tmp_path: Path) -> None:
    case = {"faults": ["stale-sampler", "eos-not-trained"]}
    found = sick_study(tmp_path, case, faults=["tool-tokens-trained"])
    assert found["extra"].faults == ("stale-sampler", "tool-tokens-trained")
    assert found["extra"].design == "repair"
    # nothing that the case has is tried alone by it
    assert "extra-alone" not in found
    assert sick_study(tmp_path, case, **case)["extra"].trained_as == "case"
    healthy = sick_study(tmp_path, {"faults": []}, faults=["tool-tokens-trained"])
    assert healthy["extra"].faults == ("tool-tokens-trained",)


def test_arms_combine(tmp_path: Path) -> None:
    found = sick_study(tmp_path, **{"with": ["kl-beta-0", "forced-sync"]}, training={"clip": 0.6})
    assert found["extra"].faults == ()
    assert (found["extra"].training.kl_beta, found["extra"].training.clip) == (0.0, 0.6)


def test_training_rollouts_change_and_the_case_s_changes_are_mended_and_tried_alone(
    tmp_path: Path,
) -> None:
    case = {"faults": [], "rollouts": {"top_n": 3, "max_turns": 1}}
    found = sick_study(tmp_path, case, rollouts={"top_n": 2})
    rollouts = {name: run.rollouts for name, run in found.items()}
    assert rollouts["case"] == {"top_n": 3, "max_turns": 1}
    assert rollouts["extra"] == {"top_n": 2, "max_turns": 1}
    assert rollouts["extra-alone"] == {"top_n": 3}
    assert rollouts["control"] == {}
    # another environment has no such settings
    assert {run.environment for run in found.values() if run.rollouts} == {"musique"}


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
    try:
        found = list(runs(study.load(params)))
    except InputError as error:
        said = str(error)
    else:
        for run in found:
            text = json.dumps(asdict(run), allow_nan=False)
            assert checked(Run, json.loads(text), "study.json") == run
        return True
    assert said.startswith(str(study.params))
    assert len(said.splitlines()) == 1
    return False


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
@pytest.mark.parametrize("has_overlay", [False, True])
def test_a_study_of_one_hypothesis_has_its_arms_and_the_controls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, has_overlay: bool
) -> None:
    """It took `~` for five others, and arms for what else the case departs in came all the same."""
    (tmp_path / "studies").mkdir()
    (tmp_path / "params.yaml").write_bytes(PARAMS_FILE.read_bytes())
    monkeypatch.setattr(params, "checkout", lambda: tmp_path)
    rest = {"study": "mine", "training": {"steps": 7}, "hypotheses": {"prompt-tool-alignment": {}}}
    overlay = tmp_path / "mine.yaml" if has_overlay else None
    if overlay:
        overlay.write_text(json.dumps(rest), encoding="utf-8")
    path = params.only([name], overlay)
    found = load_params(PARAMS_FILE, path)
    assert path == tmp_path / "studies" / f"{'mine-' if has_overlay else ''}{name}.yaml"
    assert found.training.steps == (7 if has_overlay else LOADED.training.steps)
    assert {*found.hypotheses} == {name}
    tested = {arm.hypothesis for arm in arms(found) if arm.hypothesis}
    assert tested == {name}
    with pytest.raises(InputError, match=rf"--hypothesis: found '{name}s', did you mean '{name}'"):
        params.only([f"{name}s"], overlay)
