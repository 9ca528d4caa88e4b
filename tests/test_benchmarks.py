"""The benchmark framework, as far as it can be tried without a GPU: the grid and its bars, a measured case, tables,
verdicts, and the short form for users."""

import argparse
import csv
import importlib.util
import itertools
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import torchreduce as tr
from torchreduce.__main__ import main
from torchreduce._tools.bench import take_turns

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import bars, cases, compare, cpu, drawn, grid, pages, peers, results, run, segments, values, verdicts
from benchmarks.channels import ChannelCase
from benchmarks.rowwise import RowwiseCase

ROOT = Path(__file__).parents[1]


# ---- grid and bars ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bar", bars.BARS, ids=lambda bar: f"{bar.op}-{bar.dim}-{bar.shapes[0]}-{bar.forms[0]}")
def test_bars_are_pairs_of_fractions_of_the_copy(bar):
    assert bar.part in grid.PARTS and (bar.op in cases.SCANS) != (bar.part == "rowwise")
    assert all(0 < low <= high <= 1.05 for low, high in (bar.float32, bar.half))
    for shape in bar.shapes:
        assert 0 <= bar.dim < len(shape)
        common = (8, 4096, 4096), *bars.LABELLED, (16384, 4096), (65536, 1024)  # what people have
        assert torch.Size(shape).numel() == pytest.approx(bars.N, rel=1e-3) or shape in common


def test_each_bar_has_its_cases_and_each_case_at_most_one_bar():
    every = [case for part in grid.PARTS for case in grid.cases(part)]
    for bar in bars.BARS:
        for shape in bar.shapes:
            for form in bar.forms:
                found = [c for c in every if (c.op, c.shape, c.dim, c.form) == (bar.op, shape, bar.dim, form)]
                assert {"float32", "bfloat16", "float16"} <= {c.dtype for c in found if c.part == bar.part}
    keys = [(bar.op, shape, bar.dim, form) for bar in bars.BARS for shape in bar.shapes for form in bar.forms]
    assert len(keys) == len(set(keys))
    assert len({(case.part, case.name) for case in every}) == len(every)


def test_row_wise_ops_are_timed_as_they_are_called(monkeypatch):
    """Forward and backward, by both, on the CPU at small sizes: what is run gives what it is named after."""
    monkeypatch.setattr(cases, "DEVICE", "cpu")
    ops = dict.fromkeys(case.op for case in grid.cases("rowwise"))
    assert len(ops) == 12
    for op in ops:
        case = RowwiseCase("rowwise", op, "float32", (6, 40), 1)
        inputs = case.inputs()
        ours, torchs = (case.run(provider)(inputs) for provider in ("torchreduce", "torch"))
        if "backward" in op:  # of random gradients, each its own
            assert [t.shape for t in ours] == [t.shape for t in torchs]
        else:
            torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=1e-6)
        assert case.run("cub") is None and case.run("torchreduce fast") is None
        tensors = 1 if op in cases.TO_VALUES else 3 if "backward" in op and op != "cross_entropy backward" else 2
        assert case.nbytes == tensors * 6 * 40 * 4
        assert cases.is_copy("rowwise", op) == (op not in cases.TO_VALUES)


def test_norms_over_channels_are_timed_as_they_are_called(monkeypatch):
    monkeypatch.setattr(cases, "DEVICE", "cpu")
    every = {(case.op, case.form) for case in grid.cases("channels")}
    assert len(every) == 2 * 5 + 2
    for op, form in sorted(every):
        case = ChannelCase("channels", op, "bfloat16", (2, 64, 3, 5), 1, form)
        inputs = case.inputs()
        ours, torchs = (case.run(provider)(inputs) for provider in ("torchreduce", "torch"))
        if "backward" in op:  # of random gradients, each its own
            assert [t.shape for t in ours] == [t.shape for t in torchs]
        else:
            torch.testing.assert_close(ours, torchs, rtol=0.02, atol=0.05)
            assert ours.is_contiguous(memory_format=torch.channels_last) == bool(form)
        assert case.run("cub") is None
        assert case.nbytes == (3 if "backward" in op else 2) * 2 * 64 * 3 * 5 * 2


