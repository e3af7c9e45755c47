"""Finds the host C++ compiler and compiles translated kernels to shared libraries, through the cache.

Knows flags and error texts; knows nothing of TileLang or of launching.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from . import _simulator
from .cache import Cache, digest
from .errors import CompilerNotFoundError, KernelCompileError, UnimplementedBuiltinError

_FLAGS = (
    "-std=c++20 -g1 -fPIC -shared -w -fno-strict-aliasing -fno-delete-null-pointer-checks -fstack-clash-protection -fvisibility=hidden "
    "-ffp-contract=off -fno-math-errno -fno-trapping-math"
)
_CHECK_FLAGS = "-DUSIM_CHECK -fsanitize=thread -nodefaultlibs"
_LIBRARIES = "-lm -lc -lgcc"
_UNDECLARED = re.compile(
    r":(\d+):\d+: error: (?:'|‘)?(?:use of undeclared identifier ')?:{0,2}(asc_\w+|v[a-z]\w*)(?:'|’)?"
)


def find_compiler() -> list[str]:
    """The compiler as a command: CXX if set, else g++, else clang++.

    Raises:
        CompilerNotFoundError: none of them can be started.
    """
    chosen = os.environ.get("CXX", "").strip()
    for candidate in [chosen] if chosen else ["g++", "clang++"]:
        words = shlex.split(candidate)
        if words and shutil.which(words[0]):
            return words
    looked = f"CXX={chosen!r}" if chosen else "g++ and clang++ on PATH"
    raise CompilerNotFoundError(
        f"the simulator compiles generated kernels with a C++20 compiler, but found none (looked for {looked}). "
        "Install one, for example: apt install g++; or set CXX to its path."
    )


@functools.lru_cache(maxsize=8)
def _identity(command: tuple[str, ...]) -> str:
    """What distinguishes one compiler from another: its version text."""
    result = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    return " ".join(command) + "\n" + result.stdout


@functools.lru_cache(maxsize=1)
def _cpu_features() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line for line in lines if line.startswith(("flags", "Features"))), "unknown")


def include_folder() -> Path:
    """The shim headers shipped with this package."""
    return Path(__file__).parent / "include"


@functools.lru_cache(maxsize=1)
def _headers_key() -> str:
    folder = include_folder()
    return digest(*(part for p in sorted(folder.rglob("*.*")) for part in (str(p.relative_to(folder)), p.read_bytes())))


@functools.lru_cache(maxsize=4)
def _templates_key(templates: Path) -> str:
    """TileLang's own device headers are compiled into every kernel."""
    return digest(*(p.read_bytes() for p in sorted((templates / "tl_templates" / "ascend").glob("*.h"))))


def _optimisation(gnu: bool, check: bool, simd: bool) -> list[str]:
    """What makes kernels fast at a small compile time; measured with benchmarks/simulator.py."""
    if gnu and simd:
        # Loops over the lanes of registers need unrolling and vectors, and hardly anything else of the higher levels,
        # which would take half as long again.
        return ["-O1", "-ftree-vectorize", "-fpeel-loops"]
    if gnu and check:
        return ["-O2", "-fno-tree-sra"]  # a float2 is then one access to check, not two
    return ["-O2" if check else "-O3"]


def _command(compiler: list[str], check: bool, simd: bool, saturate: bool, templates: Path) -> list[str]:
    headers = include_folder()
    gnu = "clang" not in compiler[0]
    words = [*compiler, *_FLAGS.split(), "-march=native", *_optimisation(gnu, check, simd)]
    if check:
        words += _CHECK_FLAGS.split()
        if gnu:
            words += ["--param", "tsan-instrument-func-entry-exit=0"]
    if simd:
        words += ["-DUSIM_SIMD"]
    else:
        words += [f"-I{headers / 'tl_without_simd'}"]
    if saturate:
        words += ["-DUSIM_SATURATE"]
    return [*words, f"-I{headers}", f"-I{templates}"]


_PREFIX = """#include <tl_templates/ascend/common.h>
#include <tl_templates/ascend/debug.h>
#include <tl_templates/ascend/gemm.h>
#include "usim/entry.h"
"""


