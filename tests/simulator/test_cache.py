"""The kernel cache: complete entries only, a private folder only, safe among processes."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import warnings

import pytest
import torch

from unikernels.backends.ascend.simulator import CompilerNotFoundError, KernelCompileError, compiler, launch
from unikernels.backends.ascend.simulator.cache import Cache, digest, why_unusable


def test_what_is_stored_comes_back(tmp_path):
    cache = Cache(tmp_path / "new" / "folder")
    assert cache.load("so", "k") is None
    path = cache.store("so", "k", b"payload")
    assert cache.load("so", "k") == b"payload"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.folder.stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize("keep", [0, 5, -1])
def test_a_truncated_entry_is_dropped(tmp_path, keep):
    cache = Cache(tmp_path)
    path = cache.store("so", "k", b"payload")
    data = path.read_bytes()
    path.write_bytes(data[:keep])
    assert cache.load("so", "k") is None
    assert not path.exists()


def test_a_changed_byte_is_noticed(tmp_path):
    cache = Cache(tmp_path)
    path = cache.store("so", "k", b"payload")
    path.write_bytes(b"q" + path.read_bytes()[1:])
    assert cache.load("so", "k") is None


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    cache = Cache(tmp_path)
    monkeypatch.setattr(os, "replace", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
    with (
        pytest.raises(OSError, match="disk full"),
        pytest.warns(RuntimeWarning, match=r"cannot be written \(disk full"),
    ):
        cache.store("so", "k", b"payload")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_moves_the_cache_with_one_warning(tmp_path, monkeypatch):
    cache, write = Cache(tmp_path), os.replace

    def replace(source, target):
        if target.parent == tmp_path:
            raise OSError(28, "No space left on device")
        write(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.warns(RuntimeWarning, match=rf"{tmp_path} is not used: it cannot be written \(.*No space left"):
        cache.store("so", "k", b"payload")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.store("so", "l", b"another")
    assert (cache.load("so", "k"), cache.load("so", "l")) == (b"payload", b"another")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_deleted_meanwhile_is_made_again(tmp_path):
    cache = Cache(tmp_path / "folder")
    cache.store("so", "k", b"payload")
    shutil.rmtree(tmp_path / "folder")
    assert cache.load("so", "k") is None
    cache.store("so", "k", b"payload")
    assert cache.load("so", "k") == b"payload"
    assert cache.folder == tmp_path / "folder"
    shutil.rmtree(tmp_path / "folder")
    (tmp_path / "folder").write_text("a file now")
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        cache.store("so", "k", b"payload")
    assert cache.load("so", "k") == b"payload"


def test_the_folder_stays_where_it_is_when_the_process_moves(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for chosen in ("folder", "~/folder"):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("UNIKERNELS_SIMULATOR_CACHE", chosen)
        cache = Cache()
        monkeypatch.chdir("/")
        assert cache.folder == tmp_path / "folder"


def test_a_folder_in_an_entrys_place_is_survived(tmp_path):
    cache = Cache(tmp_path)
    (tmp_path / "k.so").mkdir()
    assert cache.load("so", "k") is None
    with pytest.warns(RuntimeWarning, match="Is a directory"):
        cache.store("so", "k", b"payload")
    assert cache.load("so", "k") == b"payload"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs POSIX permissions")
def test_a_folder_others_can_write_to_is_refused(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)
    (shared / "k.so").write_bytes(b"planted")
    assert "other users can write to it (mode 777)" in (why_unusable(shared) or "")
    cache = Cache(shared)
    with pytest.warns(RuntimeWarning, match=r"shared is not used: other users can write to it"):
        assert cache.load("so", "k") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one warning only
        cache.store("so", "k", b"payload")
    assert cache.load("so", "k") == b"payload"
    assert (shared / "k.so").read_bytes() == b"planted"


def test_a_path_that_is_no_folder_is_replaced(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    cache = Cache(blocked / "below")
    with pytest.warns(RuntimeWarning, match="cannot be created"):
        cache.store("so", "k", b"payload")
    assert cache.load("so", "k") == b"payload"


def test_keys_depend_on_every_part_and_its_boundaries():
    assert len({digest("ab", "c"), digest("a", "bc"), digest("abc"), digest("ab", "d")}) == 4


def test_processes_share_a_folder(tmp_path):
    script = (
        "import sys; from pathlib import Path; from unikernels.backends.ascend.simulator.cache import Cache\n"
        "cache = Cache(Path(sys.argv[1]))\n"
        "for i in range(60):\n"
        "    cache.store('so', 'same', bytes([i]) * 100000)\n"
        "    data = cache.load('so', 'same')\n"
        "    assert data is not None and len(set(data)) == 1 and len(data) == 100000\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(3)]
    assert [p.wait() for p in running] == [0, 0, 0]
    assert [p.name for p in tmp_path.iterdir()] == ["same.so"]


BODY = "asc_sync();"


def compile_once(tmp_path, run_ascend, monkeypatch, body=BODY):
    monkeypatch.setattr(launch, "shared_cache", lambda: Cache(tmp_path))
    run_ascend(body, {"X": torch.zeros(4)}, check="off")


def test_a_kernel_is_compiled_once(tmp_path, run_ascend, monkeypatch):
    calls = []
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: (calls.append(a[0]), real(*a, **k))[1])
    compile_once(tmp_path, run_ascend, monkeypatch)
    compiled = [c for c in calls if any(str(w).endswith("k_kernel.cpp") for w in c)]
    assert len(compiled) == 1
    calls.clear()
    compile_once(tmp_path, run_ascend, monkeypatch)
    assert not [c for c in calls if any(str(w).endswith("k_kernel.cpp") for w in c)]


def test_headers_are_precompiled_beside_the_first_kernel_and_read_by_the_second(tmp_path, run_ascend, monkeypatch):
    if "Free Software Foundation" not in compiler._identity(tuple(compiler.find_compiler()[:1])):
        pytest.skip("only g++ precompiles headers here")
    calls = []
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: (calls.append(a[0]), real(*a, **k))[1])
    for body in (BODY, BODY * 2):
        compile_once(tmp_path, run_ascend, monkeypatch, body)
    assert [("-include" in c, "c++-header" in c) for c in calls if "-x" in c or any(str(w).endswith(".cpp") for w in c)] in (
        [(False, False), (False, True), (True, False)],
        [(False, True), (False, False), (True, False)],
    )  # fmt: skip
    assert len(list(tmp_path.glob("prefix-*/prefix.h.gch"))) == 1


def test_a_truncated_library_is_rebuilt(tmp_path, run_ascend, monkeypatch):
    compile_once(tmp_path, run_ascend, monkeypatch)
    (library,) = tmp_path.glob("*.so")
    launch._load.cache_clear()
    library.write_bytes(library.read_bytes()[:1000])
    compile_once(tmp_path, run_ascend, monkeypatch)
    assert library.stat().st_size > 1000


@pytest.mark.parametrize("content", ["truncated", "garbage"])
def test_a_broken_precompiled_header_is_survived_and_made_again(tmp_path, run_ascend, monkeypatch, content):
    compile_once(tmp_path, run_ascend, monkeypatch)
    headers = list(tmp_path.glob("prefix-*/prefix.h.gch"))
    for header in headers:
        header.write_bytes(header.read_bytes()[:5000] if content == "truncated" else b"\xfa\xfb not text \xff")
        (header.parent / "prefix.h").write_bytes(b"\xfa\xfb garbage \xff")
    for body in (BODY * 3, BODY * 4):
        compile_once(tmp_path, run_ascend, monkeypatch, body)
    assert all(header.stat().st_size > 100_000 for header in headers)


def test_the_key_follows_flags_compiler_and_cpu(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(Cache, "load", lambda self, kind, key: made.append(key) or b"there")
    arguments = {"simd": False, "templates": tmp_path, "cache": Cache(tmp_path), "check": True, "saturate": False}
    compiler.compile_kernel("text", "k", **arguments)
    compiler.compile_kernel("text", "k", **{**arguments, "check": False})
    compiler.compile_kernel("text", "k", **{**arguments, "saturate": True})
    compiler.compile_kernel("text 2", "k", **arguments)
    monkeypatch.setattr(compiler, "_cpu_features", lambda: "another CPU")
    compiler.compile_kernel("text", "k", **arguments)
    monkeypatch.setattr(compiler, "_identity", lambda command: "another compiler")
    compiler.compile_kernel("text", "k", **arguments)
    monkeypatch.setattr(compiler, "_headers_key", lambda: "other headers")
    compiler.compile_kernel("text", "k", **arguments)
    assert len(set(made)) == 7


def test_the_compiler_is_found_like_a_build_tool_finds_it(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        CompilerNotFoundError, match=r"found none \(looked for g\+\+ and clang\+\+ on PATH\)\. Install one"
    ):
        compiler.find_compiler()
    monkeypatch.setenv("CXX", "my-c++ -m64")
    with pytest.raises(CompilerNotFoundError, match=r"CXX='my-c\+\+ -m64'"):
        compiler.find_compiler()
    fake = tmp_path / "my-c++"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    assert compiler.find_compiler() == ["my-c++", "-m64"]


def test_a_source_that_does_not_compile_says_where(run_ascend):
    with pytest.raises(KernelCompileError, match=r"kernel 'k_kernel' does not compile:\n.*k_kernel\.cpp:6.*error"):
        run_ascend("int x = ;", {"X": torch.zeros(4)})


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        (("UNIKERNELS_SIMULATOR_CACHE", "UNIKERNELS_CACHE_DIR"), "UNIKERNELS_SIMULATOR_CACHE"),
        (("UNIKERNELS_CACHE_DIR", "DG_JIT_CACHE_DIR", "XDG_CACHE_HOME"), "UNIKERNELS_CACHE_DIR/simulator"),
        (("DG_JIT_CACHE_DIR", "XDG_CACHE_HOME"), "DG_JIT_CACHE_DIR/simulator"),
        (("XDG_CACHE_HOME", "HOME"), "XDG_CACHE_HOME/unikernels/simulator"),
        (("HOME",), "HOME/.cache/unikernels/simulator"),
    ],
)
def test_the_folder_is_the_first_that_the_environment_names(tmp_path, monkeypatch, variables, folder):
    for name in ("UNIKERNELS_SIMULATOR_CACHE", "UNIKERNELS_CACHE_DIR", "DG_JIT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in variables:
        monkeypatch.setenv(name, str(tmp_path / name))
    assert Cache().folder == tmp_path / folder
