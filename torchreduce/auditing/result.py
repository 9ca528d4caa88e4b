"""What audit() returns."""

import textwrap
from dataclasses import dataclass, field

from .cover import Covered


@dataclass(frozen=True)
class Culprit:
    """An op whose inputs are bitwise identical in two runs, and whose outputs are not."""

    op: str  # as torch names it: "addmm", "sum.dim_IntList"
    via: str  # the function of torch that called it: "linear"
    modules: tuple[str, ...]  # "Llama.layers.0.mlp"; "" outside of modules
    line: str  # of the user's code: "model.py:12"
    code: str
    is_backward: bool
    inputs: tuple[tuple[int, ...], ...]  # shapes
    outputs: tuple[tuple[int, ...], ...]
    variations: tuple[str, ...]  # in which it differs
    why: str
    mend: str
    is_tried: bool  # the mend, on the inputs that the op had

    @property
    def module(self) -> str:
        """The first of the modules."""
        return self.modules[0]

    def __str__(self) -> str:
        return self.text(120)

    def text(self, width: int) -> str:
        name = self.op
        if self.via and self.is_backward:
            name += f" (backward of {self.via})"
        elif self.via and not self.op.startswith(self.via):
            name += f" (torch's {self.via})"
        others = f" and {len(self.modules) - 1} more" if len(self.modules) > 1 else ""
        lines = (
            f"{name} in {self.module or 'the function'}{others}",
            f"{self.line}: {self.code}",
            f"{', '.join(map(str, self.inputs)) or 'no tensor'} -> {', '.join(map(str, self.outputs))}",
            f"differs in: {', '.join(self.variations)}",
            f"why: {self.why}",
            f"mended by{' (tried)' if self.is_tried else ''}: {self.mend}",
        )
        return "\n".join(
            textwrap.fill(line, width, initial_indent="  " if i else "", subsequent_indent="    ")
            for i, line in enumerate(lines)
        )


@dataclass(frozen=True)
class Module:
    """A module of the run, or the function itself (""), with the verdict on it."""

    path: str
    kind: str  # its class
    verdict: str  # "equal", "culprit", or "unknown": its inputs differ already


@dataclass
class Audit:
    """The result of audit(). print() shows it; show() shows it in colors."""

    culprits: list[Culprit] = field(default_factory=list)  # in the order of the first run
    modules: list[Module] = field(default_factory=list)
    coverage: list[Covered] = field(default_factory=list)
    variations: dict[str, bool | None] = field(
        default_factory=dict
    )  # whether the results are identical; None: no result to compare
    notes: list[str] = field(default_factory=list)  # on variations that were not run

    @property
    def ok(self) -> bool:
        """Whether no op differs, and no result."""
        return not self.culprits and False not in self.variations.values()

    def __str__(self) -> str:
        from .picture import drawn

        return drawn(self)

    def show(self) -> None:
        """Print the result, with the tree of modules in green and red in a terminal."""
        from .picture import show

        show(self)
