"""Tuned tiles and building ahead of time: tables are checked, results repeat, backends without them say so."""

from __future__ import annotations

import collections
import dataclasses

import pytest
import torch

import unikernels
from unikernels import cli
from unikernels.backends.ascend import ahead_of_time
from unikernels.backends.ascend.kernels import gemm_tuned
from unikernels.backends.ascend.kernels.gemm_tuned import TABLE, Tuned, TunedKey, load, save
from unikernels.backends.ascend.programs.gemm_variant import ELEMENT_BITS, Tiles
from unikernels.backends.ascend.runtime.executor import collected_kernels

KEY = TunedKey("bf16", False, True, True, "bfloat16", 32, 100, 96, 128)


def test_committed_tiles_fit_and_step_through_k_alike():
    table = load(TABLE)
    assert len(table) >= 16
    for key, tuned in table.items():
        assert key == key.in_class()
        assert tuned.tiles.k_step * ELEMENT_BITS[key.element] == 8 * 128
        assert tuned.tiles.k % tuned.tiles.k_step == 0
        assert tuned.cycles > 0


def test_committed_cycles_are_what_the_model_predicts_now(ascend):
    stale = {}
    for key, tuned in load(TABLE).items():
        cycles = ahead_of_time._predicted_cycles(key, tuned.tiles)
        if cycles != tuned.cycles:
            stale[key] = f"{tuned.cycles} in the table, {cycles} now"
    assert not stale, "run: unikernels tune --backend ascend"


def test_tables_survive_a_round_trip_and_refuse_tiles_that_do_not_fit(tmp_path):
    table = {KEY.in_class(): Tuned(Tiles(32, 48, 256, 64), 100)}
    save(tmp_path / "table.json", table)
    assert load(tmp_path / "table.json") == table
    assert [path.name for path in tmp_path.iterdir()] == ["table.json"]
    assert load(tmp_path / "absent.json") == {}
    save(tmp_path / "table.json", {KEY.in_class(): Tuned(Tiles(256, 256, 512, 64), 100)})
    with pytest.raises(ValueError, match=r"do not fit on chip: Tiles\(m=256, n=256, k=512"):
        load(tmp_path / "table.json")


@pytest.mark.parametrize("text", ["", "{", "{}x", "[1]", '[{"tiles": [1]}]', "[[]]", '{"a": 1}'])
def test_a_file_that_is_no_table_is_named(tmp_path, capsys, ascend, text):
    file = tmp_path / "table.json"
    file.write_text(text)
    assert cli.main(["tune", "--backend", "ascend", "--file", str(file)]) == 2
    assert "is no table of tuned tiles" in " ".join(capsys.readouterr().err.split())
    assert file.read_text() == text


def test_tuning_keeps_rows_that_were_written_meanwhile(tmp_path, ascend, monkeypatch):
    file, other = tmp_path / "table.json", {KEY.in_class(): Tuned(Tiles(32, 48, 256, 64), 100)}

    def another_process_writes(work, jobs, *_):
        save(file, other)
        return [1] * len(jobs)

    monkeypatch.setattr(ahead_of_time, "_in_processes", another_process_writes)
    ahead_of_time.tune([(16, 16, 64)], file, lambda *_: None)
    table = load(file)
    assert len(table) == 4
    assert table[KEY.in_class()] == other[KEY.in_class()]
    assert [path.name for path in tmp_path.iterdir()] == ["table.json"]


def test_tuned_tiles_serve_their_class_of_rows_only(monkeypatch):
    monkeypatch.setattr(gemm_tuned, "_committed", lambda: {KEY.in_class(): Tuned(Tiles(32, 48, 256, 64), 100)})
    form, sizes = KEY.form, KEY.sizes
    assert gemm_tuned.tuned_tiles(form, sizes) == Tiles(32, 48, 256, 64)
    assert gemm_tuned.tuned_tiles(form, dataclasses.replace(sizes, m=65)) == Tiles(32, 48, 256, 64)
    for other in ({"m": 64}, {"n": 97}, {"copies": 2}):
        assert gemm_tuned.tuned_tiles(form, dataclasses.replace(sizes, **other)) is None
    assert gemm_tuned.tuned_tiles(dataclasses.replace(form, epilogue="scale"), sizes) is None


