"""The check on architectures that are not the tiny model's: small models of random weights, trained by TRL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr_debug.checkout import ROOT
from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Forward, Record
from rlvr_debug.replay.settings import Sampling, Settings

TINY = ROOT / "models" / "tiny"
_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 256,
}
_PAIRED = {**_SIZES, "num_key_value_heads": 2}
_HEADS = {**_PAIRED, "head_dim": 8}
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
# of each kind one: what it has that others have not
KINDS: dict[str, dict[str, Any]] = {
    "gpt2": _GPT,  # learned positions
    "gpt_neox": _SIZES,
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},  # distances in place of positions
    "mistral": {**_PAIRED, "sliding_window": 16},
    "gemma2": {**_HEADS, "sliding_window": 16},  # capped logits
    "qwen3": _HEADS,  # norms of heads
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},  # no attention
    "lfm2": {**_PAIRED, "full_attn_idxs": [1]},  # convolutions
    "mixtral": {**_PAIRED, "num_local_experts": 4},  # saved in other pieces
    "gpt_oss": {**_HEADS, "num_local_experts": 4, "sliding_window": 16},  # sinks
}
_SLOW = set(KINDS) - {"gpt_oss"}
ROUTED = {"mixtral", "gpt_oss"}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow) if k in _SLOW else k for k in KINDS]
)
def test_a_healthy_run_of_another_architecture_is_checked_and_not_flagged(
    kind: str, tmp_path: Path
) -> None:
    trl = pytest.importorskip("trl", reason="trl is not installed: no trainer to check")
    from datasets import Dataset
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed

    from rlvr_debug.recorders.trl.live import checked, recorded

    def reward(completions: Any, **_: Any) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        return [len(text) % 5 + 0.1 * len(set(text)) for text in texts]

    tokenizer = AutoTokenizer.from_pretrained(str(TINY))
    end = tokenizer.eos_token_id
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": end, "bos_token_id": end}
    set_seed(0)
    torch.set_num_threads(1)
    config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), **ids, **KINDS[kind])
    asked = [{"role": "user", "content": "What is 3 plus 4?"}]
    trainer = trl.GRPOTrainer(
        model=AutoModelForCausalLM.from_config(config),
        reward_funcs=[reward],
        args=trl.GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=12,
            max_steps=3,
            learning_rate=1e-3,
            bf16=False,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": asked, "number": n} for n in range(16)]),
        processing_class=tokenizer,
    )
    answer = checked(*recorded(trainer, trainer.train, steps=3, rewards=True))
    assert answer["first"] is None, answer["answer"]
    unseen = {each["segment"] for each in answer["segments"] if each["status"] == "not seen"}
    # a router's own loss has no reference
    assert unseen == ({"gradient"} if kind in ROUTED else set())


def test_an_architecture_that_cannot_be_computed_exactly_is_not_seen_and_no_traceback() -> None:
    class Coarse(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))

        def forward(self, input_ids: Any, **_: Any) -> Any:
            if self.weight.dtype == torch.float64:
                raise RuntimeError("expected Float32, got Double\nin a kernel")
            raise AssertionError

    settings = Settings(2, Sampling(), 8)
    record = Record("made up", settings, None, None, Coarse, weights=[{"weight": torch.ones(4)}])
    ids = Forward(torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(
        NotSeen, match="Coarse cannot be computed in float64: RuntimeError: expected"
    ):
        Network(record).logits(record.weights[0], ids)
