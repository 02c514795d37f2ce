"""Where base models are: in a folder of the project or, as `name@revision`, fetched from the hub to .models/ once."""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_debug.errors import InputError, reason, short
from rlvr_debug.files import digest_of, read_json, sha256, write_json

FETCHED = ".models"
MANIFEST = "manifest.json"
_HUB = re.compile(r"(\w[\w.-]*/\w[\w.-]*)@(\w[\w.-]*)")
_CONFIG = "config.json"
BESIDE_WEIGHTS = (_CONFIG, "tokenizer.json", "tokenizer_config.json")
# no pickles, no code; folders below hold the same weights in other formats
_WANTED = ["*.safetensors", "*.json", "*.jinja", "merges.txt", "vocab.txt"]
_UNWANTED = ["*/*"]
_PATIENCE = 5  # seconds; the library alone would try for minutes


@dataclass(frozen=True)
class BaseModel:
    """name: a folder, from the project's root, or one on the hub; revision: of the hub, "" for a folder."""

    name: str
    revision: str = ""

    @property
    def folder(self) -> str:
        """From the project's root."""
        if not self.revision:
            return self.name
        return f"{FETCHED}/{self.name.replace('/', '--')}-{self.revision}"

    def files(self, root: Path) -> list[Path]:
        """Return what a job depends on beside `digest`: a folder's weights, or the manifest, which has all hashes."""
        folder = root / self.folder
        return [folder / MANIFEST] if self.revision else weight_files(folder / "model.safetensors")

    def beside(self, root: Path) -> list[Path]:
        """The small files beside the weights of a folder."""
        folder = root / self.folder
        index = index_of(folder)
        return [*(folder / name for name in BESIDE_WEIGHTS), *([index] if index.is_file() else [])]

    def digest(self, root: Path) -> str:
        """Of the files beside the weights: 12 digits, "" for a fetched one."""
        return "" if self.revision else digest_of(self.beside(root))


def base_model(text: str) -> BaseModel:
    """Of a value of params.yaml. Raises InputError for a name on the hub that is none."""
    if "@" not in text:
        return BaseModel(text)
    if not (found := _HUB.fullmatch(text)):
        raise InputError(
            f"base model '{text}': expected owner/name@revision, as on the hub, or a folder"
        )
    return BaseModel(found[1], found[2])


def weight_files(file: Path) -> list[Path]:
    """Return the file itself or, where it is not there, the shards that the index beside it names."""
    index = index_of(file.parent)
    if file.exists() or file.name != "model.safetensors" or not index.exists():
        return [file]
    parts = [file.with_name(name) for name in sorted(set(shards(index).values()))]
    for part in parts:
        if not part.is_file():
            raise InputError(f"{part}: no such file, expected a shard that {index} names")
    return parts


def index_of(folder: Path) -> Path:
    return folder / "model.safetensors.index.json"


def shards(index: Path) -> dict[str, str]:
    """Tensor -> name of the file that holds it."""
    found = read_json(index)
    names = found.get("weight_map") if isinstance(found, dict) else None
    # without a folder: an index makes nobody read what is not the model's
    if not (
        isinstance(names, dict)
        and names
        and all(isinstance(name, str) and Path(name).name == name for name in names.values())
    ):
        raise InputError(
            f"{index}: expected 'weight_map' with a file of this folder for each tensor"
        )
    return names


def check_config(config: Any, place: str | Path) -> None:
    """Raise InputError, which names `place`, for what is no config.json of transformers."""
    if not isinstance(config, Mapping):
        raise InputError(f"{place}: expected an object, as config.json has it")
    if not isinstance(config.get("model_type"), str):
        raise InputError(
            f"{place}: model_type is {short(config.get('model_type'))}, expected a name"
        )


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
