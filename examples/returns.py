"""Discounted returns and generalized advantage estimates (GAE) by one reverse scan each, with gradients.

    python examples/returns.py [cuda]

Both are recurrences from the end of an episode: what comes later counts, multiplied by a discount, and does not where
an episode has ended. torchreduce.linear_scan has them for all steps at once; a discount of 0 is a reset, bit for bit.
Of packed episodes each is a segment of its own, whose bits do not depend on where it stands.
"""

import sys

import torch
from torch import Tensor

import torchreduce


def discounted_returns(rewards: Tensor, done: Tensor, gamma: float, after: Tensor | None = None) -> Tensor:
    """r[t] + gamma * (r[t + 1] + ...) up to the end of the episode; (environments, steps). `after`: the value of what
    follows the last step, for each environment."""
    discount = (~done).to(rewards.dtype) * gamma
    return torchreduce.linear_scan(discount, rewards, 1, initial=after, reverse=True)


def advantages(rewards: Tensor, values: Tensor, after: Tensor, done: Tensor, gamma: float, decay: float) -> Tensor:
    """GAE: the temporal differences, discounted by gamma * decay. `after`: the value of what follows the last step."""
    going = (~done).to(rewards.dtype)
    following = torch.cat([values[:, 1:], after.unsqueeze(1)], 1)
    differences = rewards + gamma * going * following - values
    return torchreduce.linear_scan(gamma * decay * going, differences, 1, reverse=True)


def packed_advantages(
    rewards: Tensor, values: Tensor, after: Tensor, offsets: Tensor, gamma: float, decay: float
) -> Tensor:
    """GAE of episodes of any lengths, one after the other: episode k has the steps from offsets[k] to offsets[k + 1].
    `after`: for each episode the value of what follows its last step, 0 where it has ended. An episode's advantages
    are bitwise identical to those of the episode alone."""
    episode = torch.arange(len(after), device=offsets.device).repeat_interleave(offsets.diff())
    is_last = torch.arange(1, len(rewards) + 1, device=offsets.device) == offsets[1:][episode]
    following = torch.where(is_last, after[episode], values.roll(-1))
    differences = rewards + gamma * following - values
    return torchreduce.linear_scan(gamma * decay, differences, 0, segments=offsets, reverse=True)


def main(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(64, 1000, generator=generator).to(device) for _ in range(2))
    done = (torch.rand(64, 1000, generator=generator) < 0.01).to(device)
    after = torch.zeros(64, device=device)
    returns = discounted_returns(rewards, done, 0.99, after)
    gae = advantages(rewards, values, after, done, 0.99, 0.95)
    print("returns of the first steps", returns[:4, 0].tolist())
    print("advantages of the first steps", gae[:4, 0].tolist())

    lengths = torch.randint(1, 500, (128,), generator=generator)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(device)
    rewards, values = (torch.randn(int(lengths.sum()), generator=generator).to(device) for _ in range(2))
    after = torch.zeros(128, device=device)
    packed = packed_advantages(rewards, values, after, offsets, 0.99, 0.95)
    begin, end = offsets[5:7].tolist()
    one = slice(begin, end)
    alone = packed_advantages(rewards[one], values[one], after[5:6], offsets[5:7] - begin, 0.99, 0.95)
    print("a packed episode has the bits of the episode alone:", torch.equal(packed[one], alone))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
