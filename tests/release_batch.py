"""Run in the environment of verifiers 0.1.3, from the project's root: prints what of its batch differs from the default case's."""

import tempfile
from dataclasses import fields
from pathlib import Path

import torch

from lab.releases.verifiers.case import release_subject
from rlvr_debug.causes import stages_with
from rlvr_debug.checkout import ROOT
from rlvr_debug.grpo.sequences import build_batch
from rlvr_debug.study.params import load_params

with tempfile.TemporaryDirectory() as scratch:
    subject, release = release_subject(Path(scratch), 1.0)
stages = stages_with(load_params(ROOT / "params.yaml").cases["verifiers-0.1.3"].faults)
given = (subject.rollouts, stages, subject.environment, subject.chat)
ours, theirs = build_batch(*given), release.build(*given)
real = ours.real
print(
    "differs:",
    [
        field.name
        for field in fields(ours)
        if not torch.equal(getattr(ours, field.name)[real], getattr(theirs, field.name)[real])
    ],
)