def test_a_part_of_a_norm_over_channels_has_all_channels():
    case = ChannelCase("channels", "batch_norm", "bfloat16", (256, 512, 2, 3), 1)
    assert run.part_of(case, torch.empty(case.shape)).shape == (4, 512, 2, 3)


def test_bars_of_other_scans_follow_cumsums():
    assert bars.pair_of("cumsum", "float16", (bars.N,), 0, "") == (0.94, 0.97)
    assert bars.pair_of("cummax", "bfloat16", (2**24, 16), 0, "") == pytest.approx((0.93 * 0.66, 0.66))
    assert bars.pair_of("cumprod", "float32", (bars.N,), 0, "") == pytest.approx((0.90 * 0.95, 0.95))
    assert bars.pair_of("cumsum", "float64", (bars.N,), 0, "") is None


@pytest.mark.parametrize(
    ("op", "dtype", "shape", "dim", "form", "pair"),
    [
        ("sum", "float32", (2**20, 256), 1, "", (0.94, 0.98)),
        ("mean", "bfloat16", (2**28,), 0, "", (0.90, 0.96)),
        ("amax", "float16", (894784, 300), 1, "", (0.90, 0.96)),
        ("amin", "float32", (1052688, 255), 1, "", (0.90, 0.96)),
        ("argmax", "float32", (2**22, 64), 1, "", (0.92, 0.97)),
        ("max", "bfloat16", (4260880, 63), 1, "", (0.88, 0.95)),
        ("sum", "float32", (2**14, 2**14), 0, "", (0.87, 0.95)),
        ("argmin", "bfloat16", (64, 2048, 2048), 1, "", (0.81, 0.93)),
        ("sum", "float32", (2684354, 100), 0, "", (0.92, 0.96)),
        ("argmax", "bfloat16", (16, 2**24), 0, "", (0.79, 0.95)),
        ("amax", "bfloat16", (4000, 67, 1001), 1, "", (0.74, 0.88)),
        ("argmax", "float32", (3000, 300, 298), 1, "", (0.82, 0.92)),
        ("sum", "bfloat16", (256, 2**20), 1, "in+1 out+0", (0.86, 0.93)),
        ("sum", "float32", (2**22, 64), 1, "in+1 out+0", (0.80, 0.92)),
        ("amax", "float32", (2**22, 64), 1, "in+1 out+0", None),
        ("any", "bfloat16", (2**18, 1024), 1, "", (0.80, 0.92)),
        ("prod", "float32", (65536, 4096), 0, "", (0.90, 0.96)),
        ("prod", "float32", (2**14, 2**14), 0, "", None),
        ("sum", "int32", (2**31,), 0, "", (0.92, 0.92)),
        ("sum", "int8", (2**28,), 0, "", (0.80, 0.80)),
        ("sum", "float32", (128, 1024), 1, "", None),
    ],
)
def test_bars_of_reductions_are_by_regime(op, dtype, shape, dim, form, pair):
    assert bars.pair_of(op, dtype, shape, dim, form) == pair


def test_each_large_reduction_of_the_grid_has_a_bar_that_no_floor_exceeds():
    for part in ("reduce", "reduce-rows", "reduce-columns", "reduce-views"):
        for case in grid.cases(part):
            facts = (case.op, case.dtype, case.shape, case.dim, case.form)
            pair, floor = bars.pair_of(*facts), bars.floor_of(*facts)
            assert (floor is None) == (case.elements < 2**27)
            assert part != "reduce-views" or pair is None
            assert (floor is None and pair is None) or pair is None or floor <= pair[0] <= pair[1] < 1
            assert pair or floor is None or case.form, case.name


@pytest.mark.parametrize(
    ("op", "shape", "dim", "nbytes"),
    [("cumsum", (8, 100), 1, 6400), ("cummax", (8, 100), 1, 12800), ("linear_scan", (8, 100), 1, 9600),
     ("sum", (8, 100), 1, 3232), ("argmax", (8, 100), 0, 4000)],
)  # fmt: skip
def test_bytes_are_each_input_and_each_result_once(op, shape, dim, nbytes):
    assert cases.Case("small", "sum", "float32", (2, 3, 4, 5), 0, "over 0 2").nbytes == (120 + 15) * 4
    assert cases.Case("small", op, "float32", shape, dim).nbytes == nbytes


# ---- a measured case -------------------------------------------------------------------------------------------------


