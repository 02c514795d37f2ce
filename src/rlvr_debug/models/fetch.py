"""A base model from the hub, once: into a folder that is whole when its manifest stands there."""

from __future__ import annotations

import shutil
from pathlib import Path

from rlvr_debug.errors import InputError, reason
from rlvr_debug.files import sha256, write_json
from rlvr_debug.models.places import BESIDE_WEIGHTS, MANIFEST, BaseModel, weight_files

__all__ = ["fetch_model"]

# no pickles, no code; folders below hold the same weights in other formats
_WANTED = ["*.safetensors", "*.json", "*.jinja", "merges.txt", "vocab.txt"]
_UNWANTED = ["*/*"]
_PATIENCE = 5  # seconds; the library alone would try for minutes


def fetch_model(model: BaseModel, out: Path) -> None:
    """Write its files to `out` and, last, the manifest with their hashes and the commit that they are of.

    An interrupted download goes on. Raises InputError where the hub does not answer, or has no such model.
    """
    commit = _download(model, out)
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


def _download(model: BaseModel, out: Path) -> str:
    """Returns the commit that the revision is."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    try:
        # asked first: a download that reaches nobody takes a folder that is there for the whole model
        found = HfApi().model_info(model.name, revision=model.revision, timeout=_PATIENCE)
        commit = str(found.sha)
        snapshot_download(
            model.name,
            revision=commit,
            local_dir=out,
            allow_patterns=_WANTED,
            ignore_patterns=_UNWANTED,
        )
    except Exception as error:  # the library raises those of whatever it stands on
        raise InputError(
            f"base model '{model.name}@{model.revision}' cannot be fetched ({reason(error)}); offline, bring "
            f"{model.folder}/ of a machine that has fetched it, or name a folder"
        ) from None
    return commit
