"""``unikernels simulate``: scripts written for a device run unchanged; reports, files, exit codes and messages."""

from __future__ import annotations

import json
import textwrap

import pytest

pytest.importorskip("tilelang")
from unikernels import cli

SCRIPT = """
import sys
import tilelang
import tilelang.ascend.language as T
import torch

def double(synchronised):
    @tilelang.jit(target="ascend", out_idx=[-1], pass_configs={"tl.enable_auto_schedule": synchronised})
    def build():
        @T.prim_func
        def double_it(A: T.Tensor((256,), "float32"), B: T.Tensor((256,), "float32")):
            with T.Kernel(1):
                a = T.alloc_shared((256,), "float32")
                T.copy(A, a)
                with T.SimtVF(threads=64):
                    for i in T.Parallel(256):
                        a[i] = a[i] * 2
                T.copy(a, B)
        return double_it
    return build()

if __name__ == "__main__":
    mode = sys.argv[1]
    if mode == "error":
        raise KeyError("the script's own mistake")
    if mode == "exit":
        sys.exit(5)
    kernel = double(synchronised=mode != "race")
    a = torch.arange(256.0, device="npu")
    try:
        assert torch.equal(kernel(a), 2 * a)
    except RuntimeError:
        if len(sys.argv) < 3:
            raise
        print("the script goes on")
    kernel(a)
    torch.npu.synchronize()
    print("the script is done")
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "client.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return str(path)


def test_a_clean_script_is_reported_and_drawn(script, tmp_path, capsys):
    trace, picture = tmp_path / "new" / "trace.json", tmp_path / "timeline.png"
    assert cli.main(["simulate", "--trace", str(trace), "--timeline", str(picture), script, "run"]) == 0
    out = capsys.readouterr().out
    assert "the script is done" in out
    assert out.count("double_it_kernel: predicted") == 1  # the second call of the same shapes is only counted
    assert "double_it_kernel: 2 calls, predicted" in out
    assert "2 kernel launches" in out
    assert "no hazards" in out
    assert json.loads(trace.read_text())["traceEvents"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_hazard_is_one_message_and_exit_code_1(script, capsys):
    assert cli.main(["simulate", script, "race"]) == 1
    captured = capsys.readouterr()
    assert "RaceError: simulator: kernel 'double_it_kernel'" in captured.out
    assert "1 hazard" in captured.out
    assert "Traceback" not in captured.out + captured.err


def test_a_hazard_counts_even_if_the_script_catches_it(script, capsys):
    assert cli.main(["simulate", script, "race", "caught"]) == 1
    assert "the script goes on" in capsys.readouterr().out


def test_without_checks_the_race_goes_unnoticed(script, capsys):
    assert cli.main(["simulate", "--check", "off", script, "race"]) == 0
    assert "no hazards (checks are off)" in capsys.readouterr().out


def test_the_scripts_own_error_keeps_its_place(script, capsys):
    assert cli.main(["simulate", script, "error"]) == 1
    err = capsys.readouterr().err
    assert 'KeyError: "the script\'s own mistake"' in err
    assert "runpy" not in err


def test_the_scripts_exit_code_is_kept(script):
    assert cli.main(["simulate", script, "exit"]) == 5


def test_a_missing_file_is_refused(capsys):
    assert cli.main(["simulate", "nowhere.py"]) == 2
    assert "there is no file 'nowhere.py'" in " ".join(capsys.readouterr().err.split())


def test_a_module_runs_as_well(script, capsys):
    assert cli.main(["simulate", "-m", "json.tool", "--help"]) == 0
    assert "no kernel was launched" in capsys.readouterr().out