@pytest.fixture
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(cases, "DEVICE", "cpu")
    monkeypatch.setattr(run, "REPLAYED_BELOW", 0)
    monkeypatch.setattr(peers, "ceiling_seconds", lambda kind, nbytes, replay: (1e-6, f"best {kind}"))
    return argparse.Namespace(patience=8.0, quick=True, case=None)


@pytest.mark.parametrize(
    ("op", "dtype", "shape", "dim", "form"),
    [("cumsum", "float32", (3000,), 0, form) for form in ("", "reverse", "exclusive", "in+3 out+2")]
    + [("cumsum", "bfloat16", (40, 100), 1, "transposed"), ("cumsum", "int32", (300,), 0, "")]
    + [("sum", "float32", (40, 100), 0, ""), ("argmax", "bfloat16", (40, 100), 1, "")]
    + [("sum", "float32", (40, 100), 0, "transposed all dims"), ("sum", "float32", (40, 20), 0, "of 30")]
    + [("sum", "float32", (4, 5, 6, 7), 0, "over 0 2"), ("amax", "float32", (4, 6, 5, 7), 3, "permuted 0 2 1 3")]
    + [("amax", "bfloat16", (6, 5, 4), 0, "permuted 2 1 0 over 0 2")],
)
def test_providers_agree_and_are_measured(on_the_cpu, op, dtype, shape, dim, form):
    case = cases.Case("scan-1d", op, dtype, shape, dim, form)
    x = case.inputs()
    assert x[0].dtype == getattr(torch, dtype) and x[0].shape == shape
    assert form.startswith(("transposed", "permuted", "of")) == (not x[0].is_contiguous())
    if form.startswith("permuted"):
        assert x[0].permute([(2, 1, 0), (0, 2, 1, 3)][len(shape) - 3]).is_contiguous()
    assert x[0].storage_offset() == case.offsets[0]
    x = tuple(t.mul_(0).add_(1) for t in x)
    ours, torchs = (case.run(provider)(x) for provider in ("torchreduce", "torch"))
    assert ours.dtype == torchs.dtype and torch.allclose(ours.double(), torchs.double(), rtol=0.05)
    assert ours.storage_offset() == torchs.storage_offset() == case.offsets[1]
    rows = run.measure(case, ["torchreduce", "torchreduce fast", "torch"], on_the_cpu)
    assert [row["provider"] for row in rows] == ["torchreduce", "torchreduce fast", "torch", rows[-1]["provider"]]
    assert rows[-1]["provider"] == ("copy" if op == "cumsum" else "read")
    assert all(float(row["p20_ms"]) <= float(row["p50_ms"]) <= float(row["p80_ms"]) for row in rows[:-1])
    assert set(rows[0]) <= set(results.FIELDS)
    assert re.search(r"torch 0\.\d+", run.line(case, rows))


def test_what_fails_and_what_takes_too_long_are_said(on_the_cpu, monkeypatch):
    case = cases.Case("scan-1d", "cumsum", "float32", (3000,), 0)
    monkeypatch.setattr(run, "expected_seconds", lambda case, inputs: 46.0)
    monkeypatch.setattr(tr, "cumsum", lambda x, dim: x.no_such_thing)
    rows = run.measure(case, ["torchreduce", "torch"], on_the_cpu)
    assert [row["note"][:12] for row in rows] == ["failed: Attr", "left out: ab"]
    assert "left out: about 46 s" in run.line(case, rows)


def test_ops_that_torchreduce_lacks_are_skipped_and_said(capsys, on_the_cpu, monkeypatch):
    monkeypatch.delattr(tr, "cumsum")
    assert run.chosen("scan-rows", on_the_cpu) == []
    assert "no cumsum" in capsys.readouterr().out


def test_slow_calls_run_once_and_all_take_turns(monkeypatch):
    ran = []
    monkeypatch.setattr(
        "torchreduce._tools.bench.waited", lambda run, device: run() or (1.5 if ran[-1] == "slow" else 0.001)
    )
    times = take_turns({name: lambda name=name: ran.append(name) for name in ("a", "b", "slow")}, "cpu", 8, 1)
    assert ran == ["a", "b", "slow", "a", "b", *["a", "b"] * 8]
    assert times["slow"] == [1.5] and len(times["a"]) == 8 and times["a"] == sorted(times["a"])


