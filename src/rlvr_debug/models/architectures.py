"""What a model is made of: from its config.json or, for Qwen2.5 models that are not fetched, as published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_debug.files import read_json, read_yaml
from rlvr_debug.models.places import BaseModel

__all__ = ["PUBLISHED", "Architecture", "architecture_of", "config_of"]


PUBLISHED: Mapping[str, Mapping[str, Any]] = read_yaml(Path(__file__).with_name("published.yaml"))


def config_of(model: BaseModel, root: Path) -> Mapping[str, Any] | None:
    """Its config.json; of one that is not fetched yet what is published, None where nothing is known."""
    file = root / model.folder / "config.json"
    if file.is_file() or not model.revision:
        found: dict[str, Any] = read_json(file)
        return found
    return PUBLISHED.get(model.name.rpartition("/")[2].removesuffix("-Instruct"))


@dataclass(frozen=True)
class Architecture:
    """Of a Qwen2 model: sizes, from which everything that is counted follows."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int
    tied: bool

    @staticmethod
    def of(config: Mapping[str, Any]) -> Architecture:
        heads = config["num_attention_heads"]
        return Architecture(
            config["hidden_size"],
            config["intermediate_size"],
            config["num_hidden_layers"],
            heads,
            config["num_key_value_heads"],
            config.get("head_dim") or config["hidden_size"] // heads,
            config["vocab_size"],
            config["tie_word_embeddings"],
        )

    @property
    def linears(self) -> list[tuple[int, int]]:
        """(in, out) of each linear layer of a block: q, k, v, o, gate, up, down."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        h, i = self.hidden, self.intermediate
        return [(h, queries), (h, keys), (h, keys), (queries, h), (h, i), (h, i), (i, h)]

    @property
    def block(self) -> int:
        """Weights of one: linear layers, the biases of q, k and v, two norms."""
        biases = (self.heads + 2 * self.kv_heads) * self.head_size
        return sum(a * b for a, b in self.linears) + biases + 2 * self.hidden

    @property
    def embedding(self) -> int:
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        embeddings = self.embedding * (1 if self.tied else 2)
        return self.layers * self.block + embeddings + self.hidden

    def adapter(self, rank: int) -> int:
        """Weights of a LoRA adapter on every linear layer but the output layer."""
        return self.layers * rank * sum(a + b for a, b in self.linears)


def architecture_of(model: BaseModel, root: Path) -> Architecture | None:
    config = config_of(model, root)
    return Architecture.of(config) if config else None
