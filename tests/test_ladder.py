"""The ladder: every rung is right, in the emulation under both sanitizers and on a GPU; which promises they keep; what
the command prints; the lessons and the examples."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchreduce.ladder as ladder
from torchreduce.__main__ import main
from torchreduce.ladder import build, calls, catalog, measure
from torchreduce.ladder.command import difference

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import ladder as article
from benchmarks.run import short_name

ROOT = Path(__file__).parents[1]
OWN = [pytest.param(rung, id=rung.name) for rung in ladder.rungs().values()]
IN_PLACE = {"simple", "converged", "strided", "reversed"}

# What the documents describe, by the rung that is it.
KERNELS = {
    "ROCm reduction tutorial": {
        "naive": "Naive shared reduction",
        "less_divergent": "Reducing thread divergence",
        "conflict_free": "Resolving bank conflicts",
        "first_on_load": "Utilize upper half of the block",
        "last_warp": "Omit superfluous synchronization",
        "unrolled": "Unroll all loops",
        "shuffled": "Communicate using warp-collective functions",
        "warps_first": "Prefer warp communication over shared",
        "items": "Amortize bookkeeping variable overhead",
        "two_pass": "Two-pass reduction",
    },
    "Reduction,": {
        "naive": "1 ",
        "less_divergent": "2 ",
        "conflict_free": "3 ",
        "first_on_load": "4 ",
        "last_warp": "5 ",
    },
    "GPU MODE lecture 9": {
        "sequential": "Serial reduction",
        "simple": "Simple reduce",
        "converged": "Control divergence",
        "shared_memory": "Shared reduce",
        "segmented": "Segmented multi-block",
        "coarsened": "Thread coarsening",
    },
    "Halving reduction": {
        "halving": "first",
        "halving_eight": "second",
        "halving_vector": "third",
        "halving_block": "block-level",
    },
    "Reduction and scan": {
        "sequential": "reduce_cpu",
        "strided": "reduce_gpu",
        "reversed": "reverse order",
        "coarsened_blocks": "reduce_coarsening_gpu",
        "scan_sequential": "scan_cpu",
        "scan_naive": "naive_scan_gpu",
        "kogge_stone": "two barriers",
        "double_buffered": "double buffering",
    },
}


# ---- the list --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", KERNELS)
def test_every_kernel_of_the_documents_is_a_rung(document):
    for name, called in KERNELS[document].items():
        source = ladder.rungs()[name].source
        assert any(document in part and called in part for part in source.split(";")), (name, source)


def test_the_way_to_the_top_is_there():
    assert {"ticket", "in_flight", "sklansky", "scan_items", "look_back"} <= set(ladder.rungs())
    for op in ("sum", "max", "scan"):
        assert [rung.name for rung in ladder.climb(op)][-4:] == ["torchreduce", "cub", "torch", "torch.compile"]


@pytest.mark.parametrize("rung", OWN)
def test_a_rung_is_read_on_one_screen(rung):
    """With its comment; and so is its difference from the one before, which is a rung of the same kind."""
    assert len(rung.text.splitlines()) < catalog.MOST_LINES
    assert rung.idea and rung.change and rung.expect and rung.source and rung.blocks
    assert rung.in_place == (rung.name in IN_PLACE)
    if rung.before:
        assert ladder.rungs()[rung.before].scans == rung.scans
        changed = [line for line in difference(rung).splitlines() if re.match(r"[+-](?![+-])", line)]
        assert 0 < len(changed) < catalog.MOST_LINES


# ---- right, in the emulation -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def emulations():
    """One program a sanitizer, compiled when first asked for; another one after a report, which ends it."""
    made = {}

    def get(sanitizer):
        if sanitizer not in made or made[sanitizer].process.poll() is not None:
            made[sanitizer] = calls.Emulation(sanitizer)
        return made[sanitizer]

    yield get
    for emulation in made.values():
        emulation.close()


def expected(x, op, scans, exclusive):
    """By torch, in a type that nothing is lost in."""
    if not scans:
        return measure.reference(x, op).reshape(1)
    result = measure.reference(x, "scan") if op == "sum" else x.cummax(0).values
    if not exclusive:
        return result
    least = -torch.inf if x.dtype is torch.float32 else -(2**31)
    first = torch.tensor([0 if op == "sum" else least], dtype=x.dtype, device=x.device)
    return torch.cat((first, result[:-1]))


def combinations(rung):
    """Ops and whether a scan is exclusive."""
    return [(op, exclusive) for op in ("sum", "max") for exclusive in ((False, True) if rung.scans else (False,))]


# Below, at and past a warp, a block, and the parts of several launches.
SIZES = {("asan", 32): (1, 2, 31, 33, 1023, 1025, 4100), ("asan", 64): (1, 33, 1023, 4100), ("tsan", 32): (33, 1025),
         ("tsan", 64): (1, 1025)}  # fmt: skip


# Without --slow each sanitizer has one width of wave.
GROUPS = [
    pytest.param(s, wave, marks=[pytest.mark.xdist_group(f"ladder {s}"), *slow])
    for (s, wave), slow in zip(SIZES, ([], [pytest.mark.slow], [pytest.mark.slow], []), strict=True)
]


@pytest.mark.parametrize("rung", OWN)
@pytest.mark.parametrize("sanitizer, wave", GROUPS)
def test_a_rung_is_right_and_clean_in_the_emulation(emulations, rung, sanitizer, wave):
    """Under the sanitizers, whose reports end the program: with them a request fails."""
    emulation = emulations(sanitizer)
    for i, n in enumerate(SIZES[sanitizer, wave]):
        if rung.limit and n > rung.limit:
            n = rung.limit
        some = combinations(rung) if sanitizer == "asan" else combinations(rung)[:: len(combinations(rung)) - 1]
        for k, (op, exclusive) in enumerate(some):
            dtype = calls.DTYPES[(i + k) % 2]
            x = measure.checkable(dtype, n, "cpu", seed=n)
            block = rung.blocks[(i + k) % len(rung.blocks)]
            result, launches = emulation.run(rung, x, op, exclusive, block, wave, seed=i)
            assert torch.equal(result, expected(x, op, rung.scans, exclusive)), (n, dtype, op, exclusive, block)
            assert launches >= 1


@pytest.mark.slow
@pytest.mark.xdist_group("ladder tsan")
def test_without_its_synchronisation_a_rung_is_found_racy(tmp_path, monkeypatch):
    """As the documents have last_warp: its lanes in lockstep, which no GPU of NVIDIA's promises any more."""
    tree = tmp_path / "tree"
    for source in ("csrc/ladder", "csrc/kernels/common", "tests/simt"):
        shutil.copytree(ROOT / source, tree / source)
    bugs = (("reduce", "last_warp", "    warp_barrier();\n", ""),
            ("segments", "ticket", "count_arrival(tickets)", "(*tickets)++"),
            ("scan", "kogge_stone", "    __syncthreads();\n", ""))  # fmt: skip
    for file, rung, there, instead in bugs:
        source = tree / f"csrc/ladder/{file}.cu"
        before, heading, after = source.read_text().partition(f"// ==== {rung}:")
        assert there in after.partition("// ====")[0]
        source.write_text(before + heading + after.replace(there, instead, 1))
    for name, path in (("ROOT", tree), ("SOURCES", tree / "csrc/ladder"), ("SIMT", tree / "tests/simt")):
        monkeypatch.setattr(build, name, path)
    for _, rung, *_ in bugs:
        emulation = calls.Emulation("tsan")
        with pytest.raises(RuntimeError, match="data race"):
            for seed in range(4):
                emulation.run(ladder.rungs()[rung], torch.ones(5000), "sum", False, 256, seed=seed)


