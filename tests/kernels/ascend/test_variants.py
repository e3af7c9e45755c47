"""Programs and their variants: host code uses them all; a new variant costs seconds, so M must not bring its own."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

from unikernels.backends.ascend import plugin
from unikernels.backends.ascend.kernels import epilogues
from unikernels.backends.ascend.kernels.gemm_form import form_of, variant_for
from unikernels.backends.ascend.kernels.gemm_tiles import Sizes
from unikernels.backends.ascend.runtime.executor import executor_on
from unikernels.operations import Operand
from unikernels.scale_layouts import ScaleFormat, Scales

#: Of one (n, k) pair; FC-16 asks for about 16.
MOST_VARIANTS = 8


def operand(kind, mn, k):
    if kind == "bf16":
        return Operand(torch.empty(mn, k, dtype=torch.bfloat16, device="meta"), kind, mn, k, True)
    words = torch.empty(mn, k // 64, dtype=torch.int16, device="meta")
    data = torch.empty(mn, k, dtype=torch.float8_e4m3fn, device="meta")
    return Operand(data, kind, mn, k, True, Scales(words, ScaleFormat.UE8M0X2_INT16, 1, 32, mn, k))


@pytest.mark.parametrize("kind", ["bf16", "fp8"])
@pytest.mark.parametrize(("n", "k"), [(4096, 7168), (576, 7168)])
def test_few_variants_serve_every_number_of_rows(kind, n, k):
    variants = set()
    for m in [*range(1, 513, 5), 1024, 2048, 4096]:
        store = epilogues.store(torch.empty(m, n, dtype=torch.bfloat16, device="meta"), None, 1.0, None, None)
        form = form_of(executor_on(torch.device("cpu")), operand(kind, m, k), operand(kind, n, k), store)
        variants.add(variant_for(form, Sizes(m, n, k)))
    assert len(variants) <= MOST_VARIANTS


def test_host_code_runs_every_program():
    folder = Path(epilogues.__file__).parent
    calls = [
        node
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    ]
    named = {call.args[0].value for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Kernel"}
    programs = {path.stem for path in (folder.parent / "programs").glob("*.py")}
    assert named == {name for name in programs if not name.endswith(("_steps", "variant", "variants"))}


def test_the_plugin_asks_every_file_that_has_limits():
    with_limits = {
        f".kernels.{path.stem}"
        for path in Path(epilogues.__file__).parent.glob("*.py")
        if re.search(r"^def why_not\(problem: ", path.read_text(), re.MULTILINE)
    }
    assert with_limits - {".kernels.vendor"} == set(plugin._MODULES.values())  # gemm asks vendor itself
