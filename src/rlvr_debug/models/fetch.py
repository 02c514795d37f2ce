"""A base model from the hub, once: into a folder that is whole when its manifest stands there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlvr_debug.errors import InputError, reason
from rlvr_debug.files import read_json, sha256, write_json
from rlvr_debug.models.architectures import read_architecture
from rlvr_debug.models.places import BESIDE_WEIGHTS, MANIFEST, BaseModel, weight_files

# no pickles, no code; folders below hold the same weights in other formats
_WANTED = ["*.safetensors", "*.json", "*.jinja", "merges.txt", "vocab.txt"]
_UNWANTED = ["*/*"]
_CONFIG = "config.json"
_PATIENCE = 5  # seconds; the library alone would try for minutes


def fetch_model(model: BaseModel, out: Path) -> None:
    """Write its files to `out` and, last, the manifest with their hashes and commit; an interrupted download goes on."""
    commit = _commit(model)
    # first, and read: gigabytes of what nothing here can run are not fetched
    _download(model, commit, out, [_CONFIG])
    if (out / _CONFIG).is_file():
        read_architecture(read_json(out / _CONFIG), f"{model.name}@{model.revision}/{_CONFIG}")
    _download(model, commit, out, _WANTED)
    shutil.rmtree(out / ".cache", ignore_errors=True)
    weights = weight_files(out / "model.safetensors")
    for file in [*(out / name for name in BESIDE_WEIGHTS), *weights]:
        if not file.is_file():
            raise InputError(
                f"{model.name}@{model.revision}: it has no {file.name}, expected a model with "
                f"{', '.join(BESIDE_WEIGHTS)} and weights in safetensors"
            )
    names = sorted(file.name for file in out.iterdir() if file.name != MANIFEST)
    write_json(
        out / MANIFEST,
        {
            "name": model.name,
            "revision": model.revision,
            "commit": commit,
            "files": {name: sha256(out / name) for name in names},
        },
    )


def _commit(model: BaseModel) -> str:
    """Return the commit of the revision; asked first, as a download that reaches nobody takes any folder for the whole model."""
    from huggingface_hub import HfApi

    with _reaching(model):
        found = HfApi().model_info(model.name, revision=model.revision, timeout=_PATIENCE)
        return str(found.sha)


def _download(model: BaseModel, commit: str, out: Path, wanted: list[str]) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    with _reaching(model):
        snapshot_download(
            model.name,
            revision=commit,
            local_dir=out,
            allow_patterns=wanted,
            ignore_patterns=_UNWANTED,
        )


@contextmanager
def _reaching(model: BaseModel) -> Iterator[None]:
    """Inside, whatever the hub's library raises is one line that says what to do."""
    try:
        yield
    except Exception as error:  # the library raises those of whatever it stands on
        raise InputError(
            f"base model '{model.name}@{model.revision}' cannot be fetched ({reason(error)}); offline, bring "
            f"{model.folder}/ of a machine that has fetched it, or name a folder"
        ) from None