# ---- promises --------------------------------------------------------------------------------------------------------


def test_atomics_give_another_sum_in_another_schedule():
    """And what has an order does not; nor does what is the same in any order."""
    ordered = ("coarsened_blocks", "ticket", "naive", "conflict_free")
    by_rung = {name: measure.promises(ladder.rungs()[name], "sum", torch.float32, 5000, "cpu")
               for name in ("segmented", "coarsened", *ordered)}  # fmt: skip
    assert by_rung["segmented"].runs > 1 and by_rung["coarsened"].runs > 1
    assert all(by_rung[name].runs == 1 for name in ordered)
    assert by_rung["naive"].blocks == 1 < by_rung["conflict_free"].blocks
    for op, dtype in (("max", torch.float32), ("sum", torch.int32)):
        assert measure.promises(ladder.rungs()["segmented"], op, dtype, 5000, "cpu") == measure.Promises(1, 1, True)


def test_a_nan_stays(device):
    x = torch.randn(3000, device=device)
    x[1234] = -torch.tensor(torch.nan)
    for name in ("naive", "segmented", "in_flight"):
        assert ladder.run(name, x, "max").isnan() and ladder.run(name, x).isnan(), name
    assert ladder.run("look_back", x, "max")[1234:].isnan().all()


# ---- run -------------------------------------------------------------------------------------------------------------


