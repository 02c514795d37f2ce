"""Wheel and sdist: diagnosis works with the wheel alone, and the check beside somebody's TRL, without a checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.venvs import build_venv
from tests.shared import once, ran

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
LOG = ROOT / "tests" / "logs" / "truncation"
HEAVY = {"psutil", "pydot", "scipy", "snakemake", "statsmodels", "torch", "transformers"}

Call = Callable[..., subprocess.CompletedProcess[str]]


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / "envs" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return dict(re.findall(r"(?m)^([\w.-]+)==([\w.]+)", "\n".join(lines)))


def caller(folder: Path, words: list[str], **variables: str) -> Call:
    """Return what calls the command line in an empty folder, with no PYTHONPATH but one that is given."""
    folder.mkdir()
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return ran([*words, *arguments], cwd=folder, env={**kept, **variables})

    return call


# what is installed beside somebody's trainer, whose versions it takes as they are
BESIDE = ("", "check", "parquet")


@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_every_dependency_is_one_that_the_project_s_own_environments_pin(extra: str) -> None:
    known = {**pins("test"), **pins("train")}
    for line in EXTRAS[extra] if extra else PROJECT["dependencies"]:
        asked = Requirement(line)
        assert asked.specifier.contains(known[asked.name]), line
        [bound] = asked.specifier
        assert bound.operator == (">=" if extra in BESIDE else "=="), line


def test_help_loads_nothing_but_the_command_line() -> None:
    """That it takes 0.1 s of a processor rests on this: pandas alone takes a second."""
    code = """import sys
before = set(sys.modules)
from rlvr_debug.cli import app
app(['--help'], standalone_mode=False)
tops = {name.partition('.')[0] for name in set(sys.modules) - before}
print(*(tops - sys.stdlib_module_names), file=sys.stderr)"""
    done = ran([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert "diagnose" in done.stdout
    of_typer = {"annotated_doc", "click", "shellingham", "typer", "typing_extensions"}
    assert set(done.stderr.split()) <= {"rlvr_debug", *of_typer}


def assert_diagnoses_as_the_checkout_does(alone: Call, folder: Path) -> None:
    """folder: the one that `alone` is called in."""
    beside = folder.with_name("beside")
    words = [sys.executable, "-m", "rlvr_debug.cli"]
    calls = (alone, caller(beside, words, PYTHONPATH=str(ROOT / "src")))
    said, expected = (call("diagnose", str(LOG)) for call in calls)
    assert (said.returncode, said.stderr, said.stdout) == (0, "", expected.stdout)
    told = ("diagnose", str(LOG), "--json", "--overlay-out", "mine.yaml")
    found, expected_too = (json.loads(call(*told).stdout) for call in calls)
    assert found == expected_too
    assert found["ranked"][0]["hypothesis"] == "context-truncation"
    assert (folder / "mine.yaml").read_bytes() == (beside / "mine.yaml").read_bytes()


def assert_what_needs_a_checkout_says_so(alone: Call) -> None:
    for words in ("run", "plan", "check-case", "status", "report", "new-hypothesis x"):
        done = alone(*words.split())
        assert (done.returncode, done.stdout) == (2, ""), words
        assert done.stderr.startswith("error: ")
        assert done.stderr.endswith("make a folder of studies by `rlvr-debug init`\n")
        assert len(done.stderr.splitlines()) == 1


def tracked(folder: Path) -> Path:
    """Return a copy of what git tracks."""
    listed = ran(["git", "ls-files", "-z"], cwd=ROOT)
    if listed.returncode:
        pytest.skip("the checkout is no git repository: which files are the project's is not known")
    for name in listed.stdout.split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def wheel_of(project: Path, place: Path) -> Path:
    options = ["-q", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place)]
    ran([sys.executable, "-m", "pip", "wheel", *options, project], check=True)
    [wheel] = place.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, made from a copy of what git tracks, which stands beside it as `copy`."""

    def make(place: Path) -> None:
        wheel_of(tracked(place / "copy"), place)

    [made] = once(tmp_path_factory, "wheel", make).glob("*.whl")
    return made


def names_in(wheel: Path) -> set[str]:
    """The names of its files; its parameters are the checkout's, and it is small."""
    assert wheel.stat().st_size < 4e6
    with ZipFile(wheel) as archive:
        assert archive.read("rlvr_debug/study/params.yaml") == (ROOT / "params.yaml").read_bytes()
        return set(archive.namelist())


