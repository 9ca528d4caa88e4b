"""tools/full.py, parts.py and same.py: a proof is of the parts that a check has passed on, and of no other text."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
sys.path.insert(0, str(Path(__file__).parent / "simt"))
import archs
import full
import mutants
import parts
import same

REPOSITORY = Path(__file__).parents[1]
FILES = {
    "csrc/plan/call.h": "#define TR_FOR_EACH_REDUCTION(X) X(Sum)\n#define TR_FOR_EACH_SCAN(X) X(CumSum) X(CumProd)\n",
    "csrc/plan/rowwise_call.h": "#define TR_FOR_EACH_ROWWISE_KIND(X) X(SOFTMAX)\n",
    "csrc/plan/plan.cpp": "",
    "csrc/kernels/common/gpu.cuh": '#include "plan/call.h"\n#include <cstdint>\nint common;  // of all\n',
    "csrc/kernels/common/device.cu": '#include "gpu.cuh"\n',
    "csrc/kernels/common/stream.cu": "",
    "csrc/kernels/scan/rows.cuh": '#if 0\n#include "kernels/common/gpu.cuh"\n#endif\nint scan;\n',
    "csrc/kernels/scan/scan.cu": '// parts: TR_FOR_EACH_SCAN\n#include "rows.cuh"\n',
    "csrc/kernels/reduce/reduce.cu": '// parts: TR_FOR_EACH_REDUCTION\n#include "kernels/common/gpu.cuh"\n',
    "csrc/kernels/rowwise/rowwise.cu": '// parts: TR_FOR_EACH_ROWWISE_KIND\n#include "plan/rowwise_call.h"\n',
    "csrc/kernels/rowwise/weights.cu": '#include "plan/rowwise_call.h"\n',
    "machine": "code",
    ".ci/run": "",
    ".gitignore": "ran\nbuild\nbroken\n",
}
# What stands for the tools of these names: they note that they ran. `broken` has them fail, `edits` a source change.
ARCHS = """import os, sys
print(*sys.argv[2:], os.environ.get("PYTEST_ADDOPTS", ""), file=open("ran", "a"))
sys.exit(os.path.exists("broken") and sys.argv[2] in open("broken").read())
"""
EMULATION = """quick:
\t@echo emulated $(KERNELS) >> ../../ran; [ ! -e ../../edits ] || echo 'int more;' >> ../../csrc/kernels/scan/rows.cuh
\t@! grep -sq emulated ../../broken
"""
SCANS = ["kernels/scan/scan.cu.CumSum", "kernels/scan/scan.cu.CumProd"]
ALL = [
    *("kernels/common/device.cu", "kernels/common/stream.cu", "kernels/reduce/reduce.cu.Sum"),
    *("kernels/rowwise/rowwise.cu.SOFTMAX", "kernels/rowwise/weights.cu", *SCANS),
]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A repository with parts of a line or two, and a Makefile whose steps note that they ran."""
    judges = {name: name for names in (parts.DECIDING, *parts.JUDGES.values()) for name in names}
    stand_ins = {"tools/archs.py": ARCHS, "tests/simt/Makefile": EMULATION, "tests/simt/mutants.py": ""}
    steps = " ".join(full.STEPS)
    recipe = "\t@echo $@ >> ran && [ -z '$(PYTEST_ADDOPTS)' ] && ! grep -sqx $@ broken\n"
    edit = "\t@[ ! -e edits ] || [ $@ != simt ] || echo 'int more;' >> csrc/kernels/scan/rows.cuh\n"
    makefile = f".PHONY: {steps}\n{steps}:\n{recipe}{edit}"
    for name, text in {**judges, **FILES, **stand_ins, "Makefile": makefile}.items():
        path = tmp_path / name / "hip_runtime.h" if name == "tests/simt/hip" else tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    monkeypatch.setattr(full, "ROOT", tmp_path)
    monkeypatch.setattr(parts.project, "ROOT", tmp_path)
    monkeypatch.setattr(full, "compilers", lambda: {"g++": "12", "clang++-19": "19", "nvcc": "13"})
    monkeypatch.setattr(same, "digest", lambda path: (tmp_path / "machine").read_text())
    return tmp_path


def ran(tree):
    """What did since this was last asked."""
    path = tree / "ran"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return [line.strip() for line in lines]


def lacking():
    """The parts that are not proved, by check."""
    proof = full.Proof()
    state = full.State(proof)
    return {check: state.lacking(proof, check) for check in full.QUICK_CHECKS}


def nothing(check=None):
    return {check: [] for check in full.QUICK_CHECKS}


def edit(path, text="int more;\n"):
    path.write_text(path.read_text() + text)