def test_the_cpus_part(tmp_path):
    out = tmp_path / "cpu.csv"
    threads = torch.get_num_threads()
    shared = {"threads": [1], "elements": 4096, "repeats": 3, "out": out}
    cpu.run(argparse.Namespace(part="grid", op=["cumsum"], **shared), "abc")
    torch.set_num_threads(threads)
    lines = out.read_text().splitlines()
    assert lines[0] == ",".join(cpu.FIELDS) and len(lines) == 1 + 2 * (8 + 12)
    assert results.load([str(out)]) == []


def test_speed_by_values(tmp_path, capsys, monkeypatch):
    line = [values.Case("softmax", torch.float32, (64, 32), 1, kind) for kind in ("random", "masked", "half 0")]
    monkeypatch.setattr(values, "lines", lambda device, ops: [line])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(sys, "argv", ["values", "--device", "cpu", "--out", str(tmp_path / "v.csv")])
    assert values.main() == 0
    rows = list(csv.DictReader((tmp_path / "v.csv").open()))
    assert [(row["values"], row["provider"]) for row in rows] == list(
        itertools.product(("random", "masked", "half 0"), ("torchreduce", "torch"))
    )
    assert all(float(row["p50_us"]) > 0 for row in rows) and "masked" in capsys.readouterr().out


def test_inputs_have_the_values_that_they_are_named_after():
    def share(kind, found):
        return found(values.Case("sum", torch.float32, (512, 128), 1, kind).input("cpu")).float().mean()

    assert 0.4 < share("masked", torch.isneginf) < 0.6 and 0 < share("inf", torch.isposinf) < 0.02
    assert not values.Case("sum", torch.float32, (512, 128), 1, "masked").input("cpu")[:, 0].isneginf().any()
    assert 0.4 < share("half 0", lambda x: x == 0) < 0.6 and 0 < share("NaN", torch.isnan) < 0.02
    assert 0.03 < share("subnormal", lambda x: (x != 0) & (x.abs() < torch.finfo(x.dtype).tiny)) < 0.07


def test_the_cpus_random_part(tmp_path):
    out = tmp_path / "cpu.csv"
    threads = torch.get_num_threads()
    cpu.run(argparse.Namespace(part="random", op=None, threads=[1], repeats=3, seed=5, cases=2, out=out), "abc")
    torch.set_num_threads(threads)
    lines = out.read_text().splitlines()
    assert lines[0] == ",".join(cpu.RANDOM_FIELDS) and len(lines) == 1 + 2 * 6
    assert list(cpu.draw(5, 2)) == list(cpu.draw(5, 2)) != list(cpu.draw(6, 2))


# ---- tables and verdicts ---------------------------------------------------------------------------------------------


def row(provider, ms, fraction=None, op="cumsum", shape=(bars.N,), form="", part="scan-1d", dtype="float32", note=""):
    ceiling = (0.96, 1.0)[provider == "copy"] if fraction is None else fraction
    return {"gpu": "NVIDIA X1", "driver": "1", "torch": "2", "cuda": "13", "commit": "abc", "part": part, "op": op,
            "dtype": dtype, "shape": "x".join(map(str, shape)), "dim": len(shape) - 1, "form": form,
            "provider": provider, "p50_ms": ms, "fraction": ceiling if ms else "", "note": note}  # fmt: skip


GOOD = [
    row("torchreduce", 0.5), row("torch", 0.8), row("cub", 0.7), row("copy", 0.48),
    row("torchreduce", 0.51, form="reverse"), row("torch", 2000.0, form="reverse", note="timed once"),
    row("torchreduce", 0.002, shape=(2**10,), part="small"), row("cub", 0.0018, shape=(2**10,), part="small"),
    row("torchreduce", 0.5, shape=(16, 2**24), part="scan-rows"),
    row("torch", "", shape=(16, 2**24), part="scan-rows", note="left out: about 46 s"),
]  # fmt: skip


def reduction(provider, ms, fraction=0.99, shape=(2**20, 256), part="reduce-rows", dtype="float32", op="sum"):
    return row(provider, ms, fraction, op=op, shape=shape, part=part, dtype=dtype)


