"""Weights with an adapter -> the architecture's own: LoRA, DoRA and IA3 as peft has them, and modules trained whole."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.linalg import vector_norm

from rlvr_debug.replay.finding import NotSeen

Scalings = Mapping[str, Mapping[str, float]]
_KINDS = (".lora_", ".ia3_l.", ".modules_to_save.")
_KNOWN = (".lora_A.", ".lora_B.", ".lora_magnitude_vector.", ".ia3_l.", ".modules_to_save.")


def is_adapter(name: str) -> bool:
    """Return whether this is the name of a weight that an adapter brings."""
    return any(kind in name for kind in _KINDS)


def plain_weights(weights: Mapping[str, Tensor], scalings: Scalings) -> dict[str, Tensor]:
    """Return the architecture's own parameters. scalings: of each module's adapters that are on; others are left out.

    Raise NotSeen for an adapter of another kind.
    """
    added = [name for name in weights if is_adapter(name)]
    if unknown := [name for name in added if not any(kind in name for kind in _KNOWN)]:
        raise NotSeen(f"the adapter's {unknown[0]} has no reference")
    plain = {} if added else dict(weights)
    for name, weight in weights.items() if added else ():
        if not is_adapter(name):
            short = name.removeprefix("base_model.model.")
            short = short.replace(".base_layer.", ".").replace(".original_module.", ".")
            plain[short] = _adapted(weights, name, weight, scalings)
    return plain


def _adapted(
    weights: Mapping[str, Tensor], name: str, weight: Tensor, scalings: Scalings
) -> Tensor:
    whole, _, rest = name.partition(".original_module.")
    for adapter in scalings.get(whole, {}) if rest else ():
        weight = weights[f"{whole}.modules_to_save.{adapter}.{rest}"]
    module, _, kind = name.rpartition(".base_layer.")
    for adapter, scaling in scalings.get(module, {}).items() if module else ():
        scale = weights.get(f"{module}.ia3_l.{adapter}")
        if scale is not None:  # [out, 1], or of what a layer reads [1, in]
            scaled = kind == "weight" or scale.shape[0] > 1
            scale = scale if kind == "weight" else scale[:, 0]
            weight = weight * scale.to(weight.dtype) if scaled else weight
        elif kind == "weight":
            weight = _low_rank(weights, f"{module}.lora", weight, (adapter, scaling))
    return weight


def _low_rank(
    weights: Mapping[str, Tensor], place: str, weight: Tensor, how: tuple[str, float]
) -> Tensor:
    """Return W + scaling B A; of DoRA (arXiv 2402.09353) by rows of that norm, which has no gradient, times magnitudes."""
    adapter, scaling = how
    up, down = (weights[f"{place}_{side}.{adapter}.weight"].to(weight.dtype) for side in "BA")
    moved = weight + scaling * up @ down
    size = weights.get(f"{place}_magnitude_vector.{adapter}.weight")
    if size is None:
        return moved
    norm: Tensor = vector_norm(moved.detach(), dim=1, keepdim=True)
    return size.to(weight.dtype)[:, None] * moved / norm