def _build_prefix(command: list[str], folder: Path) -> None:
    """Precompile the common headers: more than half of a kernel's compile time. A failure leaves nothing behind.

    The folder appears complete, by one rename, or not at all.
    """
    # The folder may be full or gone, or another process was first: kernels compile without it.
    with (
        contextlib.suppress(OSError),
        tempfile.TemporaryDirectory(prefix=".prefix-", dir=folder.parent, ignore_cleanup_errors=True) as building,
    ):
        made = Path(building) / "made"
        made.mkdir(mode=0o700)
        (made / "prefix.h").write_text(_PREFIX)
        words = [w for w in command if w not in ("-shared", "-nodefaultlibs")]
        target = ["-x", "c++-header", str(made / "prefix.h"), "-o", str(made / "prefix.h.gch")]
        if subprocess.run([*words, *target], capture_output=True, check=False).returncode == 0:
            made.rename(folder)


@contextlib.contextmanager
def _precompiled_prefix(command: list[str], key: str, cache: Cache) -> Iterator[list[str]]:
    """Options that make g++ read the common headers precompiled; none for other compilers.

    Where they do not exist yet they are made meanwhile, for the next kernel: this one does not wait for them to start.
    """
    folder = cache.folder / f"prefix-{key}"
    if "Free Software Foundation" not in _identity(tuple(command[:1])):
        yield []
    elif folder.is_dir():
        yield ["-include", str(folder / "prefix.h")]
    else:
        builder = threading.Thread(target=_build_prefix, args=(command, folder))
        builder.start()
        try:
            yield []
        finally:
            builder.join()


def _explain(text: str, name: str, output: str) -> Exception:
    match = _UNDECLARED.search(output)
    if match:
        number, builtin = int(match.group(1)), match.group(2)
        lines = text.splitlines()
        shown = lines[number - 1].strip() if number <= len(lines) else ""
        error = UnimplementedBuiltinError(
            f"kernel '{name}' uses the builtin {builtin} (generated source, line {number}: {shown[:160]}), "
            "which the simulator does not implement."
        )
        error.kernel, error.builtin, error.line = name, builtin, number
        return error
    first = "\n".join([line for line in output.splitlines() if "error" in line][:6]) or output[-1500:]
    return KernelCompileError(f"the generated source of kernel '{name}' does not compile:\n{first}")


def compile_kernel(
    text: str, name: str, *, check: bool, simd: bool, saturate: bool, templates: Path, cache: Cache
) -> Path:
    """Compile a translated kernel, or find it in the cache; returns the path of the shared library."""
    compiler = find_compiler()
    command = _command(compiler, check, simd, saturate, templates)
    # Paths of the installation do not change the result; the text behind them does.
    stable = " ".join(w for w in command if not w.startswith("-I"))
    environment = (_identity(tuple(compiler)), stable, _cpu_features(), _headers_key(), _templates_key(templates))
    key = digest(text, *environment, str(_simulator.ABI_VERSION))
    if cache.load("so", key) is not None:
        return cache.path("so", key)
    with (
        tempfile.TemporaryDirectory(prefix="unikernels-compile-") as folder,
        _precompiled_prefix(command, digest(*environment), cache) as prefix,
    ):
        source, library = Path(folder) / f"{name}.cpp", Path(folder) / f"{name}.so"
        source.write_text(text)
        result = _run_compiler(command, prefix, source, library)
        if result.returncode != 0 and prefix:
            # Either the kernel or the precompiled header is broken; a second try, without the header, tells which.
            result = _run_compiler(command, [], source, library)
            if result.returncode == 0:
                shutil.rmtree(Path(prefix[1]).parent, ignore_errors=True)  # the next kernel makes it again
        if result.returncode != 0:
            raise _explain(text, name, result.stderr)
        return cache.store("so", key, library.read_bytes())


def _run_compiler(
    command: list[str], prefix: list[str], source: Path, library: Path
) -> subprocess.CompletedProcess[str]:
    words = [*command, *prefix, str(source), "-o", str(library), *_LIBRARIES.split()]
    # What a broken header makes the compiler print need not be text.
    return subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)


def source_line(library: Path, offset: int, name: str) -> int:
    """The line of the generated source behind a code offset, or 0 if it cannot be told."""
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if tool is None or offset == 0:
        return 0
    # A return address points behind the call; one byte less lies inside it.
    result = subprocess.run(
        [tool, "-i", "-e", str(library), hex(offset - 1)], capture_output=True, text=True, check=False
    )
    for line in result.stdout.splitlines():
        file, _, number = line.partition(" ")[0].rpartition(":")
        if file.endswith(f"{name}.cpp") and number.isdigit():
            return int(number)
    return 0