GOOD += [
    reduction("torchreduce", 0.4), reduction("torch", 0.6), reduction("read", 0.396, 1),
    reduction("torchreduce", 0.002, 0.5, (16, 1024)), reduction("torch", 0.002, 0.5, (16, 1024)),
    reduction("torchreduce", 0.002, 0.5, (2**14,), "small"), reduction("cub", 0.0016, 0.6, (2**14,), "small"),
]  # fmt: skip

BAD = {
    "0.9399 of the read, under the bar of 0.94": reduction("torchreduce", 0.4, 0.9399),
    "under the bar of 0.94 and under the floor of 0.7": reduction("torchreduce", 0.4, 0.69),
    "1.050 times torch's, over 1.0": reduction("torchreduce", 0.0021, 0.5, (16, 1024)),
    "1.312 times CUB's, over 1.25": reduction("torchreduce", 0.0021, 0.5, (2**14,), "small"),
    "all reductions: mean speedup 1.375": reduction("torch", 0.55),
    "under the bar of 0.95": row("torchreduce", 0.5, 0.9499),
    "times plain cumsum's": row("torchreduce", 0.52, form="reverse"),
    "times torch's, over 1.03": row("torch", 0.48),
    "times CUB's, over 1.25": row("torchreduce", 0.0023, shape=(2**10,), part="small"),
    "not faster": row("cub", 0.01, shape=(2**22,), part="small"),
    "under the bar of 1.3": row("cub", 0.6, form="reverse"),
    "failed: RuntimeError": row("torchreduce", "", note="failed: RuntimeError: x"),
}


def written(tmp_path, rows):
    path = tmp_path / "x1-scan.csv"
    results.Writer(path, results.FIELDS)(rows)
    return str(path)


def test_check_passes_where_every_bar_is_met(tmp_path, capsys):
    assert compare.main([written(tmp_path, GOOD), "--check"]) == 0
    assert "7 cases, 0 bars missed" in capsys.readouterr().out


@pytest.mark.parametrize("said", BAD)
def test_check_fails_by_each_bar(tmp_path, capsys, said):
    more = [row("torchreduce", 0.01, shape=(2**22,), part="small")]
    more += [row("torch", 0.55, form="reverse")] if said == "under the bar of 1.3" else []
    more += [row("cub", 0.55), row("torchreduce", 0.5)] if said == "under the bar of 1.3" else []
    assert compare.main([written(tmp_path, [*GOOD, *more, BAD[said]]), "--check"]) == 1
    assert said in capsys.readouterr().out


def test_check_fails_where_nothing_was_measured(tmp_path):
    assert compare.main([written(tmp_path, []), "--check"]) == 1


def test_tables_say_bars_and_peers(tmp_path, capsys):
    assert compare.main([written(tmp_path, GOOD)]) == 0
    shown = re.sub(" +", " ", capsys.readouterr().out)
    assert "### cumsum float32" in shown
    assert "| 268435456 dim 0 | 0.5000 | 0.960 | 0.95 / 0.97 | met | cub 0.7000 | 1.40 |" in shown
    assert "| rows of 256 and more | float32 | 0.94 / 0.98 | 0 of 1 | 1 | 0.99 | 0.99 |" in shown
    assert "| 16384 dim 0 | 0.0020 | 0.500 | - | | cub 0.0016 | **0.80** |" in shown
    assert "torch left out: about 46 s" in shown and "torch 2000.0000, once" in shown
    assert "## NVIDIA X1\n\ndriver 1, torch 2, CUDA 13, commit abc" in shown


def test_each_gpu_has_its_own_tables_and_bars(tmp_path, capsys):
    slower = [{**line, "gpu": "NVIDIA X2"} for line in [BAD["under the bar of 0.95"], *GOOD[1:]]]
    path = written(tmp_path, [*slower, *GOOD])
    assert compare.main([path, "--check"]) == 1
    said = capsys.readouterr().out
    assert "NVIDIA X2: cumsum float32" in said and "NVIDIA X1: " not in said and "14 cases, 1 bars missed" in said
    compare.main([path])
    shown = re.sub(" +", " ", capsys.readouterr().out)
    assert shown.count("# cumsum of one row") == 1 and shown.index("## NVIDIA X1") < shown.index("## NVIDIA X2")
    assert "| 0.5000 | 0.960 | 0.95 / 0.97 | met |" in shown and "| 0.5000 | 0.949 | 0.95 / 0.97 | under |" in shown


