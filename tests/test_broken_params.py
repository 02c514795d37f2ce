"""500 broken studies: the shipped params.yaml and overlays, each with one mistake.

Each must be refused in one line that names the key, and the nearest one where it is misspelt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlvr_debug import blocks
from rlvr_debug.causes import hypothesis_names, variant_names
from rlvr_debug.errors import InputError
from rlvr_debug.grpo.settings import STAGES
from rlvr_debug.study.arms import arms
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params, parse_params

ROOT = Path(__file__).parents[1]
SCHEMA = blocks.json_schema(Params)
OVERLAYS = [*sorted(ROOT.glob("studies/*.yaml")), *sorted(ROOT.glob("tests/studies/*.yaml"))]
COUNT = 500
Key = tuple[str, ...]
Raw = dict[str, Any]


@dataclass(frozen=True)
class Mistake:
    """`value` at `key`; `instead` of another key, if it is a misspelt one. says: what the line holds."""

    key: Key
    value: Any
    says: tuple[str, ...]
    instead: str = ""


@dataclass(frozen=True)
class Document:
    """params.yaml, or an overlay over it. whole: what they say together, valid."""

    name: str
    text: Raw
    whole: Raw


def documents() -> list[Document]:
    def read(path: Path) -> Raw:
        return parse_params(path.read_text(encoding="utf-8"), str(path))

    base = ROOT / "params.yaml"
    overlaid = [Document(p.name, read(p), blocks.told(load_params(base, p))) for p in OVERLAYS]
    for document in overlaid:
        if document.text.get("hypotheses") == "all":  # spelled out, so that a mistake has a place
            document.text["hypotheses"] = deepcopy(document.whole["hypotheses"])
    return [Document("params.yaml", read(base), blocks.told(load_params(base))), *overlaid]


def full(key: Key) -> str:
    return ".".join(key)


def node_at(key: Key) -> dict[str, Any]:
    """What the schema says of a key."""
    node = SCHEMA
    for part in key:
        names = [node.get("additionalProperties"), *node.get("patternProperties", {}).values()]
        node = whole(node.get("properties", {}).get(part) or next(filter(None, names)))
    return node


def whole(node: dict[str, Any]) -> dict[str, Any]:
    """With what it says of each type of value that the key may have."""
    kinds = (*node.get("oneOf", ()), *node.get("anyOf", ()))
    return {name: said for kind in (*kinds, node) for name, said in kind.items()}


def values(value: Any, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Everything in it that has a key, but for what only another trainer knows."""
    for name, item in value.items():
        if (*key, name)[-1] not in ("options", "random_reward"):
            yield (*key, name), item
            if isinstance(item, dict):
                yield from values(item, (*key, name))


def closed(params: Raw) -> list[Key]:
    """The mappings whose keys are not names of the user's."""
    found = [(), *(key for key, value in values(params) if isinstance(value, dict))]
    return [key for key in found if node_at(key).get("additionalProperties") is False]


def misspelt(random_: random.Random, word: str) -> str:
    """With a letter left out, doubled or swapped with the next one."""
    # two letters that are the same would change places unseen
    place = random_.choice([p for p in range(len(word) - 1) if word[p] != word[p + 1]])
    one, two = word[place], word[place + 1]
    middle = random_.choice(["", one + one, two + one])
    end = place + 2 if middle == two + one else place + 1
    return word[:place] + middle + word[end:]


# --- one kind of mistake each; a function of a source of randomness and valid params


def wrong_type(r: random.Random, params: Raw) -> Mistake:
    key, value = r.choice([(k, v) for k, v in values(params) if k != ("study",)])
    wrong: list[Any] = [[[1]], {"a": 1}]
    if isinstance(value, bool):
        wrong += ["yes", 1, 0.0]
    elif isinstance(value, int):
        wrong += [str(value), value + 0.5, True]
    elif isinstance(value, float):
        wrong += [str(value), False, float("nan")]
    elif isinstance(value, str):
        wrong += [1, True]
    elif isinstance(value, list):
        wrong = ["word", 1, [{}, {}]]
    else:
        wrong = ["word", 1, [1.5]]
    return Mistake(key, r.choice(wrong), (f"key '{full(key)}",))


def out_of_range(r: random.Random, params: Raw) -> Mistake:
    limits: dict[str, Callable[[Any], Any]] = {
        "minimum": lambda limit: limit - 1,
        "maximum": lambda limit: limit + 1,
        "exclusiveMinimum": lambda limit: limit,
        "exclusiveMaximum": lambda limit: limit,
        "enum": lambda names: misspelt(r, r.choice(names)),
        "minItems": lambda _: [],
    }
    found = [
        (key, value, limit)
        for key, _ in values(params)
        for limit, value in node_at(key).items()
        if limit in limits
    ]
    key, value, limit = r.choice(found)
    return Mistake(key, limits[limit](value), (f"key '{full(key)}' is ", "expected"))