@pytest.mark.heavy
def test_the_wheel_has_the_data_files_and_the_license_and_nothing_beside_the_library(
    wheel: Path,
) -> None:
    others = {name for name in names_in(wheel) if ".dist-info/" in name}
    copy = wheel.parent / "copy" / "src"
    files = (str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())
    listed = {name for name in files if ".egg-info/" not in name}
    assert names_in(wheel) - others == {*listed, "rlvr_debug/checkout.tar.gz"}
    assert any(name.endswith("/licenses/LICENSE") for name in others)


@pytest.mark.heavy
def test_the_sdist_makes_the_same_wheel_as_the_checkout(tmp_path: Path) -> None:
    code = "import setuptools.build_meta as b, sys; b.build_sdist(sys.argv[1])"
    project = tracked(tmp_path / "copy")
    ran([sys.executable, "-c", code, tmp_path], cwd=project, check=True)
    [archive] = tmp_path.glob("rlvr_debug-*.tar.gz")
    assert archive.stat().st_size < 4e6
    (tmp_path / "unpacked").mkdir()
    ran(["tar", "xf", archive, "-C", tmp_path / "unpacked"], check=True)
    [unpacked] = (tmp_path / "unpacked").iterdir()
    made = [wheel_of(each, tmp_path / f"of-{each.name}") for each in (unpacked, project)]
    assert names_in(made[0]) == names_in(made[1])


def environment(
    folder: Path, beside: Path | None = None, own_pip: bool = False
) -> tuple[Path, Call]:
    """Return an empty environment's programs, and a pip for it. beside: packages of another that it sees too."""
    venv = folder / "venv"
    without = [] if own_pip else ["--without-pip"]  # seconds
    ran([sys.executable, "-m", "venv", *without, venv], check=True)
    if beside is not None:
        [packages] = venv.glob("lib/python3*/site-packages")
        (packages / "beside.pth").write_text(f"{beside}\n", encoding="utf-8")
    of_tests = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python")]
    pip = caller(folder / "build", of_tests)
    return venv / "bin", pip


