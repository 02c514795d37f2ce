"""What a model is made of: from its config.json or, for some models that are not fetched, as published."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvr_debug.errors import InputError, short
from rlvr_debug.files import read_json, read_yaml
from rlvr_debug.models.places import BaseModel, check_config

PUBLISHED: Mapping[str, Mapping[str, Any]] = read_yaml(Path(__file__).with_name("published.yaml"))
# of a block, by the names that all families give them
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_ROPES = ("default", "llama3")


@dataclass(frozen=True)
class Family:
    """What tells a family's blocks from the others': all have grouped queries, rotary positions and a gated layer.

    name: that of transformers' classes. head_norms: each head's query and key has a norm. biases: the linear layers
    with a bias by the key of config.json that says so, "" for those that always have one. head_size: where
    config.json has none, 0 for the share of a head in the hidden size.
    """

    name: str
    head_norms: bool = False
    biases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    head_size: int = 0


# by model_type of config.json
FAMILIES: Mapping[str, Family] = {
    "llama": Family("Llama", biases={"attention_bias": LINEARS[:4], "mlp_bias": LINEARS[4:]}),
    "qwen2": Family("Qwen2", biases={"": LINEARS[:3]}),
    "qwen3": Family("Qwen3", True, {"attention_bias": LINEARS[:4]}, 128),
}


def config_of(model: BaseModel, root: Path) -> Mapping[str, Any] | None:
    """Its config.json; of one that is not fetched yet what is published, None where nothing is known."""
    file = root / model.folder / "config.json"
    if file.is_file() or not model.revision:
        found: dict[str, Any] = read_json(file)
        return found
    return PUBLISHED.get(model.name.rpartition("/")[2].removesuffix("-Instruct"))


def why_unread(config: Mapping[str, Any]) -> str:
    """Return what of a config.json our own sampler does not read, "" for a model of FAMILIES that it reads whole."""
    kind = str(config["model_type"])
    if kind not in FAMILIES:
        return f"model_type is {short(kind)}, expected one of {', '.join(FAMILIES)}"
    # the kinds of attention that are not full
    kinds = {*(config.get("layer_types") or ())} - {"full_attention"}
    kinds |= {"sliding_attention"} if config.get("use_sliding_window") else set()
    for key, has, needed in (
        ("hidden_act", config.get("hidden_act", "silu"), ("silu",)),
        ("rope_type", rope_of(config)["rope_type"], _ROPES),
        ("layer_types", min(kinds, default="full_attention"), ("full_attention",)),
    ):
        if has not in needed:
            return f"{key} is {short(has)}, expected {' or '.join(needed)}"
    return ""


def rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rotary positions' parameters, whichever release of transformers wrote them."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    return {"rope_theta": config.get("rope_theta", 1e4), **rope, "rope_type": kind}


@dataclass(frozen=True)
class Architecture:
    """The sizes of a model, from which everything that is counted follows; biased: linear layers that have a bias."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int
    tied: bool
    head_norms: bool = False
    biased: tuple[str, ...] = ()

    @staticmethod
    def of(config: Mapping[str, Any], place: str | Path = "config.json") -> "Architecture":
        """Raise InputError, which names `place`, for a model that is not read here."""
        check_config(config, place)
        if why := why_unread(config):
            raise InputError(f"{place}: {why}")
        family = FAMILIES[config["model_type"]]
        try:
            hidden, heads = config["hidden_size"], config["num_attention_heads"]
            return Architecture(
                hidden,
                config["intermediate_size"],
                config["num_hidden_layers"],
                heads,
                config.get("num_key_value_heads") or heads,
                config.get("head_dim") or family.head_size or hidden // heads,
                config["vocab_size"],
                config.get("tie_word_embeddings", False),
                family.head_norms,
                tuple(
                    linear
                    for key, linears in family.biases.items()
                    for linear in linears
                    if not key or config.get(key)
                ),
            )
        except KeyError as missing:
            raise InputError(f"{place}: key {missing} is missing, expected a number") from None

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """(in, out) of each linear layer of a block."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        h, i = self.hidden, self.intermediate
        sizes = [(h, queries), (h, keys), (h, keys), (queries, h), (h, i), (h, i), (i, h)]
        return dict(zip(LINEARS, sizes, strict=True))

    @property
    def block(self) -> int:
        """Weights of one: linear layers, their biases, two norms, and those of the heads."""
        linears = sum(a * b for a, b in self.linears.values())
        biases = sum(self.linears[name][1] for name in self.biased)
        return linears + biases + 2 * self.hidden + (2 * self.head_size if self.head_norms else 0)

    @property
    def embedding(self) -> int:
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        embeddings = self.embedding * (1 if self.tied else 2)
        return self.layers * self.block + embeddings + self.hidden

    def adapter(self, rank: int) -> int:
        """Weights of a LoRA adapter on every linear layer but the output layer."""
        return self.layers * rank * sum(a + b for a, b in self.linears.values())


def architecture_of(model: BaseModel, root: Path) -> Architecture | None:
    """Return a model's sizes, None where it is of another family or nothing is known. Raise InputError for a config.json that is none."""
    config, place = config_of(model, root), f"{model.folder}/config.json"
    if config is None:
        return None
    check_config(config, place)
    return None if why_unread(config) else Architecture.of(config, place)
