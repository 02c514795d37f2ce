"""One run of a released GRPOTrainer, in its environment: `python -m rlvr_debug.trainers.verifiers.program RELEASE params.json`."""

import base64
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from rlvr_debug.causes import stages_with
from rlvr_debug.data.prepare import read_rows
from rlvr_debug.environments import build_environment
from rlvr_debug.errors import InputError
from rlvr_debug.files import sha256, write_json
from rlvr_debug.grpo.policy import lora_config
from rlvr_debug.grpo.settings import DiagnosticSettings
from rlvr_debug.models.base_model import load_model
from rlvr_debug.processes import run_main
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.trainers.protocol import RECORDED, Asked, save_trained
from rlvr_debug.trainers.verifiers import config_of
from rlvr_debug.trainers.verifiers.fixes import apply_fixes, faults_of_release, fixes_without
from rlvr_debug.trainers.verifiers.server import WEIGHT_CLIENT, Server


def main() -> None:
    if len(sys.argv) != 3:
        raise InputError(
            f"{len(sys.argv) - 1} arguments, expected two, a release and the path of params.json"
        )
    release, asked = sys.argv[1], Asked.read(Path(sys.argv[2]))
    train(asked, _on_path(release, asked))


def _on_path(release: str, asked: Asked) -> list[str]:
    """Make the release, or its copy without the faults that the run lacks, what is imported, and return the fixes."""
    installed = distribution("verifiers")
    if release != f"verifiers-{installed.version}":
        raise InputError(
            f"verifiers {installed.version} is installed in {sys.prefix}, expected {release}"
        )
    fixes = fixes_without(release, asked.run.faults)
    if fixes:
        copy = Path(asked.out) / "release"
        apply_fixes(Path(str(installed.locate_file(""))), copy, fixes)
        sys.path.insert(0, str(copy))
    return fixes


def train(asked: Asked, fixes: list[str]) -> None:
    """Write metrics.jsonl, rollouts.jsonl, record.json, model.safetensors or adapter/ and, where asked for, a record."""
    import torch

    from rlvr_debug.trainers.verifiers.recorder import Recorder

    torch.set_num_threads(1)
    run, out = asked.run, Path(asked.out)
    chat = Chat(asked.base_model)
    environment = build_environment(run.environment, asked.environment)
    own = set(faults_of_release(f"verifiers-{distribution('verifiers').version}").values())
    stages = stages_with([fault for fault in run.faults if fault not in own])
    server = Server(Path(asked.base_model), chat, run.seed)
    sys.modules[WEIGHT_CLIENT] = server.weight_client()
    recorder = Recorder(
        out, environment, server, DiagnosticSettings(asked.rollouts_every, asked.rollouts_kept)
    )
    os.environ |= {"TQDM_DISABLE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    from verifiers.trainers import GRPOConfig, GRPOTrainer

    from rlvr_debug.trainers.verifiers.task import Generated, Task

    config = GRPOConfig(
        output_dir=str(out / "hf"),
        save_strategy="no",  # transformers' checkpoints are pickles
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        seed=run.seed,
        **{**config_of(run.training, stages.max_new_tokens(environment)), **run.options},
    )
    listeners: list[Callable[[Generated], None]] = [recorder.on_batch]

    def on_batch(made: Generated) -> None:
        for listener in listeners:
            listener(made)

    trainer = GRPOTrainer(
        load_model(Path(asked.base_model), run.training.attn_implementation),
        Task(
            read_rows(run.environment, Path(asked.rows)),
            environment,
            stages,
            server,
            on_batch,
            _ends_the_run(),
        ),
        config,
        chat.tokenizer,
        callbacks=[recorder],
        peft_config=lora_config(run.training) if run.training.lora_r else None,
    )
    recorder.attach(trainer)
    write_json(out / "record.json", _record(fixes))
    if asked.record:
        from rlvr_debug.replay.store import write_record
        from rlvr_debug.trainers.verifiers.steps import StepRecorder

        steps = StepRecorder(trainer, environment, stages, server)
        listeners.append(steps.on_batch)
        steps.record.notes += [f"with the fix {fix}" for fix in fixes]
        write_record(steps.record_run(), out / RECORDED)
    else:
        trainer.train()
    save_trained(trainer.model, out)


def _ends_the_run() -> Callable[[BaseException], None]:
    """Return what ends the run with an error's line, from any thread: the release would wait for the generator's for long."""
    first: list[BaseException] = []
    here = threading.get_ident()

    def said(*_: Any) -> None:
        lines = str(first[0]).splitlines() or [""]
        raise InputError(
            lines[0]
            if isinstance(first[0], InputError)
            else f"{type(first[0]).__name__}: {lines[0]}"
        )

    def end(error: BaseException) -> None:
        if not first:
            first.append(error)
            traceback.print_exception(error)
            signal.pthread_kill(here, signal.SIGUSR1)

    signal.signal(signal.SIGUSR1, said)
    threading.excepthook = lambda args: end(args.exc_value) if args.exc_value else None
    return end


def _record(fixes: list[str]) -> dict[str, Any]:
    """Return what is executed: the release, its fixes, and the sha256 of each imported file beside the wheel's own."""
    installed = distribution("verifiers")
    # what a wheel's RECORD has in base64, and without the padding, as sha256sum prints it
    wheel = {
        str(file): base64.urlsafe_b64decode(f"{file.hash.value}=").hex()
        for file in installed.files or ()
        if file.hash
    }
    files = {}
    for name, module in sorted(sys.modules.items()):
        place = getattr(module, "__file__", None)
        if name.partition(".")[0] == "verifiers" and place:
            file = f"verifiers/{Path(place).as_posix().rpartition('/verifiers/')[2]}"
            files[file] = {"executed": sha256(Path(place)), "wheel": wheel[file]}
    return {
        "release": f"verifiers {installed.version}",
        "fixes": fixes,
        "replaced": [
            WEIGHT_CLIENT,
            "the client that answers chat completions",
            "the order in which rollouts start",
        ],
        "files": files,
    }


if __name__ == "__main__":
    run_main(main)