def unknown(r: random.Random, params: Raw) -> Mistake:
    key = (*r.choice(closed(params)), r.choice(["zzz", "qqq", "7", "Ωμέγα"]))
    return Mistake(key, r.choice([1, "a", [], {}]), (f"unknown key '{full(key)}': ",))


def misspelt_key(r: random.Random, params: Raw) -> Mistake:
    """Of a key that stands there; or in an arm, of one that could."""
    places = closed(params)
    known = [
        (*place, name)
        for place in places
        for name in node_at(place)["properties"]
        if len(name) > 3 and (*place, name) != ("study",)
    ]
    key = r.choice(known)
    wrong = misspelt(r, key[-1])
    while wrong in node_at(key[:-1])["properties"]:
        wrong = misspelt(r, key[-1])
    value = dict(values(params)).get(key, 1)
    said = f"unknown key '{full((*key[:-1], wrong))}': did you mean '{key[-1]}'?"
    return Mistake((*key[:-1], wrong), value, (said,), key[-1])


def removed(r: random.Random, params: Raw) -> Mistake:
    """A required key."""
    found = [
        (*place, name) for place in closed(params) for name in node_at(place).get("required", ())
    ]
    key = r.choice([key for key in found if key != ("study",)])
    return Mistake(key, None, (f"key '{full(key)}' is",))


def misspelt_removal(r: random.Random, params: Raw) -> Mistake:
    """Of an overlay; in params.yaml itself `~` is a value of a wrong type."""
    slug = r.choice(list(params["hypotheses"]))
    key = ("hypotheses", misspelt(r, slug))
    return Mistake(key, None, (f"key '{full(key)}' is",))


ARM = ("hypotheses", "kl-penalty", "arms", "extra")


def no_such_name(r: random.Random, params: Raw) -> Mistake:
    known = [arm for h in params["hypotheses"].values() for arm in h["arms"]]
    arm = r.choice(known or ["none"])
    fault, stage, slug = r.choice(variant_names()), r.choice(STAGES), r.choice(hypothesis_names())
    case = r.choice([*params["cases"], "healthy"])
    wrong_slug = misspelt(r, slug)
    told: list[tuple[Key, Any, str, str]] = [
        (("case",), misspelt(r, case), "case", "case"),
        (("cases", "mine"), {"faults": [misspelt(r, fault)]}, "fault", "cases.mine.faults"),
        (ARM, {"swap": [misspelt(r, stage)]}, "stage", f"{full(ARM)}.swap"),
        # of no arms none is near
        *([(ARM, {"with": [misspelt(r, arm)]}, "arm", f"{full(ARM)}.with")] if known else []),
        (
            ("hypotheses", wrong_slug),
            {"arms": {}},
            "hypothesis",
            f"hypotheses.{wrong_slug}",
        ),
    ]
    key, value, what, place = r.choice(told)
    near = {"case": case, "fault": fault, "stage": stage, "arm": arm, "hypothesis": slug}[what]
    return Mistake(key, value, (f"key '{place}' names the {what} '", f"did you mean '{near}'?"))


def bad_name(r: random.Random, params: Raw) -> Mistake:
    name = r.choice(["Two Words", "-", "a/b", "../up", "new\nline", "end\n", "ümlaut", ""])
    place, value = r.choice(
        [(("cases",), {"faults": []}), (("hypotheses", "kl-penalty", "arms"), {"swap": ["kl"]})]
    )
    key = (*place, name)
    return Mistake(key, value, (" ".join(f"key '{full(key)}' is no name".splitlines()),))


