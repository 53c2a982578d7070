"""Plants faults as the engine is imported: the files on disk are not touched, and line numbers stay.

A process is planted once, before the first import of what is to be faulty.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from types import CodeType, ModuleType

from conformance.mutants.mutant import Mutant
from conformance.process import ROOT
from engine.errors import LockstepError


def planted(*mutants: Mutant) -> str:
    """The source of the one file that all `mutants` are in, with their faults.

    Raises LockstepError where a fault's text does not stand there exactly once, or no longer does
    after the faults before it.
    """
    (file,) = {mutant.file for mutant in mutants}
    source = (ROOT / file).read_text(encoding="utf-8")
    for mutant in mutants:
        if source.count(mutant.old) != 1:
            raise LockstepError(
                f"the mutant {mutant.id} no longer applies: its text stands "
                f"{source.count(mutant.old)} times in {file}; bring the catalogue up to date"
            )
        source = source.replace(mutant.old, mutant.new)
    return source


def plant(mutants: Sequence[Mutant]) -> None:
    """From now on this process imports the engine with all of these faults."""
    by_file = attrgetter("file")
    for file, group in groupby(sorted(mutants, key=by_file), key=by_file):
        path = Path(file).with_suffix("")
        module = ".".join(path.parts[:-1] if path.name == "__init__" else path.parts)
        if module in sys.modules:
            raise RuntimeError(f"{module} was imported before its fault could be planted")
        code = compile(planted(*group), str(ROOT / file), "exec")
        sys.meta_path.insert(0, _Finder(module, str(ROOT / file), code))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, and gives it another source than its file's."""

    def __init__(self, module: str, path: str, code: CodeType) -> None:
        self.module, self.path, self.code = module, path, code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.module:
            return None
        loader = _Loader(fullname, self.path, self.code)
        return importlib.util.spec_from_file_location(fullname, self.path, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, code: CodeType) -> None:
        super().__init__(fullname, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        return self._code
