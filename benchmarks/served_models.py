"""Small models for benchmarks.served, by name: each makes a training step. Weights and inputs are random.

Those of torch.nn are always there; those of transformers, timm and torch_geometric where the packages are installed.
"""

import math
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[], Any]


def trained(model: nn.Module, loss: Callable[[], Tensor]) -> Step:
    """A step of AdamW, with the gradient's norm clipped."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


# ---- of torch.nn -----------------------------------------------------------------------------------------------------


def transformer() -> Step:
    model = nn.Sequential(
        nn.Embedding(50, 32), nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2),
        nn.Linear(32, 50),
    )  # fmt: skip
    x = torch.randint(0, 50, (3, 9))
    return trained(model, lambda: F.cross_entropy(model(x).flatten(0, 1), x.flatten()))


class LlamaBlock(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        gate, up = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def language_model(vocabulary: int = 50) -> nn.Module:
    return nn.Sequential(
        nn.Embedding(vocabulary, 32), LlamaBlock(), LlamaBlock(), nn.RMSNorm(32), nn.Linear(32, vocabulary, bias=False)
    )


def llama_like() -> Step:
    model, x = language_model(), torch.randint(0, 50, (3, 9))
    return trained(model, lambda: F.cross_entropy(model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten()))


def grpo() -> Step:
    """A policy gradient over groups of answers, with a penalty for leaving a reference, and the entropy."""
    model, reference, x = language_model(), language_model(), torch.randint(0, 50, (8, 9))
    mask = (torch.rand(8, 9) > 0.2).float()

    def loss() -> Tensor:
        rewards = x.float().mean(1).view(2, 4)
        advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).view(8, 1)
        with torch.no_grad():
            old = reference(x).log_softmax(-1).gather(-1, x[..., None]).squeeze(-1)
        logits = model(x)
        log_probabilities = logits.log_softmax(-1).gather(-1, x[..., None]).squeeze(-1)
        entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
        ratio = (log_probabilities - old).exp()
        gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        kl = (old - log_probabilities).exp() - (old - log_probabilities) - 1
        return (((-gain + 0.04 * kl - 0.01 * entropy) * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()

    return trained(model, loss)


def recurrent(kind: type[nn.Module]) -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.rnn = nn.Embedding(50, 32), kind(32, 32, num_layers=2, batch_first=True)
            self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 50)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(self.rnn(self.embedding(x))[0]))  # type: ignore[no-any-return]

    model, x = Model(), torch.randint(0, 50, (3, 9))
    return trained(model, lambda: F.cross_entropy(model(x).flatten(0, 1), x.flatten()))


def residual(norm: Callable[[int], nn.Module]) -> Step:
    """A small ResNet."""

    class Block(nn.Module):
        def __init__(self, inner: int, outer: int) -> None:
            super().__init__()
            self.path = nn.Sequential(
                nn.Conv2d(inner, outer, 3, 2, 1, bias=False), norm(outer), nn.ReLU(),
                nn.Conv2d(outer, outer, 3, 1, 1, bias=False), norm(outer),
            )  # fmt: skip
            self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, 2, bias=False), norm(outer))

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.path(x) + self.shortcut(x))

    model = nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3, bias=False), norm(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1), Block(16, 32),
        Block(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    x, labels = torch.randn(4, 3, 32, 32), torch.arange(4)
    return trained(model, lambda: F.cross_entropy(model(x), labels, label_smoothing=0.1))


def pools() -> Step:
    """Convolutions with average pools, as VGG and Inception have them."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.AvgPool2d(3, 2, 1),
        nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(288, 10),
    )  # fmt: skip
    x, labels = torch.randn(4, 3, 32, 32), torch.arange(4)
    return trained(model, lambda: F.cross_entropy(model(x), labels))


