"""Audit a tiny Llama: which op makes the log-probabilities of a prompt depend on its batch?

    python examples/audit_llm.py [cuda]

The model has random weights. It is transformers' if that is installed, else the one below. torchreduce.audit runs it
alone and in other batches, in another order, with other strides and threads. With torch's kernels it names the first op
whose rows depend on that, and what mends it; with torchreduce.enabled(products=...) it finds none.

On a CPU that takes a width of the MLP that is a multiple of 64: torch computes silu by vectors and the rest by another
formula, so that an element's result depends on its place in memory. With --width 250 the audit may name it, if one of
the few elements concerned differs. No override can mend that; on a GPU every element is computed alike.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchreduce
from torchreduce.auditing import Audit


class RMSNorm(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(columns))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


def rotated(x: Tensor) -> Tensor:
    """Rotary positions for x (batch, heads, time, columns)."""
    half = x.shape[-1] // 2
    frequency = 10000.0 ** -(torch.arange(half, device=x.device) / half)
    angle = torch.arange(x.shape[-2], device=x.device)[:, None] * frequency
    a, b = x.split(half, -1)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self, columns: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(columns, columns, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for projection in projections)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        scores = (rotated(q) @ rotated(k).mT / q.shape[-1] ** 0.5).masked_fill(future, float("-inf"))
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(columns, width, bias=False) for _ in range(2))
        self.act_fn, self.down_proj = nn.SiLU(), nn.Linear(width, columns, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, columns: int, width: int, heads: int) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = RMSNorm(columns), Attention(columns, heads)
        self.post_attention_layernorm, self.mlp = RMSNorm(columns), MLP(columns, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Logits of tokens (batch, time)."""

    def __init__(self, vocabulary: int, columns: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, columns)
        self.layers = nn.ModuleList(Layer(columns, width, heads) for _ in range(layers))
        self.norm, self.lm_head = RMSNorm(columns), nn.Linear(columns, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def tiny(width: int, use_transformers: bool) -> nn.Module:
    shape = {"vocabulary": 512, "columns": 256, "width": width, "layers": 2, "heads": 4}
    if not use_transformers:
        return Llama(**shape)
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=shape["vocabulary"], hidden_size=shape["columns"], intermediate_size=width,
        num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"], num_key_value_heads=2,
        attn_implementation="eager", use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def has_transformers() -> bool:
    try:
        import transformers  # noqa: F401
    except ImportError:
        return False
    return True


def demonstrate(device: str, width: int = 512, use_transformers: bool = False) -> dict[str, Audit]:
    """Audits of the log-probabilities of eight prompts, with torch's kernels and with torchreduce's."""
    torch.manual_seed(0)
    model = tiny(width, use_transformers).to(device, torch.float32 if device == "cpu" else torch.bfloat16).eval()
    tokens = torch.randint(512, (8, 3), device=device)  # few: where torch's products on a CPU depend on the batch

    def log_probabilities(tokens: Tensor) -> Tensor:
        logits = model(tokens)
        return F.log_softmax(getattr(logits, "logits", logits), -1)

    products = "float32" if device == "cpu" else True
    with torch.no_grad():
        torchs = torchreduce.audit(log_probabilities, tokens)
        with torchreduce.enabled(cpu=True, products=products, compile=False):
            ours = torchreduce.audit(log_probabilities, tokens)
    return {"torch": torchs, "torchreduce": ours}


def main(device: str, width: int = 512, use_transformers: bool = False) -> None:
    for name, result in demonstrate(device, width, use_transformers).items():
        print(f"\n---- with {name}'s kernels: {'nothing differs' if result.ok else 'something differs'} ----\n")
        result.show()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("device", nargs="?", default="cpu")
    parser.add_argument("--width", type=int, default=512, help="of the MLP; default: 512")
    arguments = parser.parse_args()
    main(arguments.device, arguments.width, has_transformers())