@pytest.mark.parametrize("command", ["tune", "warmup"])
def test_backends_without_it_are_refused(command, capsys):
    assert cli.main([command, "--backend", "cpu"]) == 2
    assert "Backends that do: ascend. Name one with --backend." in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("shape", ["128,64", "1,2,3,4", "a,b,c", "0,1,2"])
def test_bad_shapes_are_refused(shape, capsys):
    with pytest.raises(SystemExit):
        cli.main(["tune", "--backend", "ascend", "--shapes", shape])
    assert shape in capsys.readouterr().err


def test_an_empty_table_has_nothing_to_tune_again(ascend, tmp_path, capsys):
    assert cli.main(["tune", "--backend", "ascend", "--file", str(tmp_path / "none.json")]) == 2
    assert "--shapes" in capsys.readouterr().err


def test_a_table_that_cannot_be_written_is_refused_before_any_work(ascend, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ahead_of_time, "_in_processes", lambda *_: pytest.fail("work was done"))
    file = tmp_path / "absent" / "table.json"
    assert cli.main(["tune", "--backend", "ascend", "--shapes", "48,80,256", "--file", str(file)]) == 2
    assert "Name a table elsewhere with --file" in " ".join(capsys.readouterr().err.split())


def test_collecting_names_kernels_and_runs_none(ascend):
    a, b, d = (torch.ones(32, 32, dtype=torch.bfloat16) for _ in range(3))
    with collected_kernels() as kernels:
        unikernels.bf16_gemm_nt(a, b, d)
        unikernels.bf16_gemm_nt(a, b, d)
    assert [kernel.program for kernel in kernels] == ["gemm"]
    assert d.eq(1).all()


def test_warmup_builds_what_calls_of_these_sizes_run(ascend, monkeypatch):
    built = []
    monkeypatch.setattr(ahead_of_time, "_in_processes", lambda _, jobs, *__: built.extend(kernel for (kernel,) in jobs))
    ahead_of_time.warmup([(40, 80, 256)], 0, 1, lambda *_: None)
    assert collections.Counter(kernel.program for kernel in built) == {"gemm": 4, "scales": 2}
    built.clear()
    ahead_of_time.warmup([(40, 80, 256)], 4, 1, lambda *_: None)
    programs = collections.Counter(kernel.program for kernel in built)
    assert programs == {"m_grouped": 12, "k_grouped": 4, "zero_gaps": 1}
    a, b = torch.zeros(4, 40, 256, dtype=torch.bfloat16), torch.zeros(4, 80, 256, dtype=torch.bfloat16)
    with collected_kernels() as kernels:
        sizes = torch.tensor([3, 40, 0, 7], dtype=torch.int32)
        unikernels.m_grouped_bf16_gemm_nt_masked(a, b, torch.zeros(4, 40, 80, dtype=torch.bfloat16), sizes, 40)
    assert kernels
    assert kernels.keys() <= set(built)


@pytest.mark.parametrize(("groups", "message"), [("4", "--shapes M,N,K"), ("-1", "--groups is -1")])
def test_groups_need_sizes_and_a_number(ascend, groups, message, capsys):
    assert cli.main(["warmup", "--backend", "ascend", "--groups", groups]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_tuning_repeats_and_warmup_may_run_twice(ascend, tmp_path):
    texts = []
    for name in ("first.json", "second.json"):
        assert cli.main(["tune", "--backend", "ascend", "--shapes", "48,80,256", "--file", str(tmp_path / name)]) == 0
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    assert len(load(tmp_path / "first.json")) == 3
    for _ in range(2):
        assert cli.main(["warmup", "--backend", "ascend", "--shapes", "48,80,256", "--processes", "2"]) == 0