def test_a_quick_run_proves_each_part(tree, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k nothing")  # what would make less of it is left out
    monkeypatch.setenv("MAKEFLAGS", "-i")
    assert lacking()["built"] == ALL
    with pytest.raises(SystemExit, match="emulated"):
        full.proved()
    full.quick()
    built, emulated, amd = ran(tree)
    assert built == " ".join(["sm_90", *ALL])
    assert (
        emulated == "emulated listed_rows reduce rowwise scan"
    )  # device.cu by listed rows, weights.cu with rowwise.cu
    assert amd.split()[0] in full.AMD_ARCHS and amd.split()[1:] == ALL
    full.proved()
    full.quick()
    assert ran(tree) == []
    assert lacking() == nothing()


@pytest.mark.parametrize(
    "name, text, unproved",
    [
        ("csrc/kernels/scan/rows.cuh", "int more;", SCANS),
        ("csrc/kernels/scan/rows.cuh", "#define MORE", SCANS),
        ("csrc/kernels/reduce/reduce.cu", "int more;", ["kernels/reduce/reduce.cu.Sum"]),
        ("csrc/kernels/common/gpu.cuh", "int more;", [n for n in ALL if "rowwise" not in n and "stream" not in n]),
        ("csrc/plan/call.h", "int more;", [n for n in ALL if "rowwise" not in n and "stream" not in n]),
        ("csrc/plan/plan.cpp", "int more;", []),
        ("csrc/kernels/common/gpu.cuh", "  // said otherwise", []),
        ("csrc/kernels/scan/rows.cuh", "\n/* said\n otherwise */\n", []),
        ("tests/simt/mutants.py", "more", []),
        ("README.md", "more", []),
    ],
)
def test_a_change_unproves_the_parts_that_see_it(tree, name, text, unproved):
    (tree / "README.md").touch()
    full.quick()
    ran(tree)
    edit(tree / name, text)
    assert lacking()["built"] == lacking()["amd"] == unproved
    full.quick()
    kernels = sorted({parts.emulation(n) for n in unproved} - {None})
    assert [line for line in ran(tree) if "emulated" in line] == (["emulated " + " ".join(kernels)] if unproved else [])
    assert lacking() == nothing()


def test_other_judges_need_another_proof(tree, monkeypatch):
    full.quick()
    for name in parts.DECIDING:
        edit(tree / name)
    assert all(lacking().values())
    full.quick()
    edit(tree / "tests/simt/emulator.h")
    assert lacking() == {"built": [], "emulated": [n for n in ALL if "stream" not in n], "amd": []}
    full.quick()
    edit(tree / "tools/isa.py", "\n")
    assert lacking() == {"built": ALL, "emulated": [], "amd": ALL}
    full.quick()
    monkeypatch.setattr(parts.project, "NVCC_FLAGS", ["-O2"])
    assert lacking()["built"] == ALL


def test_other_compilers_need_another_proof(tree, monkeypatch):
    full.quick()
    versions = full.compilers()
    for name, expected in (("g++", {"built", "emulated"}), ("nvcc", {"built"}), ("clang++-19", {"amd"})):
        with monkeypatch.context() as changed:
            changed.setattr(full, "compilers", lambda name=name: {**versions, name: "1"})
            assert {check for check, names in lacking().items() if names} == expected
            changed.setattr(full, "compilers", lambda name=name: {**versions, name: "missing"})
            assert lacking() == nothing()  # what is not here compiles nothing
    assert lacking() == nothing()


@pytest.mark.parametrize("check, kind", [("built", "sm_90"), ("emulated", "emulated"), ("amd", "gfx")])
def test_a_quick_run_that_was_cut_off_goes_on(tree, check, kind):
    (tree / "broken").write_text("gfx90a gfx1100" if kind == "gfx" else kind)
    with pytest.raises(SystemExit, match="FAILED"):
        full.quick()
    at = full.QUICK_CHECKS.index(check)
    assert len(ran(tree)) == at + 1
    assert [c for c, names in lacking().items() if names] == list(full.QUICK_CHECKS[at:])
    (tree / "broken").unlink()
    full.quick()
    assert len(ran(tree)) == len(full.QUICK_CHECKS) - at
    full.proved()


def test_a_part_that_changed_meanwhile_is_not_proved(tree):
    (tree / "edits").touch()
    with pytest.raises(SystemExit, match="changed meanwhile") as refused:
        full.quick()
    assert all(name in str(refused.value) for name in SCANS)
    assert lacking()["emulated"] == SCANS  # the others are
    (tree / "edits").unlink()
    full.quick()
    full.proved()


def test_a_full_run_proves_all_checks(tree, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k nothing")
    full.run()
    assert ran(tree) == list(full.STEPS)
    assert lacking() == nothing()
    proof = full.Proof()
    assert full.State(proof).lacking(proof, "nvidia") == []


def test_a_full_run_that_was_cut_off_goes_on(tree):
    """With the step that did not pass; from its start where any file is another."""
    at = full.STEPS.index("simt")
    (tree / "broken").write_text("simt\n")
    for expected in (full.STEPS[: at + 1], full.STEPS[at : at + 1]):
        with pytest.raises(SystemExit, match="simt FAILED"):
            full.run()
        assert ran(tree) == list(expected)
    (tree / "README.md").write_text("more")
    with pytest.raises(SystemExit, match="simt FAILED"):
        full.run()
    assert ran(tree) == list(full.STEPS[: at + 1])
    (tree / "broken").unlink()
    full.run()
    assert ran(tree) == list(full.STEPS[at:])
    assert lacking() == nothing()
    full.run()
    assert ran(tree) == list(full.STEPS)  # that one came to its end


def test_a_full_run_that_is_edited_does_not_prove_what_changed(tree):
    (tree / "edits").touch()
    with pytest.raises(SystemExit, match="changed meanwhile"):
        full.run()
    assert set(SCANS) <= set(lacking()["built"])


def test_a_proof_that_is_damaged_proves_nothing(tree):
    full.quick()
    whole = (tree / full.PROOF).read_text()
    for text in (
        "",
        "{}",
        "<<<<<<< ours\n" + whole,
        "[]",
        '{"parts": []}',
        '{"parts": {"kernels/rowwise/weights.cu": 1}}',
    ):
        (tree / full.PROOF).write_text(text)
        assert lacking()["built"] == ALL
    content = json.loads(whole)
    content["parts"][SCANS[0]]["emulated"] = content["parts"][SCANS[1]]["emulated"]  # of another part
    del content["parts"][SCANS[1]]
    (tree / full.PROOF).write_text(json.dumps(content))
    assert lacking() == {"built": SCANS[1:], "emulated": SCANS, "amd": SCANS[1:]}


def test_the_same_machine_code_takes_a_proof_over(tree):
    full.quick()
    ran(tree)
    edit(tree / "csrc/kernels/scan/rows.cuh")
    full.same_code()
    assert ran(tree) == [" ".join(["sm_90", *SCANS])]
    assert lacking() == nothing()
    edit(tree / "csrc/kernels/scan/rows.cuh", "int again;")
    (tree / "machine").write_text("other code")
    with pytest.raises(SystemExit, match="scan"):
        full.same_code()
    assert lacking()["built"] == SCANS


def test_the_same_machine_code_is_no_proof_where_there_was_none(tree):
    """Of the old text all that other judges, or none, have proved is left out."""
    (tree / "broken").write_text("emulated")
    with pytest.raises(SystemExit, match="FAILED"):
        full.quick()
    edit(tree / "csrc/kernels/scan/rows.cuh")
    with pytest.raises(SystemExit, match="emulated"):
        full.same_code()
    assert lacking()["built"] == [] and lacking()["emulated"] == [n for n in ALL if "stream" not in n]
    (tree / "broken").unlink()
    full.quick()
    edit(tree / "csrc/kernels/scan/rows.cuh", "int again;")
    edit(tree / "tools/isa.py")
    with pytest.raises(SystemExit, match="built"):
        full.same_code()
    assert lacking()["built"] == lacking()["amd"] == ALL


@pytest.mark.parametrize(
    "one, other",
    [
        ("a  +  b; // c", "a + b;\n"),
        ("f(a /* b */, c)", "f(a, c)"),
        ("a\n\n// b\nc", "a c"),
        ("#define F(x) x // y\na", "#define F(x) x\n\n  a"),
        ("#define F(x) \\\n  x\n", "#define F(x)  x\n"),
        ("// /* a\n/* b */\n#if c\n", "#if c\n"),
    ],
)
def test_comments_and_blank_space_are_no_code(one, other):
    assert parts.code(one) == parts.code(other)


@pytest.mark.parametrize(
    "one, other",
    [
        ('"a  b"', '"a b"'),
        ('"a // b"', '"a // c"'),
        ("'\"' /* a */ b", "'\"' b c"),
        ("a + +b", "a ++b"),
        ("a - -b", "a --b"),
        ("a b", "ab"),
        ("#define F(x) x", "#define F (x) x"),
        ("#define F /*\n*/ a", "#define F\na"),
        ("1'000'000 /* a */ + 'b'", "1'000'000 + 'c'"),
        ('R"x(// a)x"', 'R"x(// b)x"'),
    ],
)
def test_all_else_is_code(one, other):
    assert parts.code(one) != parts.code(other)


def test_an_include_that_is_not_found_is_an_error(tree):
    edit(tree / "csrc/kernels/scan/rows.cuh", '\n#include "nowhere.h"\n')
    with pytest.raises(ValueError, match="nowhere"):
        parts.texts()
    edit(tree / "csrc/kernels/reduce/reduce.cu", "\n#include NAME\n")
    with pytest.raises(ValueError):
        parts.closure(tree / "csrc/kernels/reduce/reduce.cu")


# ---- this repository


@pytest.mark.parametrize("source", sorted({source for source, _ in parts.project.kernel_parts()}))
def test_a_parts_text_has_all_that_the_compiler_reads(source):
    command = ["g++", "-std=c++20", "-x", "c++", "-D__HIPCC__", "-DTR_EMULATED_PACKED", "-MM", "-I."]
    command += ["-I../../csrc", f"../../{source}"]
    rule = subprocess.run(command, cwd=REPOSITORY / "tests/simt", capture_output=True, text=True, check=True).stdout
    read = {(REPOSITORY / "tests/simt" / name).resolve() for name in rule.replace("\\\n", " ").split()[1:]}
    texts = parts.closure(REPOSITORY / source)
    assert {path.relative_to(REPOSITORY).as_posix() for path in read if "csrc" in path.parts} <= set(texts)
    assert not any(re.search(r"__LINE__|__FILE__|__COUNTER__", text) for text in texts.values())


def test_the_judges_and_kernels_are_there():
    assert set(full.compilers()) == set(full.COMPILERS) and "missing" not in full.compilers()["g++"]
    assert {name for names in parts.COMPILERS.values() for name in names} == set(full.COMPILERS)
    judges = [*parts.DECIDING, *(name for names in parts.JUDGES.values() for name in names)]
    assert all((REPOSITORY / name).exists() for name in judges)
    makefile = (REPOSITORY / "tests/simt/Makefile").read_text()
    emulated = re.search(r"^ALL_KERNELS := (.*)$", makefile, re.MULTILINE)[1].split()
    assert {parts.emulation(name) for name in parts.names()} - {None} == set(emulated)
    cases = (REPOSITORY / "tests/simt/simt.cpp").read_text()
    assert set(re.findall(r'^    \{"\w+", "(\w+)", \w+\},$', cases, re.MULTILINE)) == set(emulated)
    assert set(full.AMD_ARCHS) <= set(archs.AMD_ARCHS)


def test_the_steps_are_there():
    targets = (REPOSITORY / "Makefile").read_text()
    assert all(re.search(rf"^([\w-]+ )*{step}\b.*:", targets, re.MULTILINE) for step in full.STEPS)
    assert os.access(REPOSITORY / ".ci/run", os.X_OK)


def test_seeded_bugs_fit_the_kernels():
    for mutant in mutants.MUTANTS:
        assert mutant.text()


# ---- machine code

KERNEL = """
__global__ void twice(float* x) { x[threadIdx.x] *= 2; }
template <int N> __global__ void __launch_bounds__(N) add(float* x, int n) {
  __shared__ float y[N];
  y[threadIdx.x] = x[n];
  __syncthreads();
  x[n] = y[N - 1 - threadIdx.x] + 3;
}
void launch(float* x) {
  twice<<<1, 32>>>(x);
  add<64><<<1, 64>>>(x, 3);
  add<32><<<1, 32>>>(x, 3);
}
"""


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """Compiles a source, and returns its object."""
    if not shutil.which("nvcc") or archs.cuobjdump() is None:
        pytest.skip("needs nvcc and cuobjdump: make hip-deps")
    folder = tmp_path_factory.mktemp("code")

    def compiled(name, text):
        (folder / f"{name}.cu").write_text(text)
        command = ["nvcc", "-std=c++20", "-O3", "-arch=sm_90", "-c", f"{name}.cu", "-o", f"{name}.o"]
        subprocess.run(command, cwd=folder, check=True)
        return folder / f"{name}.o"

    return compiled


def test_machine_code_is_compared_by_kernel(objects, capsys):
    old = objects("old", KERNEL)
    first, second = re.split(r"\n(?=template)", KERNEL.strip())
    second, launch = re.split(r"\n(?=void)", second)
    assert same.main(old, objects("moved", f"// moved\n\n{second}\n{first}\n{launch}")) == 0
    assert capsys.readouterr().out == "0 of 3 kernels changed\n"
    assert same.digest(old) == same.digest(old.with_name("moved.o"))
    for what, text in {
        "instruction": KERNEL.replace("*= 2", "*= 3"),
        "shared memory": KERNEL.replace("y[N];", "y[2 * N];"),
        "launch bounds": KERNEL.replace("bounds__(N)", "bounds__(2 * N)"),
    }.items():
        assert same.main(old, objects("changed", text)) == 1, what
        assert "changed: " in capsys.readouterr().out
    assert same.main(old, objects("other", KERNEL.replace("twice", "thrice"))) == 1
    assert "new: thrice(float*)\ngone: twice(float*)\n2 of 4" in capsys.readouterr().out
