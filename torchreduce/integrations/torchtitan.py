"""TorchTitan's norms, computed by torchreduce: overrides of its configuration.

    TORCHREDUCE_ENABLE=1 ./run_train.sh --override.imports \\
        torchreduce.integrations.torchtitan.rms_norm,torchreduce.integrations.torchtitan.layer_norm

An override replaces configurations of TorchTitan's RMSNorm and LayerNorm before the model is built. Parameters,
sharding and checkpoints stay. TORCHREDUCE_ENABLE also overrides the functions of torch, the loss among them.
"""

from dataclasses import dataclass

from torchtitan.config import derive, override
from torchtitan.models.common.nn_modules import LayerNorm, RMSNorm

from .. import nn

__all__ = ["layer_norm", "rms_norm"]


class _RMSNorm(RMSNorm):
    @dataclass(kw_only=True, slots=True)
    class Config(RMSNorm.Config):
        pass

    forward = nn.RMSNorm.forward


class _LayerNorm(LayerNorm):
    @dataclass(kw_only=True, slots=True)
    class Config(LayerNorm.Config):
        pass

    forward = nn.LayerNorm.forward


@override(target=RMSNorm.Config, description="torchreduce.rms_norm", exact=True)
def rms_norm(config: RMSNorm.Config) -> RMSNorm.Config:
    """Compute RMS norms by torchreduce.rms_norm."""
    return derive(config, _RMSNorm.Config)


@override(target=LayerNorm.Config, description="torchreduce.layer_norm", exact=True)
def layer_norm(config: LayerNorm.Config) -> LayerNorm.Config:
    """Compute layer norms by torchreduce.layer_norm."""
    return derive(config, _LayerNorm.Config)
