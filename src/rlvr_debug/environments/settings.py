"""What params.yaml says of every environment; a folder's own settings.py has both blocks with what is its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le
from pydantic import Field, Strict

from rlvr_debug.blocks import Block, Count, Keyed, Natural, NonNegative, Share, Text

# settings of our own rollouts: those of verifiers have limits of theirs
OURS_ALONE = ("max_context",)

Turns = Annotated[int, Strict(), Ge(1), Le(10)]


@dataclass(frozen=True, kw_only=True)
class DataSettings(Block):
    """Where an environment's rows come from. What a folder adds is for synthetic rows."""

    source: Literal["synthetic", "jsonl", "hub"] = "synthetic"
    """synthetic rows, a JSONL file in the official schema, or datasets on the Hugging Face hub."""
    path: Text = ""
    """A JSONL file in the official schema, from the project's root."""
    heldout_path: Text = ""
    """The same for held-out rows; without it, they are split off."""
    datasets: Text = ""
    """Rows on the hub as path,config,split, e.g. bdsaglam/musique-mini,answerable,train[:100]; several joined by a
    semicolon. A path that begins with / or, from the project's root, with ./ is a folder of data files."""
    heldout_datasets: Text = ""
    """The same for held-out rows; without it, they are split off."""
    rows: Annotated[int, Strict(), Ge(2)] = 2000
    """Synthetic rows, training and held-out together."""
    heldout: Count = 256
    """Held-out rows, at most."""
    seed: Natural = 0
    """Of all that is random there."""

    may_lack: ClassVar = ("path", "heldout_path", "datasets", "heldout_datasets")

    @classmethod
    def required(cls, given: Mapping[str, Any]) -> list[str]:
        if given.get("source", "synthetic") == "synthetic":
            return super().required(given)
        return ["source", "heldout", "seed"]

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        found = super().__get_pydantic_json_schema__(schema, handler)
        whole, found["required"] = found["required"], cls.required({"source": "hub"})
        synthetic = {"properties": {"source": {"const": "synthetic"}}}
        return {**found, "if": synthetic, "then": {"required": whole}}


@dataclass(frozen=True, kw_only=True)
class EnvironmentSettings(Block):
    """What the model may do in an environment, and what it is rewarded for."""

    max_new_tokens: Count
    """Tokens per reply; a longer one is cut and ends the rollout."""
    max_context: Natural = 0
    """Tokens that a conversation may have after a tool's answer; one that does not fit ends the rollout. 0: any number."""
    weights: Mapping[str, float]
    """Weight of each reward part; the reward is their weighted mean."""

    may_lack: ClassVar[tuple[str, ...]] = ("max_context",)

    # the keys that training rollouts may change, beside those that every environment may have
    changeable: ClassVar[tuple[str, ...]] = ()


def parts(**described: str) -> Keyed:
    """Annotate weights of reward parts, each with what it says of a rollout."""
    return Keyed(
        {n: Annotated[NonNegative, Field(description=d)] for n, d in described.items()}, fewest=1
    )


def numbers(*known: str) -> Keyed:
    """Annotate shares of synthetic rows by a number of theirs."""
    described = Field(description="A share; all shares are scaled to sum to 1.")
    return Keyed(dict.fromkeys(known, Annotated[Share, described]), fewest=1)
