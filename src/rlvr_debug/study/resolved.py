"""results/study.json: a study, wholly resolved; and results/jobs.json, what each of its jobs reads of it."""

import itertools
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rlvr_debug.blocks import checked, told
from rlvr_debug.causes import phase_of
from rlvr_debug.data.hub import folders
from rlvr_debug.data.prepare import rooted
from rlvr_debug.environments.settings import DataSettings
from rlvr_debug.errors import InputError, hint
from rlvr_debug.files import read_json, write_json
from rlvr_debug.jobs import Evaluation, Sampling, Serving, Trained, write_jobs
from rlvr_debug.study.arms import hypotheses_of, runs, unmapped
from rlvr_debug.study.folder import SPLITS
from rlvr_debug.study.model import Params
from rlvr_debug.trainers import CHECKED_ROLLOUTS, Job, Run, Trainer, load_trainer
from rlvr_debug.verdicts.looks import Comparing, Look, Looked, compared, last_look, unchanged
from rlvr_debug.verdicts.rule import Bar

# the file, among results, that says which arms change nothing in the runs that every study begins with
UNCHANGED = Path("tables", "unchanged.json")
# runs of the case and of the control that are there before the first look
_BEGUN = 2


@dataclass(frozen=True)
class Study:
    """A study as its jobs see it, from its working directory: checked parameters, the runs in the order of the tables, and phases by slug."""

    params: Params
    root: Path
    runs: tuple[Run, ...]
    phases: Mapping[str, int]
    unmapped: Mapping[str, str]
    results: Path = Path("results")

    @cached_property
    def trained(self) -> dict[str, Run]:
        """The runs that are trained, one of all with equal settings, by `environment/arm/seed`."""
        return {run.name: run for run in self.runs if run.arm == run.trained_as}

    def run(self, name: str) -> Run:
        """Return the trained run of that name. Raise InputError where the study has none."""
        if name not in self.trained:
            known = hint(name, self.trained)
            raise InputError(f"{self.results / 'study.json'}: no run '{name}': {known}")
        return self.trained[name]

    @property
    def environments(self) -> list[str]:
        return sorted({run.environment for run in self.runs})

    def data_settings(self, environment: str) -> dict[str, Any]:
        """Return the environment's block of `data`, with the paths of files as they are from here."""
        return rooted(self.params.data_settings(environment), self.root)

    def model_folder(self, environment: str) -> Path:
        return self.root / self.params.base_model_of(environment).folder

    def rows(self, environment: str, split: str) -> Path:
        """Return the file of that environment's rows. split: train or heldout."""
        return self.results.parent / SPLITS / environment / f"{split}.jsonl"

    @property
    def trains_on_vllm(self) -> bool:
        """Whether vLLM answers in training, too: other trainers have samplers of their own."""
        return bool(self.params.served) and self.trainer.takes_sampler

    @property
    def trainer(self) -> Trainer:
        return load_trainer(self.params.trainer)

    def shared_server(self, run: Run) -> Path | None:
        """Return the endpoint's file of the server that samples for this training and others, if one does."""
        sharing = self.params.vllm.shared_by
        if not self.trains_on_vllm or sharing == "run":
            return None
        name = "study" if sharing == "study" else run.arm
        return self.results / "server" / run.environment / name / "endpoint.json"

    def baseline_server(self, environment: str) -> Path | None:
        """Return the endpoint's file of the server with the base model, where the environment has that one."""
        folders = (self.model_folder(name) for name in (environment, self.params.environment))
        same = self.params.served and len(set(folders)) == 1
        return self.results / "server" / "endpoint.json" if same else None

    def serving(self) -> Serving:
        """Return the job of the server with the base model, which baseline evaluations share."""
        sampling = Sampling(self.params.sampler, self.params.served)
        return Serving(self.model_folder(self.params.environment), sampling, None)

    def serving_policies(self, endpoint: Path) -> Serving:
        """Return the job of a server that samples for several trainings. endpoint: its file (shared_server)."""
        runs = [run for run in self.trained.values() if self.shared_server(run) == endpoint]
        if not runs:
            raise InputError(f"{endpoint}: no run of the study samples from this server")
        lora_r = max(run.training.lora_r for run in runs)
        # the port of params.yaml is that of the server with the base model
        sampling = Sampling(self.params.sampler, {**self.params.served, "port": 0})
        return Serving(self.model_folder(runs[0].environment), sampling, Trained(lora_r, len(runs)))

    def training(self, name: str) -> Job:
        run = self.run(name)
        sampling = Sampling()
        if self.trains_on_vllm:
            sampling = Sampling(self.params.sampler, self.params.served, self.shared_server(run))
        job = self._job(run, self.results / "runs" / name, sampling)
        return replace(job, shadow=self.shadow(run))

    def shadow(self, run: Run) -> tuple[str, ...] | None:
        """Return the faults with whose stages that run's are compared, the case's with the control's; None where none can be."""
        return self._shadows.get(run.trained_as)

    @cached_property
    def _shadows(self) -> dict[str, tuple[str, ...]]:
        first = {run.arm: run for run in reversed(self.runs)}
        several = self.trains_on_vllm or self.params.launch.processes > 1
        if several or not self.trainer.shadows or not {"case", "control"} <= first.keys():
            return {}
        pairs = (("control", "case"), ("case", "control"))
        return {first[own].trained_as: first[other].faults for own, other in pairs}

    @cached_property
    def compared(self) -> dict[str, tuple[Run, Run]]:
        """Return the arms that runs of case and control may show to change nothing."""
        return compared(self.runs) if self._shadows else {}

    def unchanged(self, runs: Iterable[Run] | None = None) -> list[dict[str, Any]]:
        """Return the arms that change nothing, by those of the case and the control among these runs (comparing)."""
        return unchanged(self.comparing(runs), self.results)

    def comparing(self, runs: Iterable[Run] | None = None) -> Comparing:
        """Return what is compared of these runs, by default of those that every study begins with."""
        own = (
            run for run in (self.runs if runs is None else runs) if run.arm in ("case", "control")
        )
        count = _BEGUN if runs is None and self.is_sequential else len(self.runs)
        there = _first(own, {"case": count, "control": count})
        pairs = self.compared
        if not self.is_sequential:
            # the fixed design may have more seeds of an arm than of what it is compared with
            seeds, seen = ({(r.arm, r.seed) for r in found} for found in (self.runs, there))
            pairs = {
                name: pair
                for name, pair in pairs.items()
                if all((pair[1].arm, seed) in seen for arm, seed in seeds if arm == name)
            }
        return Comparing(pairs, there)

    def checking(self) -> Job:
        """Return the job that checks the case, with as few prompts per step as suffice."""
        case = self.runs[0]
        settings = case.training
        few = max(1, CHECKED_ROLLOUTS // settings.group_size)
        few_prompts = replace(settings, prompts_per_step=min(few, settings.prompts_per_step))
        return self._job(
            replace(case, training=few_prompts), self.results / "check.json", Sampling()
        )

    def _job(self, run: Run, out: Path, sampling: Sampling) -> Job:
        keys = self.trainer.command_keys
        return Job(
            run,
            self.params.settings(run.environment),
            self.model_folder(run.environment),
            self.rows(run.environment, "train"),
            out,
            self.params.diagnostics,
            {key: value for key, value in told(self.params.command).items() if key in keys},
            sampling,
        )

    def evaluation(self, environment: str, name: str | None = None) -> Evaluation:
        """Return the job of the held-out evaluation of that run, or of the environment's base model."""
        folder = self.results / "runs" / name if name else None
        endpoint = None if name else self.baseline_server(environment)
        return Evaluation(
            environment,
            self.params.settings(environment),
            self.model_folder(environment),
            folder / "model.safetensors" if folder else None,
            self.rows(environment, "heldout"),
            self.params.training.temperature,
            self.params.evaluation.seed,
            Sampling(self.params.sampler, self.params.served, endpoint),
        )

    @property
    def evaluates_ahead(self) -> bool:
        """Whether one process trains, and samples for both training and evaluation."""
        return self.trainer.evaluates and not (self.params.launch.config or self.params.served)

    def jobs(self, evaluated_by: Mapping[str, str]) -> dict[str, Any]:
        """Return by rule, and what it is for, all that its job reads of the study; evaluated_by: digests of code by environment."""
        jobs: dict[str, Any] = {"serve": self.serving(), "ahead": self.evaluates_ahead}
        for name in self.params.data:
            jobs[f"prepare_data/{name}"] = self.data_settings(name)
            jobs[f"audit_rewards/{name}"] = {
                "settings": self.params.settings(name),
                "base_model": self.model_folder(name),
                "rows": [self.rows(name, split) for split in ("train", "heldout")],
            }
            jobs[f"evaluate/{name}"] = self.evaluation(name)
            jobs[f"evaluate_by_verifiers/{name}"] = self.params.evaluation.verifiers_rows
        for name, run in self.trained.items():
            code = evaluated_by.get(run.environment, "")
            jobs[f"train/{name}"] = self.training(name)
            jobs[f"evaluate/{name}"] = replace(self.evaluation(run.environment, name), code=code)
            if endpoint := self.shared_server(run):
                jobs[f"serve/{endpoint}"] = self.serving_policies(endpoint)
        if self.runs:
            jobs |= {"check_case": self.checking(), "judged_by": self.judged_by}
        return jobs

    @property
    def is_sequential(self) -> bool:
        """Whether looks at the results choose the runs."""
        return self.params.design == "sequential"

    @cached_property
    def looked(self) -> Looked:
        bar = Bar.of(self.params.verdicts.alpha, self.params.verdicts.minimum_effect)
        design = (self.is_sequential, self.params.phases == "gated")
        return Looked(self.runs, self.phases, self.params.environment, bar, *design)

    def looked_in(self, results: Path) -> Looked:
        """Return the study as its first look sees it. results: where it is said which arms change nothing."""
        file = results / UNCHANGED
        rows = read_json(file) if file.is_file() else []
        # what an earlier study left may be of other arms
        same = frozenset(row["arm"] for row in rows) & self.compared.keys()
        return replace(self.looked, unchanged=same)

    def look_at(self, before: Look) -> Look:
        """Judge the runs that the look before this one chose, and return what follows."""
        from rlvr_debug.verdicts.tables import judge, validated

        slugs = sorted(slug for slug, phase in self.phases.items() if phase <= before.phase)
        runs = self.chosen(before)
        judged = judge(runs, slugs, self.judging(runs), self.results)
        mechanisms = {slug: judged.evidence.mechanism(slug).present for slug in slugs}
        same = frozenset(arm["arm"] for arm in self.unchanged(runs))
        looked = replace(self.looked, unchanged=same)
        return looked.next(before, judged.tables["arms"], mechanisms, validated(judged.verdicts))

    def last_look(self, results: Path) -> Look:
        """Return the last look of which the file is there; where there is none, what the study begins with."""
        first = self.looked_in(results).first()
        return (last_look(results, self.looked.arms) if first.more else None) or first

    def chosen(self, look: Look) -> list[Run]:
        """Return the runs that the study has after that look."""
        opened = (run for run in self.runs if self.phases.get(run.hypothesis, 0) <= look.phase)
        return _first(opened, look.seeds)

    def judging(self, runs: Iterable[Run]) -> dict[str, Any]:
        return {**self.judged_by, "unchanged": self.unchanged(runs)}

    @property
    def judged_by(self) -> dict[str, Any]:
        """What tables and report read of the case and of how verdicts are reached."""
        keys = ("study", "case", "trainer", "environment", "design")
        return {
            **{key: getattr(self.params, key) for key in keys},
            "training": told(self.runs[0].training),
            **told(self.params.verdicts),
        }


def own_programs(params: Params, root: Path) -> list[str]:
    """The user's reward function and program, as params.yaml names them: files under `root`."""
    faults = (fault for run in runs(params) for fault in run.faults if ":" in fault)
    words = {*params.command.program, *(fault.partition(":")[0] for fault in faults)}
    return sorted(word for word in words if (root / word).is_file())


def own_rows(settings: DataSettings, root: Path) -> list[str]:
    """Return the user's own files of rows, from `root`; of a folder that `datasets` loads, all."""
    if settings.source == "jsonl":
        return list(filter(None, (settings.path, settings.heldout_path)))
    named = (settings.datasets, settings.heldout_datasets)
    loaded = (root / folder for text in named if text for folder in folders(text))
    files = {file for folder in loaded for file in folder.rglob("*") if file.is_file()}
    return sorted(os.path.relpath(file, root) for file in files)


def _first(runs: Iterable[Run], counts: Mapping[str, int]) -> list[Run]:
    """Return of each arm the first so many runs."""
    numbers: dict[str, Iterator[int]] = defaultdict(itertools.count)
    return [run for run in runs if next(numbers[run.arm]) < counts[run.arm]]


def resolve(params: Params, root: Path) -> Study:
    """Return the study of checked parameters. root: the checkout, from the study's working directory."""
    every_run = tuple(runs(params))
    slugs = hypotheses_of(params, every_run)
    phases = {slug: phase_of(slug, slugs) for slug in slugs}
    return Study(params, root, every_run, phases, unmapped(params))


def write_study(study: Study, path: Path, evaluated_by: Mapping[str, str] | None = None) -> None:
    """Write the study, and beside it what its jobs read of it; the same study gives the same bytes."""
    write_jobs(path, replace(study, results=path.parent).jobs(evaluated_by or {}))
    value = {"params": told(study.params), "root": str(study.root)}
    value["runs"] = [asdict(run) for run in study.runs]
    write_json(path, {**value, "phases": study.phases, "unmapped": study.unmapped})


def read_study(path: Path) -> Study:
    """Read what write_study wrote; results are beside it. Raise InputError for any other file."""
    value = read_json(path)
    try:
        # a study of before there was a choice is fixed
        params = checked(Params, {"design": "fixed", **value["params"]}, path)
        places = {"root": Path(value["root"]), "results": path.parent}
        every_run = checked(tuple[Run, ...], value["runs"], path)
        return Study(**{**value, **places, "params": params, "runs": every_run})
    except (TypeError, KeyError):
        raise InputError(
            f"{path}: not a study that the workflow wrote: it has other keys"
        ) from None