def test_run_takes_what_a_tensor_may_be(device):
    x = torch.randint(-4, 5, (40, 60), device=device).float()
    for given in (x, x.t(), x[:, 1:], x[::2, 3:], x.requires_grad_()):
        before = given.detach().clone()
        for name in ("strided", "in_flight", "torchreduce"):
            result = ladder.run(name, given)
            assert result.shape == () and result.item() == before.double().sum().item(), name
        scanned = ladder.run("look_back", given)
        assert torch.equal(scanned.reshape(-1), before.reshape(-1).double().cumsum(0).float())
        assert scanned.shape == given.shape and torch.equal(given, before)


def test_run_refuses_what_a_rung_does_not_serve():
    x = torch.ones(3000)
    for error, words, call in (
        (ValueError, "simple takes at most 2048 elements", lambda: ladder.run("simple", x)),
        (ValueError, "'simpel' is none of the rungs", lambda: ladder.run("simpel", x)),
        (ValueError, "at least one element", lambda: ladder.run("naive", x[:0])),
        (ValueError, "blocks of 128, 256, 512 threads, got 96", lambda: ladder.run("ticket", x, block=96)),
        (ValueError, "none to choose threads, got 256", lambda: ladder.run("torch", x, block=256)),
        (ValueError, "op must be one of sum, max, got 'prod'", lambda: ladder.run("naive", x, "prod")),
        (ValueError, "exclusive is for scans", lambda: ladder.run("naive", x, exclusive=True)),
        (ValueError, "cub needs an NVIDIA GPU", lambda: ladder.run("cub", x)),
        (NotImplementedError, "float64", lambda: ladder.run("naive", x.double())),
        (NotImplementedError, "'meta'", lambda: ladder.run("naive", x.to("meta"))),
        (TypeError, "got list", lambda: ladder.run("naive", [1.0])),
    ):
        with pytest.raises(error, match=re.escape(words)):
            call()


def test_peers_serve_the_same_calls(device):
    """What the ladder ends in computes what its rungs do."""
    for dtype in calls.DTYPES:
        x = measure.checkable(dtype, 5000, device)
        for name in ["torchreduce", "torch", *(["cub"] if device == "cuda" else [])]:
            for op in ("sum", "max"):
                for scans in (False, True):
                    result = ladder.run(name, x, op, scans=scans)
                    assert result.dtype == dtype and torch.equal(result.reshape(-1), expected(x, op, scans, False))
        sums = ladder.run("torchreduce", x, scans=True, exclusive=True)
        assert torch.equal(sums, expected(x, "sum", True, True))


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"])
@pytest.mark.parametrize("rung", OWN)
def test_a_rung_is_right_on_a_gpu(device, rung):
    for n in (1, 2, 31, 33, 1023, 1025, 1_000_003):
        n = min(n, rung.limit or n)
        for i, (op, exclusive) in enumerate(combinations(rung)):
            for dtype in calls.DTYPES:
                x = measure.checkable(dtype, n, device, seed=i)
                for block in rung.blocks if n == 1025 else (rung.block,):
                    result = ladder.run(rung.name, x, op, exclusive=exclusive, block=block).reshape(-1)
                    assert torch.equal(result, expected(x, op, rung.scans, exclusive)), (n, op, exclusive, dtype, block)