def contradiction(r: random.Random, params: Raw) -> Mistake:
    """Each key is right by itself, and they mean nothing together."""
    every = arms(blocks.checked(Params, params, "params"))
    repairs = [arm.name for arm in every if arm.design == "repair"]
    most = params["training"]["group_size"] * params["training"]["prompts_per_step"]
    data = params["data"]["gsm8k"]
    extra = f"key '{full(ARM)}"
    told: list[tuple[Key, Any, str]] = [
        (ARM, {}, f"{extra}' changes nothing"),
        (ARM, {"swap": [], "training": {}}, f"{extra}' changes nothing"),
        (ARM, {"with": ["extra"]}, f"{extra}.with' leads back to 'extra'"),
        *((ARM, {"with": [arm, "extra"]}, f"{extra}.with' leads back") for arm in repairs[:1]),
        (ARM, {"training": {"steps": 10**4}}, "arm 'extra' of kl-penalty has 10000 steps"),
        (ARM, {"rollouts": {"weights": {"correct": 0, "f1": 0}}}, f"{extra}.rollouts.weights'"),
        ((*ARM[:-1], "control"), {"swap": ["kl"]}, "is a name kept for other arms"),
        (("cases", "healthy"), {"faults": []}, "key 'cases.healthy' is taken"),
        (
            ("cases", "mine"),
            {"faults": [variant_names()[0]] * 2},
            "key 'cases.mine.faults' is list",
        ),
        (("training", "gradient_accumulation_steps"), most + 1, "in arm 'case', expected at most"),
        (("data", "calculator", "steps"), dict.fromkeys("1234", 0), "calculator.steps' sums to 0"),
        (("data", "calculator", "heldout"), 10**6, "key 'data.calculator.heldout' is 1000000"),
        (("environments", "gsm8k", "weights", "correct"), 0, "gsm8k.weights' sums to 0"),
        (("base_model",), "models/tinny", "key 'base_model' is str 'models/tinny'"),
    ]
    if data["source"] != "hub":
        told += [
            (("data", "gsm8k", "datasets"), "a,b,c", "key 'data.gsm8k.datasets' is given"),
            (("data", "musique", "source"), "hub", "key 'data.musique.datasets' is missing"),
        ]
    if data["source"] == "synthetic":
        told += [(("data", "gsm8k", "path"), "rows.jsonl", "key 'data.gsm8k.path' is given")]
    if params["trainer"] != "command":
        told += [
            (("command", "program"), ["python"], "key 'command.program' is given"),
            (("trainer",), "command", "key 'command.program' is missing"),
        ]
    else:
        told += [(("command", "environment"), "tlr", "key 'command.environment' names")]
    if params["trainer"] == "own":
        adapter = "key 'training.lora_alpha' is 8 in arm '"
        told += [
            (("options",), {"a": 1}, "unknown key 'options.a': expected one of sync_bound"),
            (ARM, {"options": {"a": 1}}, f"{extra}.options.a': expected one of sync_bound"),
            (ARM, {"faults": ["stale"]}, f"{extra}.faults' names the fault 'stale'"),
            (("training",), {"kl_place": "reward", "use_bias_correction_kl": True}, "kl_place"),
        ]
        if not params["training"]["lora_r"]:
            told += [
                (ARM, {"training": {"lora_alpha": 8}}, f"{adapter}extra', expected 16 with"),
                (("training", "lora_alpha"), 8, f"{adapter}case', expected 16 with lora_r 0"),
            ]
    if not params["launch"]["config"]:
        told += [(("launch", "processes"), 2, "key 'launch.config' is missing")]
    if params["trainer"] == "trl":
        told += [(("training", "kl_estimator"), "k1", "which trainer trl cannot be given")]
    key, value, said = r.choice(told)
    return Mistake(key, value, (said,))


KINDS = (
    wrong_type,
    out_of_range,
    unknown,
    misspelt_key,
    removed,
    misspelt_removal,
    no_such_name,
    bad_name,
    contradiction,
    contradiction,
)


def broken(document: Document, mistake: Mistake) -> Raw:
    """The document with the mistake; a mapping is merged into one that is there."""
    text = deepcopy(document.text)
    place = text
    for part in mistake.key[:-1]:
        if not isinstance(place.get(part), dict):
            place[part] = {}
        place = place[part]
    last, value = mistake.key[-1], mistake.value
    if mistake.instead:
        place.pop(mistake.instead, None)
    merged = isinstance(value, dict) and isinstance(place.get(last), dict)
    place[last] = {**place[last], **value} if merged else value
    return text


@pytest.mark.parametrize("kind", dict.fromkeys(KINDS), ids=lambda kind: kind.__name__)
def test_a_broken_study_is_refused_in_one_line_that_names_the_key(
    kind: Callable[[random.Random, Raw], Mistake], tmp_path: Path
) -> None:
    r = random.Random(kind.__name__)
    every = documents()
    path = tmp_path / "study.yaml"
    for _ in range(COUNT * KINDS.count(kind) // len(KINDS)):
        document = r.choice(every)
        mistake = kind(r, document.whole)
        path.write_text(yaml.safe_dump(broken(document, mistake)), encoding="utf-8")
        where = f"{document.name}: {mistake}"
        try:
            alone = document.name == "params.yaml"
            load_params(path) if alone else load_params(ROOT / "params.yaml", path)
        except InputError as error:
            line = str(error)
        else:
            pytest.fail(f"accepted: {where}")
        assert line.startswith(f"{path}: "), where
        assert len(line.splitlines()) == 1, where
        for said in mistake.says:
            assert said in line, f"{line}\n{where}"
