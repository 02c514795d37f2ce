"""Trained weights as a folder that servers load: the base model's files, and these weights in the place of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rlvr_debug.models.adapters import adapter_of, trained_weights
from rlvr_debug.models.base_model import save_weights
from rlvr_debug.models.places import index_of


@contextmanager
def model_folder(base_model: Path, weights: Path | None) -> Iterator[Path]:
    """A folder as servers load it: the base model, with these weights for its own if there are any.

    An adapter's are added to the base model's, in a file that goes with the folder.
    """
    if weights is None:
        yield base_model
        return
    with TemporaryDirectory() as folder:
        # vLLM would miss the shards that an index names
        index = index_of(base_model).name
        for file in base_model.iterdir():
            if file.suffix != ".safetensors" and file.name != index:
                (Path(folder) / file.name).symlink_to(file.resolve())
        whole = Path(folder) / "model.safetensors"
        if adapter_of(weights):
            save_weights(trained_weights(weights, base_model), whole)
        else:
            whole.symlink_to(weights.resolve())
        yield Path(folder)
