"""Running DeepGEMM callers unchanged: `install` makes ``import deep_gemm`` resolve to this library.

Only names and modules are arranged here. What the functions do, and where they differ from DeepGEMM, is the business of
the functions themselves (docs/compatibility.md).
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from .errors import UnikernelsError

#: DeepGEMM generation whose names, defaults and meanings are offered; callers compare versions.
DEEP_GEMM_VERSION = "2.8.2"

_NAME = "deep_gemm"

#: DeepGEMM's submodules and ours with the same content.
_SUBMODULES = {
    "epilogue": "unikernels.epilogue",
    "legacy": "unikernels.legacy",
    "locality_domain": "unikernels.locality_domain",
    "testing": "unikernels.testing",
    "testing.bench": "unikernels.testing.bench",
    "testing.numeric": "unikernels.testing.numeric",
    "testing.utils": "unikernels.testing.conditions",
    "utils": "unikernels.utils",
    "utils.dist": "unikernels.utils.dist",
    "utils.layout": "unikernels.utils.layout",
    "utils.math": "unikernels.utils.math",
}

#: DeepGEMM keeps these in a module of their own besides the package.
_MEGA_NAMES = (
    "SymmBuffer",
    "bf16_mega_moe",
    "fp8_fp4_mega_moe",
    "get_block_m_for_mega_moe",
    "get_symm_buffer_for_mega_moe",
    "transform_weights_for_mega_moe",
)

#: What `install` put into sys.modules, and the modules of another deep_gemm that it took out.
_installed: dict[str, ModuleType] = {}
_displaced: dict[str, ModuleType] = {}


def _is_deep_gemm(name: str) -> bool:
    return name == _NAME or name.startswith(f"{_NAME}.")


def _new_module(name: str, doc: str) -> ModuleType:
    module = ModuleType(name, doc)
    # A spec, because callers ask importlib.util.find_spec("deep_gemm") whether it is there.
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, origin="unikernels", is_package=name == _NAME)
    if name == _NAME:
        module.__path__ = []  # a package: unknown submodules are reported missing
    module.__package__ = _NAME
    return module


def _public_names() -> dict[str, object]:
    """Return what `unikernels` offers at top level; names it lacks stay missing, since callers probe for them."""
    library = importlib.import_module("unikernels")
    names = {name: getattr(library, name) for name in dir(library) if not name.startswith("_")}
    return {name: value for name, value in names.items() if not isinstance(value, ModuleType)}


def _build() -> dict[str, ModuleType]:
    """Return {module name: module} for the package and all submodules we have."""
    public = _public_names()
    package = _new_module(_NAME, f"unikernels under DeepGEMM's name (names of DeepGEMM {DEEP_GEMM_VERSION}).")
    package.__dict__.update(public, __version__=DEEP_GEMM_VERSION, __file__=__file__)
    modules = {_NAME: package}
    for name, ours in _SUBMODULES.items():
        if importlib.util.find_spec(ours) is None:
            continue
        # Under its own name in sys.modules and as an attribute, so that every form of import finds the same object;
        # attributes of submodules are theirs already (`testing.bench` is a function there, as in DeepGEMM).
        modules[f"{_NAME}.{name}"] = importlib.import_module(ours)
        if "." not in name:
            setattr(package, name, modules[f"{_NAME}.{name}"])
    mega = {name: public[name] for name in _MEGA_NAMES if name in public}
    if mega:
        modules[f"{_NAME}.mega"] = module = _new_module(f"{_NAME}.mega", "The Mega MoE functions of unikernels.")
        module.__dict__.update(mega)
        package.__dict__["mega"] = module
    return modules


def is_installed() -> bool:
    """Return whether ``import deep_gemm`` gives this library."""
    return bool(_installed) and sys.modules.get(_NAME) is _installed[_NAME]


def install(force: bool = False) -> None:
    """Make ``import deep_gemm`` and its submodules resolve to this library, in this process, from now on.

    A DeepGEMM that is installed but not yet imported is left alone and simply not found. Calling it again changes
    nothing. New processes (also those that multiprocessing spawns) must install again.

    Args:
        force: replace a real deep_gemm that is imported already. Modules that took names from it before keep those.

    Raises:
        UnikernelsError: a real deep_gemm is imported already and force is False.

    >>> install()
    >>> import deep_gemm
    >>> deep_gemm.get_num_sms() >= 1
    True
    >>> uninstall()
    """
    if is_installed():
        return
    imported = {name: module for name, module in sys.modules.items() if _is_deep_gemm(name)}
    if imported and not force:
        where = getattr(imported.get(_NAME), "__file__", None) or "a module without a file"
        raise UnikernelsError(
            f"compat.install: another deep_gemm is imported already, from {where}. Modules that use it would keep it, "
            f"so half of the program would run on each library. Call install() before the first import of deep_gemm, "
            f"or pass force=True to replace it for later imports."
        )
    modules = _build()
    for name in imported:
        del sys.modules[name]
    _displaced.update(imported)
    _installed.update(modules)
    sys.modules.update(modules)


def uninstall() -> None:
    """Undo `install`: later imports find what they would have found without it. Does nothing if not installed."""
    for name, module in _installed.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    sys.modules.update(_displaced)
    _installed.clear()
    _displaced.clear()


@contextmanager
def installed(force: bool = False) -> Iterator[None]:
    """Install inside a ``with`` block; an installation that was there before stays afterwards.

    Raises:
        UnikernelsError: as `install`.
    """
    was_installed = is_installed()
    install(force)
    try:
        yield
    finally:
        if not was_installed:
            uninstall()