def graph_attention() -> Step:
    """Softmax over the edges of a node, by scatters, as a graph network's layer."""
    width, nodes, edges = 32, 20, 90
    layers = nn.ModuleList([nn.Linear(width, width), nn.Linear(2 * width, 1), nn.LayerNorm(width), nn.Linear(width, 5)])
    x, labels = torch.randn(nodes, width), torch.randint(0, 5, (nodes,))
    source, target = torch.randint(0, nodes, (2, edges))

    def loss() -> Tensor:
        h = layers[0](x)
        score = F.leaky_relu(layers[1](torch.cat([h[source], h[target]], 1))).squeeze(1)
        greatest = torch.full((nodes,), -math.inf).scatter_reduce(0, target, score, "amax")
        weight = (score - greatest[target]).exp()
        weight = weight / torch.zeros(nodes).index_add(0, target, weight)[target]
        h = torch.zeros(nodes, width).index_add(0, target, weight[:, None] * h[source])
        return F.nll_loss(layers[3](layers[2](h)).log_softmax(1), labels)

    return trained(layers, loss)


def mixture() -> Step:
    """A mixture of experts, with the loss that balances them."""
    width, experts = 32, 4
    layers = nn.ModuleList([nn.Linear(width, experts), *(nn.Linear(width, width) for _ in range(experts))])
    x = torch.randn(24, width)

    def loss() -> Tensor:
        probabilities = layers[0](x).softmax(-1)
        weights, chosen = probabilities.topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for e in range(experts):
            token, place = (chosen == e).nonzero(as_tuple=True)
            out = out.index_add(0, token, layers[1 + e](x[token]) * weights[token, place, None])
        load = F.one_hot(chosen, experts).float().mean((0, 1))
        return F.mse_loss(out, x) + 0.01 * experts * (load * probabilities.mean(0)).sum()

    return trained(layers, loss)


def variational() -> Step:
    encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
    decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64))
    x = torch.rand(6, 64)

    def loss() -> Tensor:
        mean, log_variance = encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
        likelihood = F.binary_cross_entropy_with_logits(decoder(z), x, reduction="none").sum(1)
        return (likelihood + kl).mean()

    return trained(nn.ModuleList([encoder, decoder]), loss)


def contrastive() -> Step:
    towers = nn.ModuleList([nn.Linear(32, 16), nn.Linear(32, 16)])
    a, b = torch.randn(2, 10, 32)

    def loss() -> Tensor:
        u, v = (F.normalize(tower(x), dim=1) for tower, x in zip(towers, (a, b), strict=True))
        logits, labels = u @ v.t() / 0.07, torch.arange(10)
        apart = F.triplet_margin_loss(u, v, v.roll(1, 0)) + F.cosine_embedding_loss(u, v, torch.ones(10))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2 + apart

    return trained(towers, loss)


def recommender() -> Step:
    bags = nn.ModuleList(
        [nn.EmbeddingBag(100, 16, mode="sum"), nn.EmbeddingBag(100, 16, mode="mean"), nn.Linear(32, 1)]
    )
    items, offsets, labels = torch.randint(0, 100, (30,)), torch.arange(0, 30, 5), torch.rand(6)

    def loss() -> Tensor:
        x = torch.cat([bag(items, offsets) for bag in list(bags)[:2]], 1)
        return F.binary_cross_entropy_with_logits(bags[2](x).squeeze(1), labels)

    return trained(bags, loss)


def wave() -> Step:
    """A dilated convolutional net with weight normalization, and a spectral loss."""
    from torch.nn.utils.parametrizations import weight_norm

    model = nn.Sequential(
        *(nn.Sequential(weight_norm(nn.Conv1d(1 if k == 0 else 8, 8, 3, padding=2**k, dilation=2**k)), nn.Tanh())
          for k in range(3)),
        nn.Conv1d(8, 1, 1),
    )  # fmt: skip
    x = torch.randn(2, 1, 256)
    return trained(model, lambda: F.l1_loss(model(x), x) + F.smooth_l1_loss(model(x).cumsum(-1), x.cumsum(-1)))


def returns() -> Step:
    """An actor and a critic on discounted returns."""
    model, x, rewards = nn.Linear(8, 5), torch.randn(12, 8), torch.randn(12)
    discount = 0.9 ** torch.arange(12)

    def loss() -> Tensor:
        gains = (rewards * discount).flip(0).cumsum(0).flip(0) / discount
        gains = (gains - gains.mean()) / gains.std()
        policy = torch.distributions.Categorical(logits=model(x)[:, :4])
        action = policy.probs.argmax(1)
        return -(policy.log_prob(action) * gains).mean() - 0.01 * policy.entropy().mean() + F.huber_loss(
            model(x)[:, 4], gains
        )  # fmt: skip

    return trained(model, loss)


