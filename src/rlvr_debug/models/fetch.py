"""A base model from the hub, once: into a folder that is whole when its manifest stands there."""

import shutil
from pathlib import Path

from rlvr_debug.errors import InputError, reason
from rlvr_debug.files import read_json, sha256, write_json
from rlvr_debug.models.architectures import check_config
from rlvr_debug.models.places import BESIDE_WEIGHTS, MANIFEST, BaseModel, weight_files

# no pickles, no code; folders below hold the same weights in other formats
_WANTED = ["*.safetensors", "*.json", "*.jinja", "merges.txt", "vocab.txt"]
_UNWANTED = ["*/*"]
_CONFIG = "config.json"
_PATIENCE = 5  # seconds; the library alone would try for minutes


def fetch_model(model: BaseModel, out: Path) -> None:
    """Write its files to `out` and, last, the manifest with their hashes and commit; an interrupted download goes on."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    name = f"{model.name}@{model.revision}"
    try:
        # asked first, as a download that reaches nobody takes any folder for the whole model
        found = HfApi().model_info(model.name, revision=model.revision, timeout=_PATIENCE)
        given = {"revision": str(found.sha), "local_dir": out, "ignore_patterns": _UNWANTED}
        # read first: gigabytes of what nothing here can run are not fetched
        for wanted in ([_CONFIG], _WANTED):
            snapshot_download(model.name, **given, allow_patterns=wanted)
            if (out / _CONFIG).is_file():
                check_config(read_json(out / _CONFIG), f"{name}/{_CONFIG}")
    except InputError:
        raise
    except Exception as error:  # the library raises those of whatever it stands on
        raise InputError(
            f"base model '{name}' cannot be fetched ({reason(error)}); offline, copy "
            f"{model.folder}/ from a machine that has it, or give a folder"
        ) from None
    shutil.rmtree(out / ".cache", ignore_errors=True)
    weights = weight_files(out / "model.safetensors")
    for file in [*(out / each for each in BESIDE_WEIGHTS), *weights]:
        if not file.is_file():
            raise InputError(
                f"{name}: it has no {file.name}, expected a model with "
                f"{', '.join(BESIDE_WEIGHTS)} and weights in safetensors"
            )
    files = sorted(file.name for file in out.iterdir() if file.name != MANIFEST)
    hashes = {file: sha256(out / file) for file in files}
    told = {"name": model.name, "revision": model.revision, "commit": str(found.sha)}
    write_json(out / MANIFEST, {**told, "files": hashes})
