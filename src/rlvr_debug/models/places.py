"""Where base models are: in a folder of the project or, as `name@revision`, fetched from the hub to .models/ once."""

import re
from dataclasses import dataclass
from pathlib import Path

from rlvr_debug.errors import InputError
from rlvr_debug.files import digest_of, read_json

FETCHED = ".models"
MANIFEST = "manifest.json"
_HUB = re.compile(r"(\w[\w.-]*/\w[\w.-]*)@(\w[\w.-]*)")
BESIDE_WEIGHTS = ("config.json", "tokenizer.json", "tokenizer_config.json")


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