@pytest.mark.gpu
@pytest.mark.sanitize
@pytest.mark.parametrize("device", ["cuda"])
@pytest.mark.parametrize("rung", OWN)
def test_a_rung_is_clean_on_a_gpu(device, rung):
    for n in (1, 33, 5000):
        n = min(n, rung.limit or n)
        for op, exclusive in combinations(rung):
            x = measure.checkable(torch.float32, n, device)
            result = ladder.run(rung.name, x, op, exclusive=exclusive).reshape(-1)
            assert torch.equal(result, expected(x, op, rung.scans, exclusive)), (n, op, exclusive)


@pytest.mark.gpu
@pytest.mark.big
@pytest.mark.parametrize("device", ["cuda"])
@pytest.mark.parametrize("rung", [rung for rung in OWN if not rung.values[0].limit])
def test_a_rung_is_right_past_what_an_int_counts(device, rung):
    """At 2^31 int32; the scans' results are compared in parts."""
    n, step = 2**31, 2**28
    x = measure.checkable(torch.int32, n, device)
    result = ladder.run(rung.name, x)
    if not rung.scans:
        assert result.item() == measure.reference(x, "sum").item()
        return
    carry = torch.zeros((), dtype=torch.int32, device=device)
    for part, given in zip(result.split(step), x.split(step), strict=True):
        want = given.cumsum(0, dtype=torch.int32).add_(carry)
        assert torch.equal(part, want)
        carry = want[-1]


@pytest.mark.gpu
def test_the_command_measures_on_a_gpu(monkeypatch, capsys, tmp_path):
    files = tmp_path / "rows.csv", tmp_path / "plot.png"
    for op, some in (
        ("sum", ["simple", "strided", "two_pass", "torchreduce", "cub"]),
        ("scan", ["look_back", "torch"]),
    ):
        status, shown = typed(monkeypatch, capsys, "--op", op, "-n", "2^20", "--csv", str(files[0]), "--plot",
                              str(files[1]), "--system", "--rung", *some)  # fmt: skip
        assert status == 0 and "of ceiling" in shown and "system ms" in shown and all(name in shown for name in some)
        lines = files[0].read_text().splitlines()
        assert len(lines) > len(some) and all(re.search(r",1,100,\d+,", line) for line in lines[1:])
        assert files[1].read_bytes()[1:4] == b"PNG"


# ---- the command -----------------------------------------------------------------------------------------------------


def typed(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["torchreduce", "ladder", *arguments])
    status = main()
    return status, capsys.readouterr().out


@pytest.fixture
def without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_the_command_without_a_gpu_checks_and_says_that_it_measured_nothing(
    without_a_gpu, monkeypatch, capsys, tmp_path
):
    file = tmp_path / "rows.csv"
    some = ["simple", "segmented", "last_warp", "torchreduce"]
    status, shown = typed(monkeypatch, capsys, "-n", "2500", "--csv", str(file), "--rung", *some)
    assert status == 0 and "Nothing was measured" in shown and "GB/s" not in shown
    assert all(name in shown for name in some) and "n = 2048" in shown and "yes, synced" in shown
    lines = file.read_text().splitlines()
    assert len(lines) == 5 and all(",,,,,," in line for line in lines[1:])


