"""Functions of a package that are replaced wherever its modules have imported them."""

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

Function = Callable[..., Any]


class Replacement:
    """Replaces functions of a module, in all modules of its package that refer to them.

    functions has the new function of each name. Names that the module does not have, as in another release of the
    package, are left out; a module without any raises ImportError.
    """

    def __init__(self, module: ModuleType, functions: Mapping[str, Function]) -> None:
        self._package = module.__name__.partition(".")[0]
        self.before = {name: getattr(module, name) for name in functions if hasattr(module, name)}
        self._after = {name: functions[name] for name in self.before}
        if not self.before:
            raise ImportError(f"{module.__name__} has none of {', '.join(functions)}; torchreduce knows other releases")

    def do(self) -> None:
        self._refer(self.before, self._after)

    def undo(self) -> None:
        self._refer(self._after, self.before)

    def _refer(self, old: Mapping[str, Function], new: Mapping[str, Function]) -> None:
        by_identity = {id(old[name]): new[name] for name in old}
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == self._package:
                for attribute, value in list(getattr(module, "__dict__", {}).items()):
                    if id(value) in by_identity:
                        setattr(module, attribute, by_identity[id(value)])
