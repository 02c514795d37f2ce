"""Where the checkout stands whose studies this library runs: params.yaml, workflow, studies, envs."""

import os
import shutil
import tarfile
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from rlvr_debug.errors import InputError

# an installed wheel has none: then no file is found below it
ROOT = Path(__file__).resolve().parents[2]
_SHIPPED = Path(__file__).with_name("checkout.tar.gz")  # of a wheel: setup.py writes it
_SNAKEFILE = ROOT / "workflow" / "Snakefile"


def has_checkout() -> bool:
    """Return whether this library is a checkout's, and not a wheel's that stands alone."""
    return _SNAKEFILE.is_file()


def checkout() -> Path:
    """Return the checkout's folder, seen from here. Raise InputError where there is none."""
    if not has_checkout():
        raise InputError(
            f"{Path.cwd()}: no params.yaml beside workflow/ in this folder or above it; "
            "make a folder of studies by `rlvr-debug init`"
        )
    return Path(os.path.relpath(ROOT))


def lay_out(folder: Path) -> None:
    """Unpack the checkout that the wheel has into an empty folder, all of it or nothing."""
    if not _SHIPPED.is_file():
        raise InputError(f"{ROOT}: is a checkout, init needs an installed wheel: type cd {ROOT}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: is not empty, expected an empty folder, or a new one")
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".init-") as place:
        with tarfile.open(_SHIPPED) as archive:
            if hasattr(tarfile, "data_filter"):  # not before Python 3.11.4
                archive.extraction_filter = tarfile.data_filter
            now, members = time.time(), archive.getmembers()
            # the archive has no times: Snakemake takes a file of time 0 for one that is never out of date
            for member in members:
                member.mtime = now
            archive.extractall(place, members)
        # last: with it, the folder is a checkout
        for path in sorted(Path(place).iterdir(), key=lambda path: path.name == "params.yaml"):
            shutil.move(path, folder / path.name)