def test_a_wrong_result_is_shown_and_told(without_a_gpu, monkeypatch, capsys):
    monkeypatch.setattr(measure, "reference", lambda x, op: x.sum() + 1)
    status, shown = typed(monkeypatch, capsys, "-n", "100", "--rung", "naive")
    assert status == 1 and "WRONG" in shown


def test_the_command_lists_and_shows(monkeypatch, capsys):
    status, shown = typed(monkeypatch, capsys, "--list")
    assert status == 0 and all(name in shown for name in (*ladder.rungs(), *catalog.PEERS))
    status, shown = typed(monkeypatch, capsys, "--show", "last_warp")
    assert status == 0 and "last_warp_kernel" in shown and "What differs from first_on_load" in shown
    assert any(line.startswith("+") and "warp_barrier" in line for line in shown.splitlines())


def test_the_command_refuses_what_it_cannot_do(without_a_gpu, monkeypatch, capsys):
    for words, *arguments in (
        ("'naif' is none of the rungs", "--rung", "naif"),
        ("look_back is of another --op than sum", "--rung", "look_back"),
        ("need a GPU", "--plot", "file.png"),
        ("need a GPU", "--system"),
        ("at most 2^20 elements", "-n", "2^21"),
        ("'many' is no number of elements", "-n", "many"),
        ("'0' is no number of elements", "-n", "0"),
        ("Triton code that it makes for a GPU", "--show", "torch.compile"),
        ("the code of cub is not csrc/ladder's", "--show", "cub"),
    ):
        with pytest.raises(SystemExit) as stopped:
            typed(monkeypatch, capsys, *arguments)
        assert stopped.value.code == 2
        assert words in capsys.readouterr().err, words


def test_a_missing_compiler_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CXX", "CUDA_HOME", "ROCM_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match="needs g\\+\\+, which is not on PATH"):
        build.emulated()
    with pytest.raises(RuntimeError, match="needs hipcc, which is not on PATH"):
        build.for_hip("gfx90a")