def test_two_sets_of_results_are_compared(tmp_path, capsys):
    (tmp_path / "old").mkdir()
    old = written(tmp_path / "old", [row("torchreduce", 0.4, 0.99)])
    assert compare.main([written(tmp_path, GOOD), "--against", old]) == 0
    assert "0.4000 | 0.5000 |        1.250 |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        compare.main(["no-such-thing"])


def test_newer_gpus_come_first():
    names = ("NVIDIA A100", "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA Z9")
    assert pages.gpus({"gpu": name} for name in names) == ["NVIDIA A100", "NVIDIA Z9", names[1], "NVIDIA H200"]


def test_fractions_are_rounded_down():
    assert [pages.down(x, 2) for x in (0.999, 0.29, 1.0, 0.57)] == ["0.99", "0.29", "1.00", "0.57"]
    assert [pages.times(x) for x in (0.999, 1.0, 123.9, None)] == ["**0.99**", "1.00", "123", "-"]


@pytest.fixture
def tree(tmp_path):
    """A README with an old table, and a page of results that nothing writes any more."""
    (tmp_path / "README.md").write_text(f"# Head\n\n{pages.MARKERS[0]}\nold\n{pages.MARKERS[1]}\n\nTail\n")
    (tmp_path / pages.FOLDER).mkdir(parents=True)
    (tmp_path / pages.FOLDER / "old.md").write_text("old")
    return tmp_path


def test_a_page_a_part_and_the_readmes_table_are_written(tree, tmp_path):
    assert (
        compare.main([written(tmp_path, [*GOOD, BAD["1.050 times torch's, over 1.0"]]), "--markdown", str(tree)]) == 0
    )
    found = {page.stem: page.read_text() for page in (tree / pages.FOLDER).glob("*.md")}
    assert set(found) == {"README", "losses", "reduce-rows", "scan-1d", "scan-rows", "small"}
    assert "1.050 times torch's, over 1.0" in found["losses"] and "(reduce-rows.md)" in found["README"]
    readme = (tree / "README.md").read_text()
    assert readme.startswith("# Head\n\n") and readme.endswith("\n\nTail\n") and "old" not in readme
    assert "| sum of rows" in readme and "| sum, rows" in found["README"]
    with pytest.raises(SystemExit):
        compare.main(["--markdown", str(tree), "--part", "small"])


def test_what_is_committed_is_what_the_results_say(tree):
    compare.main(["--markdown", str(tree)])
    for page in (tree / pages.FOLDER).glob("*.md"):
        assert page.read_text() == (ROOT / pages.FOLDER / page.name).read_text(), f"{page.name}: run compare --markdown"
    assert {page.name for page in (ROOT / pages.FOLDER).iterdir()} == {p.name for p in (tree / pages.FOLDER).iterdir()}
    tables = [(folder / "README.md").read_text().split(pages.MARKERS[0])[1] for folder in (tree, ROOT)]
    assert len({text.split(pages.MARKERS[1])[0] for text in tables}) == 1, "README.md: run compare --markdown"


def test_every_loss_is_published():
    said = (ROOT / pages.FOLDER / "losses.md").read_text()
    rows = results.load([str(results.RESULTS)])
    for gpu in pages.gpus(rows):
        for key, case in results.by_case(row for row in rows if row["gpu"] == gpu).items():
            if (results.speedup(case) or 1) < 1 or verdicts.verdict(key, case) == "under":
                assert results.name_of(key) in said


