"""params.yaml: reading, overlays, checks.

model.py has every key with its description and default.
"""

import copy
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from rlvr_debug.blocks import checked, told
from rlvr_debug.causes import hypothesis_names
from rlvr_debug.checkout import ROOT, checkout, has_checkout
from rlvr_debug.environments import environment_names, settings_of
from rlvr_debug.errors import InputError, hint, typed
from rlvr_debug.files import read_text, write_text
from rlvr_debug.study.arms import filled
from rlvr_debug.study.checks import check_references
from rlvr_debug.study.model import Params

Raw = dict[str, Any]

ALL = "all"  # of hypotheses: every cause

# in the sources a link to the checkout's params.yaml, in a wheel a copy of it
_SHIPPED = Path(__file__).with_name("params.yaml")


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, but `1e-5` is a number and a repeated key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key.value, str):
                raise yaml.MarkedYAMLError(
                    problem="a key of several values, expected a word", problem_mark=key.start_mark
                )
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key '{key.value}' appears twice, expected once",
                    problem_mark=key.start_mark,
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = copy.deepcopy(yaml.SafeLoader.yaml_implicit_resolvers)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def study_params(overlay: Path | None = None, every_phase: bool = False) -> Params:
    """Read the params.yaml of the checkout and merge the overlay over it."""
    params = load_params(checkout() / "params.yaml", overlay)
    return replace(params, phases="all") if every_phase else params


def default_file() -> Path:
    """Return the params.yaml of the checkout; where there is none, the one that was shipped."""
    return ROOT / "params.yaml" if has_checkout() else _SHIPPED


def load_params(path: Path, overlay: Path | None = None) -> Params:
    """Read params.yaml, merge the overlay over it, check both and the result."""
    return overlaid(path, overlay, _read(overlay) if overlay else {})


def overlaid(path: Path, overlay: Path | None, over: Raw) -> Params:
    """Read params.yaml and merge the overlay over it. overlay: its file, as errors name it."""
    raw = _read(path)
    for name in environment_names():  # of which params.yaml may say nothing
        own = settings_of(name)
        for key, kind in (("data", own.Data), ("environments", own.Settings)):
            if isinstance(raw.get(key), dict):
                raw[key].setdefault(name, told(kind()))
    params = checked(Params, raw, path)
    if overlay is not None:
        if not isinstance(over.get("study"), str):
            raise InputError(f"{overlay}: key 'study' is missing, expected the name of the study")
        if over["study"] == params.study:
            raise InputError(
                f"{overlay}: key 'study' is '{over['study']}', the name in {path}; choose another"
            )
        if params.hypotheses != ALL:  # an overlay adds to a cause's own arm, {} in params.yaml
            raw["hypotheses"] = told(filled(params, path).hypotheses)
        if "seeds" in over:  # they are the fixed design's
            over = {"design": "fixed", **over}
        _check_removals(raw, over, "", overlay)
        params = checked(Params, merge(raw, over), overlay)
        if "seeds" in over and params.design == "sequential":
            raise InputError(
                f"{overlay}: key 'seeds' is given with design sequential, which numbers seeds from first_seed on; "
                "set design: fixed, or remove the seeds"
            )
    params = filled(params, overlay or path)
    check_references(params, overlay or path)
    return params


def only(names: Sequence[str], overlay: Path | None) -> Path:
    """Write studies/<name>.yaml, an overlay with these hypotheses and no others, and return it."""
    shipped = study_params().hypotheses
    over = _read(overlay) if overlay else {}
    own = over.get("hypotheses")
    own = own if isinstance(own, dict) else {}
    for name in names:
        if name not in (known := hypothesis_names()):
            raise InputError(f"--hypothesis: found '{name}', {hint(name, known)}")
    tested = {name: own.get(name) or {} for name in names if name in own or name not in shipped}
    switched_off = {name: None for name in shipped if name not in names}
    study = "-".join(filter(None, [over.get("study"), *names]))
    path = checkout() / "studies" / f"{study}.yaml"
    # the controls and nothing else: no arms for what else the case departs in
    content = {"unnamed": False, **over, "study": study, "hypotheses": {**switched_off, **tested}}
    write_text(path, yaml.safe_dump(content, sort_keys=False))
    return path


def _read(path: Path) -> Raw:
    try:
        text = read_text(path, "parameters in YAML")
    except ValueError as error:
        raise InputError(f"{path}: expected YAML, found: {error}") from None
    return parse_params(text, str(path))


def parse_params(text: str, place: str) -> Raw:
    """Return the keys and values of a params.yaml as they stand there; `place` is how errors name the file."""
    try:
        value = _string_keys(yaml.load(text, _Loader))
    except RecursionError:
        raise InputError(f"{place}: expected YAML, found values nested too deep") from None
    except (yaml.YAMLError, ValueError) as error:  # a value such as 2024-13-45 is a ValueError
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise InputError(f"{place}{line}: expected YAML, found: {problem}") from None
    if not isinstance(value, dict):
        raise InputError(f"{place}: is {typed(value)}, expected keys such as `study: name`")
    return value


def _string_keys(value: Any) -> Any:
    """YAML reads `{2: 0.7}` with a number for a key; JSON and the schema know strings only."""
    if isinstance(value, dict):
        return {str(key): _string_keys(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_string_keys(item) for item in value]
    return value


def merge(base: Any, over: Any) -> Any:
    """`over` on `base`: mappings key by key, anything else replaced. `~` removes a key."""
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return over
    merged = {key: value for key, value in base.items() if key not in over}
    merged |= {
        key: merge(base.get(key, {} if isinstance(value, dict) else None), value)
        for key, value in over.items()
        if value is not None
    }
    return {key: merged[key] for key in [*base, *over] if key in merged}


def _check_removals(base: Raw, over: Raw, above: str, path: Path) -> None:
    """A `~` for a key that is not there removes nothing, such as a misspelt one."""
    for key, value in over.items():
        full = f"{above}{key}"
        if value is None and key not in base:
            raise InputError(f"{path}: no key '{full}' that could be removed: {hint(key, base)}")
        # an unknown first key is told when all keys are read
        if isinstance(value, dict) and (above or key in base):
            below = base.get(key)
            _check_removals(below if isinstance(below, dict) else {}, value, f"{full}.", path)
