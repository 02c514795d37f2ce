"""What pyproject.toml cannot say: a wheel holds the files of a checkout, which `rlvr-debug init` lays out."""

import io
import tarfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
FILES = (
    *(
        "LICENSE",
        "MANIFEST.in",
        "Makefile",
        "README.md",
        "params.yaml",
        "pyproject.toml",
        "setup.py",
    ),
    *("studies/*.yaml", "results/metrics.json", "results/tables/*.csv"),
    *(f"{folder}/**/*" for folder in ("configs", "data", "envs", "examples", "fixes", "lab")),
    *(f"{folder}/**/*" for folder in ("models", "scripts", "src", "workflow")),
)


class WithCheckout(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            write(Path(self.build_lib, "rlvr_debug", "checkout.tar.gz"))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [
            *super().get_outputs(include_bytecode),
            str(Path(self.build_lib, "rlvr_debug", "checkout.tar.gz")),
        ]


def write(archive: Path) -> None:
    """Write the files, the same bytes each time but for gzip's own time stamp."""
    names = {path.relative_to(ROOT) for pattern in FILES for path in ROOT.glob(pattern)}
    with tarfile.open(archive, "w:gz") as tar:
        for name in sorted(names):
            if (ROOT / name).is_file() and not is_made(name):
                content = (ROOT / name).read_bytes()
                entry = tarfile.TarInfo(name.as_posix())
                entry.size, entry.mode = len(content), 0o755 if name.suffix == ".sh" else 0o644
                tar.addfile(entry, io.BytesIO(content))


def is_made(name: Path) -> bool:
    return name.suffix in (".pyc", ".gz") or any(p.endswith(".egg-info") for p in name.parts)


setup(cmdclass={"build_py": WithCheckout})