def test_plots(tmp_path, capsys):
    shapes = [(bars.N // n, n) for n in (2, 64, 1024)]
    more = [reduction(provider, 0.5, 0.8, shape) for shape in shapes for provider in ("torchreduce", "cub")]
    more += [row("torchreduce", 0.5, shape=shape, part="scan-rows") for shape in shapes]
    assert compare.main([written(tmp_path, GOOD + more), "--plot", str(tmp_path)]) == 0
    assert all((tmp_path / f"{name}.png").stat().st_size > 5000 for name in ("cumsum", "sum", "reductions"))
    compare.main([written(tmp_path, GOOD), "--plot", str(tmp_path / "few")])  # too few points for a picture
    assert not list((tmp_path / "few").iterdir())


# ---- python -m torchreduce bench -------------------------------------------------------------------------------------


@pytest.fixture
def bench(monkeypatch):
    def run_it(*arguments):
        monkeypatch.setattr(sys, "argv", ["torchreduce", "bench", "--device", "cpu", *arguments])
        return main()

    return run_it


def test_the_short_form(bench, tmp_path, capsys):
    plots = ["--plot", str(tmp_path / "b.svg")] if importlib.util.find_spec("matplotlib") else []
    assert bench("--op", "sum", "max", "--dtype", "float32", "--sizes", "10", "1000", "--rows", "3", *plots) == 0
    assert len(re.findall(r"(?:sum|max) +│ float32", capsys.readouterr().out)) == 4
    assert not plots or (tmp_path / "b.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--op", "median"], "got 'median'"), (["--op", "mean", "--dtype", "int32"], "got 'int32'"),
     (["--sizes", "0"], "'0' is no number of elements"), (["--rows", "0"], "must be positive")],
)  # fmt: skip
def test_the_short_form_refuses(bench, capsys, arguments, said):
    with pytest.raises(SystemExit):
        bench(*arguments)
    assert said in capsys.readouterr().err


# ---- shapes that are drawn -------------------------------------------------------------------------------------------


def test_a_seed_draws_the_same_cases_of_every_regime():
    found = list(drawn.cases(5, 130))
    assert found == list(drawn.cases(5, 130)) and found != list(drawn.cases(6, 130))
    for regime in drawn.REGIMES:
        mine = [case for name, _, case in found if name == regime]
        assert len(mine) == 20 and len(set(mine)) >= 10
        for case in mine:
            least = 1 if regime in drawn.SHORT else 2**21
            assert least <= case.elements <= drawn.MOST, case.name
    assert len({case.op for _, _, case in found}) > 15


def test_drawn_cases_are_what_they_are_named_after(monkeypatch):
    """Each regime's cases run on the CPU, their tensors cut down: torch and torchreduce agree."""
    monkeypatch.setattr(cases, "DEVICE", "cpu")
    for regime, dtype, case in drawn.cases(11, 78):
        if dtype != "float32" or case.form:
            continue
        small = replace(case, shape=tuple(min(n, 9 + 2 * d) for d, n in enumerate(case.shape)))
        inputs = small.inputs()
        ours, torchs = (small.run(provider)(inputs) for provider in ("torchreduce", "torch"))
        if case.backward:
            assert [t.shape for t in ours] == [t.shape for t in torchs]
        elif isinstance(ours, tuple):
            assert torch.equal(ours[0], torchs[0]), regime
        else:
            torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-5, msg=case.name)


def test_the_page_of_segments_tells_losses():
    named = ["index_add", "float32", "512", "64", "32", "uniform"]
    case = dict(zip(segments.FIELDS, ["X", "t", "c", "index", *named], strict=False))
    us = {"torchreduce": 10, "torch": 9, "torch det": 25, "torchreduce, once": 8}
    page = segments.page([{**case, "provider": p, "us": str(n), "fraction": f"{4 / n:.3f}"} for p, n in us.items()])
    (line,) = (line for line in page.splitlines() if line.startswith("| index_add"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == [*named, "10", "0.400", "0.500", "**0.90**", "2.50"]


def test_the_page_of_random_shapes_tells_regimes_and_losses():
    rows = []
    for i, (regime, dtype, case) in enumerate(drawn.cases(3, 26)):
        common = {"gpu": "NVIDIA X", "part": case.part, "op": case.op, "dtype": dtype, "shape": case.shape,
                  "dim": case.dim, "form": case.form, "regime": regime, "seed": "3", "commit": "c",
                  "torch": "t"}  # fmt: skip
        rows.append({**common, "provider": "torchreduce", "p50_ms": 1.0, "fraction": 0.5 + i / 1000})
        rows.append({**common, "provider": "torch", "p50_ms": 0.9 if i == 4 else 2.0, "fraction": None})
    page = drawn.page(rows)
    assert "faster by more than 3 % in 1 of" in page and "seed 3" in page
    lines = [line for line in page.splitlines() if line.startswith("| norms of heads")]
    assert "**0.90**" in lines[0] and "1 of 2" in lines[0]