@pytest.mark.slow
def test_an_installed_package_has_the_sources(tmp_path):
    """And reads them: the same rungs, and a cache of the user's for what is compiled."""
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    copies = tmp_path / "torchreduce" / "ladder" / "sources"
    for file in (ROOT / "csrc" / "ladder").iterdir():
        assert (copies / "csrc" / "ladder" / file.name).read_bytes() == file.read_bytes()
    code = (
        "import importlib.util, sys; from pathlib import Path\n"
        "for name in ('catalog', 'build'):\n"
        "    spec = importlib.util.spec_from_file_location(f'ladder.{name}', Path(sys.argv[1]) / f'{name}.py')\n"
        "    module = sys.modules[f'ladder.{name}'] = importlib.util.module_from_spec(spec)\n"
        "    spec.loader.exec_module(module)\n"
        "print(len(sys.modules['ladder.catalog'].rungs()), module.folder(), module.emulated())\n"
    )
    compiler = tmp_path / "g++"  # which only has to find all that is included
    compiler.write_text(f'#!/bin/sh\nexec {os.environ.get("CXX", "g++")} "$@" -O0\n')
    compiler.chmod(0o755)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "CXX": str(compiler)}
    command = [sys.executable, "-c", code, str(tmp_path / "torchreduce" / "ladder")]
    done = subprocess.run(command, text=True, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    count, folder, program = done.stdout.split()
    assert int(count) == len(ladder.rungs()) and folder == str(tmp_path / "cache" / "torchreduce" / "ladder")
    assert Path(program).is_relative_to(folder) and os.access(program, os.X_OK)


# ---- the article -----------------------------------------------------------------------------------------------------


def test_the_article_says_what_the_results_say():
    """Its tables are the committed rows', every rung is in it, and so is every drawing that is made for it."""
    text = article.ARTICLE.read_text()
    assert article.filled(text) == text
    gpu = article.load("sum-float32")[0]["gpu"]
    assert short_name(gpu) == article.GPU and f"2^28 float32 on an {gpu.split()[0]} {gpu.split()[1]}." in text
    for op in ("sum", "scan"):
        assert all(f"`{rung.name}`" in text for rung in ladder.climb(op))
    drawn = {path.stem for path in article.DRAWINGS.glob("*.png")}
    assert drawn == set(article.PICTURES) == set(re.findall(r"\(plots/ladder/(\w+)\.png\)", text))


@pytest.mark.parametrize("file", sorted(article.RESULTS.glob("*.csv")), ids=lambda file: file.stem)
def test_what_was_measured_was_right_and_whole(file):
    rows = article.load(file.stem.removeprefix(f"{article.GPU}-"))
    assert all(
        row["right"] == "1" and float(row["p20_us"]) <= float(row["p50_us"]) <= float(row["p80_us"]) for row in rows
    )
    assert {row["rung"] for row in rows} == {rung.name for rung in ladder.climb(rows[0]["op"])}
    largest = article.largest(rows)
    for name, row in largest.items():
        assert int(row["n"]) == ({**ladder.rungs(), **catalog.PEERS}[name].limit or int(largest["torch"]["n"]))


@pytest.mark.parametrize("name", article.PICTURES)
def test_drawn_steps_are_what_they_stand_for(name):
    """Step by step, a reduction's leave all indices in the first element, a scan's in each element those up to it."""
    n, steps = article.PICTURES[name]
    held = [{i} for i in range(n)]
    for step in steps:
        read = [set().union(*(held[source] for source in sources)) for _, sources, _ in step]
        for (to, _, _), places in zip(step, read, strict=True):
            held[to] = places
    if name in ("kogge_stone", "sklansky"):
        assert held == [set(range(i + 1)) for i in range(n)]
    elif name == "look_back":
        assert held[3::4] == [set(range(i + 1)) for i in range(3, n, 4)]
    else:
        assert held[0] == set(range(n))


# ---- lessons and examples --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 3, 31, 1000])
def test_reduce_takes_any_associative_op(device, n):
    x = torch.randint(-9, 10, (n,), generator=torch.Generator().manual_seed(n)).to(device)
    zero = torch.tensor(0, device=device)
    assert ladder.reduce(x, zero, torch.add).item() == x.sum().item()

    def compose(f, g):
        """Of maps v -> a v + b modulo 97, first f: associative, and not commutative."""
        return f[0] * g[0] % 97, (f[1] * g[0] + g[1]) % 97

    a, b = ladder.reduce((x, x + 1), (zero + 1, zero), compose)
    value = 5
    for step in x.tolist():
        value = (step * value + step + 1) % 97
    assert (a.item() * 5 + b.item()) % 97 == value


def test_reduce_refuses_what_has_no_order():
    one = torch.tensor(1)
    with pytest.raises(ValueError, match="one dim and one length"):
        ladder.reduce((torch.ones(3), torch.ones(4)), (one, one), lambda a, b: a)
    with pytest.raises(ValueError, match="one dim"):
        ladder.reduce(torch.ones(3, 4), one, torch.add)
    with pytest.raises(ValueError, match="as many identities, got 1"):
        ladder.reduce((torch.ones(3), torch.ones(3)), (one,), lambda a, b: a)


def test_examples_print_what_they_say():
    """The comment at their end, line by line; as scripts of one process, since each would import torch anew."""
    files = sorted((ROOT / "examples" / "ladder").glob("*.py"))
    code = (
        "import runpy, sys\nfor file in sys.argv[1:]:\n    print(chr(0))\n    runpy.run_path(file, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""})  # fmt: skip
    assert files and done.returncode == 0, done.stderr
    for file, printed in zip(files, done.stdout.split("\0\n")[1:], strict=True):
        said = re.search(r"(?:^#.*\n)+\Z", file.read_text(), re.MULTILINE)
        assert [line[2:] for line in said[0].splitlines()] == printed.splitlines(), file.name
        assert f"[{file.name}]({file.name})" in file.with_name("README.md").read_text()