OF_TORCH: dict[str, Callable[[], Step]] = {
    "TransformerEncoder": transformer,
    "Llama-like": llama_like,
    "GRPO": grpo,
    "LSTM": partial(recurrent, nn.LSTM),
    "GRU": partial(recurrent, nn.GRU),
    "ResNet": partial(residual, nn.BatchNorm2d),
    "ResNet, group norm": partial(residual, lambda channels: nn.GroupNorm(4, channels)),
    "convolutions with pools": pools,
    "graph attention": graph_attention,
    "mixture of experts": mixture,
    "VAE": variational,
    "contrastive": contrastive,
    "recommender": recommender,
    "WaveNet-like": wave,
    "actor and critic": returns,
}

# ---- of packages -----------------------------------------------------------------------------------------------------

TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 60}


def of_transformers(kind: str, **config: Any) -> Step:
    import transformers

    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **config))
    x = torch.randint(0, 60, (3, 9))
    return trained(model, lambda: model(input_ids=x, labels=x).loss)  # type: ignore[no-any-return]


def encoder_of_transformers(kind: str, **config: Any) -> Step:
    import transformers

    model = transformers.AutoModelForMaskedLM.from_config(transformers.AutoConfig.for_model(kind, **config))
    x = torch.randint(0, 60, (3, 9))
    return trained(model, lambda: model(input_ids=x, labels=x).loss)  # type: ignore[no-any-return]


def t5() -> Step:
    import transformers

    sizes = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(**sizes, decoder_start_token_id=0)
    model, x = transformers.T5ForConditionalGeneration(config), torch.randint(0, 60, (3, 9))
    return trained(model, lambda: model(input_ids=x, labels=x).loss)  # type: ignore[no-any-return]


def vit() -> Step:
    import transformers

    config = transformers.ViTConfig(**{k: v for k, v in TEXT.items() if k != "vocab_size"}, image_size=32, patch_size=8)
    model, x = transformers.ViTForImageClassification(config), torch.randn(2, 3, 32, 32)
    return trained(model, lambda: model(x, labels=torch.tensor([0, 1])).loss)  # type: ignore[no-any-return]


def of_geometric(layer: str) -> Step:
    import torch_geometric.nn as g

    made = {
        "GCN": partial(g.GCN, 8, 16, 2, 4), "GAT": partial(g.GAT, 8, 16, 2, 4),
        "GIN": partial(g.GIN, 8, 16, 2, 4), "GraphSAGE": partial(g.GraphSAGE, 8, 16, 2, 4),
    }  # fmt: skip
    model, x, edges = made[layer](), torch.randn(20, 8), torch.randint(0, 20, (2, 60))
    return trained(model, lambda: F.cross_entropy(model(x, edges), torch.arange(20) % 4))


OF_PACKAGES: dict[str, dict[str, Callable[[], Step]]] = {
    "transformers": {
        "llama": partial(of_transformers, "llama", **TEXT, num_key_value_heads=2),
        "qwen3": partial(of_transformers, "qwen3", **TEXT, num_key_value_heads=2, head_dim=8),
        "gemma2": partial(of_transformers, "gemma2", **TEXT, num_key_value_heads=2, head_dim=8),
        "mixtral": partial(of_transformers, "mixtral", **TEXT, num_key_value_heads=2, num_local_experts=4),
        "mamba": partial(of_transformers, "mamba", hidden_size=32, num_hidden_layers=2, vocab_size=60, state_size=4),
        "gpt2": partial(of_transformers, "gpt2", n_embd=32, n_layer=2, n_head=4, vocab_size=60),
        "bert": partial(encoder_of_transformers, "bert", **TEXT),
        "t5": t5,
        "vit": vit,
    },
    "torch_geometric": {name: partial(of_geometric, name) for name in ("GCN", "GAT", "GIN", "GraphSAGE")},
}


def models() -> dict[str, Callable[[], Step]]:
    """By name; those of packages with the package's name, where it is installed."""
    found = dict(OF_TORCH)
    for package, made in OF_PACKAGES.items():
        if find_spec(package) is not None:
            found |= {f"{package}: {name}": make for name, make in made.items()}
    return found
