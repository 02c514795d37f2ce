"""Run in the environment of verifiers 0.1.3: prints what of its batch differs from the default case's."""

import tempfile
from dataclasses import fields
from pathlib import Path

import torch

from rlvr_debug.config import ROOT, load_params
from rlvr_debug.faults import faulty_stages
from rlvr_debug.grpo.sequences import build_batch
from rlvr_debug.probes.release_case import release_subject

with tempfile.TemporaryDirectory() as scratch:
    subject, release = release_subject(Path(scratch))
stages = faulty_stages(load_params(ROOT / "params.yaml")["cases"]["verifiers-0.1.3"]["faults"])
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