def install(pip: Call, *words: str) -> None:
    # what is imported is compiled then, and the rest never
    options = ("-q", "--disable-pip-version-check", "--no-compile")
    done = pip("install", *options, *words)
    first = Requirement(PROJECT["dependencies"][0]).name
    if done.returncode and pip("install", *options, "--no-deps", first).returncode:
        pytest.skip(f"nothing can be installed here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert pip("check").returncode == 0


def versions(pip: Call) -> dict[str, str]:
    listed = json.loads(pip("list", "--format", "json").stdout)
    return {each["name"].lower(): each["version"] for each in listed}


@pytest.mark.heavy
@pytest.mark.parametrize("packages", ["newest", "oldest that are asked for"])
def test_the_wheel_in_an_empty_environment_diagnoses_a_log(
    packages: str, wheel: Path, tmp_path: Path
) -> None:
    programs, pip = environment(tmp_path)
    bounds = tmp_path / "bounds.txt"
    oldest = [line.replace(">=", "==") for line in PROJECT["dependencies"]]
    bounds.write_text("" if packages == "newest" else "\n".join(oldest), encoding="utf-8")
    install(pip, str(wheel), "--constraint", str(bounds))
    assert not HEAVY & set(versions(pip))
    assert versions(pip)["pydantic"].startswith("2.7.") == (packages != "newest")
    alone = caller(tmp_path / "empty", [str(programs / "rlvr-debug")])
    assert alone("--version").stdout == f"rlvr-debug {PROJECT['version']}\n"
    assert_diagnoses_as_the_checkout_does(alone, tmp_path / "empty")
    assert_what_needs_a_checkout_says_so(alone)
    table = tmp_path / "empty" / "completions_00001.parquet"
    table.write_bytes(b"PAR1" + bytes(100))
    assert alone("diagnose", str(table)).stderr.endswith("pip install 'rlvr-debug[parquet]'\n")
    for words in (["train.py"], ["--record", "record"]):
        done = alone("check", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "error: torch is not installed: pip install 'rlvr-debug[check]'\n"


@pytest.mark.heavy
def test_an_empty_folder_becomes_a_folder_of_studies_with_the_shipped_one(
    wheel: Path, tmp_path: Path
) -> None:
    programs, pip = environment(tmp_path, Path(pytest.__file__).parents[1])
    assert pip("install", "-q", "--no-deps", "--no-index", str(wheel)).returncode == 0
    here, program = tmp_path / "mine", [str(programs / "rlvr-debug")]
    alone = caller(here, program)
    (here / "notes.txt").touch()
    done = alone("init")
    assert (done.returncode, [path.name for path in here.iterdir()]) == (2, ["notes.txt"])
    assert done.stderr == "error: .: is not empty, expected an empty folder, or a new one\n"
    assert alone("init", "studies").returncode == 0
    inner = caller(here / "studies" / "inner", program)
    words = ("plan", "--json")
    plans = [json.loads(each.stdout) for each in (inner(*words), ran([*program, *words], cwd=ROOT))]
    assert plans[0]["whole"]["trainings"] == plans[1]["whole"]["trainings"] > 0
    assert inner("init").stderr.count("is a checkout") == 1
    # the tables that the checkout has stayed as they were, whatever the study's own runs gave
    ages = {path: time.time() - path.stat().st_mtime for path in (here / "studies").rglob("*.*")}
    assert {path for path, seconds in ages.items() if seconds > 3600} == set()
    for name in ("params.yaml", "workflow/Snakefile", "models/tiny/model.safetensors", "src"):
        copy, place = here / "studies" / name, ROOT / name
        assert copy.is_dir() if place.is_dir() else copy.read_bytes() == place.read_bytes()


SCRIPT = f"""
import sys, torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
torch.set_num_threads(1)
TINY = {str(ROOT / "models" / "tiny")!r}
rows = Dataset.from_list([{{"prompt": f"What is {{a}} plus {{a}}?"}} for a in range(8)])
def reward(completions, **_): return [float(len(c) % 5) for c in completions]
class Trainer(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        return -super()._compute_loss(model, inputs)
config = GRPOConfig("out", per_device_train_batch_size=4, num_generations=2, max_completion_length=8, max_steps=50,
                    learning_rate=1e-3, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True)
tokenizer = AutoTokenizer.from_pretrained(TINY)
kind = Trainer if "broken" in sys.argv else GRPOTrainer
kind(AutoModelForCausalLM.from_pretrained(TINY), reward, args=config, train_dataset=rows, processing_class=tokenizer).train()
"""


@pytest.mark.releases
@pytest.mark.parametrize("name", ["trl-0.22.2", "trl"])
def test_the_check_is_installed_beside_somebody_s_trl_and_leaves_its_versions(
    name: str, wheel: Path, tmp_path: Path
) -> None:
    try:
        python = build_venv(name)
    except InputError as error:
        pytest.skip(str(error))
    [beside] = python.parents[1].glob("lib/python3*/site-packages")
    programs, pip = environment(tmp_path, beside)
    before = versions(pip)
    install(pip, f"{wheel}[check]")
    after = versions(pip)
    assert {each: after.get(each) for each in before} == before
    alone = caller(tmp_path / "empty", [str(programs / "rlvr-debug")], OMP_NUM_THREADS="1")
    (tmp_path / "empty" / "train.py").write_text(SCRIPT, encoding="utf-8")
    done = alone("check", "--json", "--html", "page.html", "--save", "record", "train.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trainer"] == f"trl {before['trl']}"
    assert (tmp_path / "empty" / "page.html").is_file()
    assert alone("check", "--record", "record").returncode == 0
    broken = alone("check", "--json", "train.py", "broken")
    assert broken.returncode == 3, broken.stderr
    assert json.loads(broken.stdout)["first"] == "loss"


@pytest.mark.deep
def test_with_the_oldest_packages_that_the_check_asks_for_a_trainer_is_checked(
    wheel: Path, tmp_path: Path
) -> None:
    """TRL 0.14.0 reads padding (its PR 2708): the check says that, of the script and of its record."""
    programs, pip = environment(tmp_path)
    oldest = [line.replace(">=", "==") for line in EXTRAS["check"]]
    # what TRL 0.14.0 and torch 2.4.0 themselves work with
    install(pip, f"{wheel}[check]", *oldest, "numpy<2.3", "datasets==3.0.0", "accelerate==1.2.0")
    alone = caller(tmp_path / "empty", [str(programs / "rlvr-debug")], OMP_NUM_THREADS="1")
    script = SCRIPT.replace("max_steps=50,", "max_steps=50, gradient_accumulation_steps=1,")
    (tmp_path / "empty" / "train.py").write_text(script, encoding="utf-8")
    for words in (["--save", "record", "train.py"], ["--record", "record"]):
        done = alone("check", "--json", *words)
        assert done.returncode == 3, done.stderr
        found = json.loads(done.stdout)
        assert (found["trainer"], found["first"]) == ("trl 0.14.0", "model inputs")
