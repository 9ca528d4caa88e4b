"""Train on the same completions with trl's GRPOTrainer in batches of 4, 2 and 1: is the loss the same?

    pip install trl transformers
    python examples/grpo.py [cuda]

A tiny Llama with random weights takes one step of GRPO on four completions of one length, all in one batch, or in
several that the trainer accumulates. With torch's kernels log-probabilities and entropies of a completion's tokens
depend on its batch; with torchreduce.enabled(products=...) they do not. Neither trl nor the model changes.

The loss of one batch of 4 is then that of two of 2, too: a mean of 2^k numbers is added pairwise, so it is the mean of
the means of its halves. The trainer adds the losses of four batches one after another, which may round in another way.
The gradient of a weight is one sum over all tokens: it depends on how they are divided into batches.
"""

import argparse
import contextlib
import os
import tempfile
from typing import Any

import torch
from torch import Tensor

import torchreduce

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is loaded: the model and its tokenizer are made here

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

VOCABULARY, SEQUENCES = 512, 4
# Columns, width of the MLP, tokens of a prompt and of a completion: where torch's products depend on the batch.
SHAPES = {"cpu": (256, 1024, 2, 3), "cuda": (2048, 8192, 16, 112)}


class Replay(GRPOTrainer):
    """Trains on given completions instead of sampling them, and keeps log-probability and entropy of each token."""

    def __init__(self, completions: dict[str, Tensor], **arguments: Any) -> None:
        super().__init__(**arguments)
        self.completions, self.seen = completions, []

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Tensor]:
        return {name: tensor.to(self.accelerator.device) for name, tensor in self.completions.items()}

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **options: Any) -> Any:
        results = super()._get_per_token_logps_and_entropies(*arguments, **options)
        self.seen.append(torch.stack(results[:2], -1).detach().cpu())
        return results


def completions(prompt: int, completion: int) -> dict[str, Tensor]:
    """Prompts and completions, with advantages and the log-probabilities of the policy that sampled them."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, VOCABULARY, (SEQUENCES, prompt + completion), generator=generator)
    ones = torch.ones_like(ids)
    return {
        "prompt_ids": ids[:, :prompt],
        "prompt_mask": ones[:, :prompt],
        "completion_ids": ids[:, prompt:],
        "completion_mask": ones[:, prompt:],
        "advantages": torch.tensor([1.0, -0.5, 0.25, -0.75]),
        "old_per_token_logps": -6 + 0.3 * torch.randn(SEQUENCES, completion, generator=generator),
        "num_items_in_batch": torch.tensor(SEQUENCES * completion),
    }


def tokenizer() -> PreTrainedTokenizerFast:
    words = {word: i for i, word in enumerate(["<pad>", "<eos>", *(f"w{i}" for i in range(VOCABULARY - 2))])}
    made = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")


def step(device: str, batch: int) -> tuple[Tensor, float]:
    """Log-probability and entropy (sequences, tokens, 2), and the loss, of a step by `batch` sequences at a time."""
    torch.manual_seed(0)
    columns, width, *tokens = SHAPES[device]
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=columns, intermediate_size=width, num_hidden_layers=2,
        num_attention_heads=columns // 64, num_key_value_heads=2, attn_implementation="eager",
        pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(torch.float32 if device == "cpu" else torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=batch, gradient_accumulation_steps=SEQUENCES // batch,
            num_generations=2, loss_type="grpo", max_steps=1, use_cpu=device == "cpu", bf16=False,
            gradient_checkpointing=False, save_strategy="no", report_to="none", disable_tqdm=True, logging_steps=10,
        )  # fmt: skip
        trainer = Replay(
            completions(*tokens), model=model, args=arguments, processing_class=tokenizer(),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),  # unused: the advantages are given
            train_dataset=Dataset.from_list([{"prompt": "w0"}] * SEQUENCES),
        )  # fmt: skip
        loss = trainer.train().training_loss
    return torch.cat(trainer.seen), loss


def demonstrate(device: str) -> dict[str, dict[int, tuple[int, float]]]:
    """By kernels and batch size: how many tokens' numbers differ from those of the batch of 4, and the loss."""
    results = {}
    products = "float32" if device == "cpu" else True
    for name in ("torch", "torchreduce"):
        ours = torchreduce.enabled(cpu=True, products=products, compile=False)
        with ours if name == "torchreduce" else contextlib.nullcontext():
            steps = {batch: step(device, batch) for batch in (4, 2, 1)}
        whole = steps[4][0]
        results[name] = {
            batch: (int((numbers != whole).any(-1).sum()), loss) for batch, (numbers, loss) in steps.items()
        }
    return results


def main(device: str) -> None:
    of = SEQUENCES * SHAPES[device][-1]
    for name, of_batch in demonstrate(device).items():
        for batch, (differ, loss) in of_batch.items():
            print(f"{name:>11}, batches of {batch}: {differ:3} of {of} tokens differ, loss {loss!r}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("device", nargs="?", default="cpu")
    main(parser.parse_args().device)
