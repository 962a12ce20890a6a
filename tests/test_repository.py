"""The repository: what it imports, what it ships, and what its files state."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import dualcba

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TOOLS = sorted((ROOT / "tools").rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Return the names of all modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("path", [*SOURCES, *TOOLS], ids=lambda p: str(p.relative_to(ROOT)))
def test_torchvision_is_never_imported(path: Path) -> None:
    assert not any(name.split(".")[0] == "torchvision" for name in imports(path))
    assert "import_module(" not in path.read_text() or "torchvision" not in path.read_text()


def test_importing_the_package_is_lean() -> None:
    """No torchvision, no plotting, no optional extra, and nothing printed."""
    heavy = ["torchvision", "matplotlib", "ray", "wandb", "mlflow", "timm", "sklearn", "pandas"]
    heavy += ["scipy", "torch._dynamo"]
    code = f"import sys, dualcba.cli.app; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_learner_needs_little_besides_torch() -> None:
    """After torch and its parts, importing a learner is a matter of a fifth of a second."""
    code = (
        "import sys, torch; before = set(sys.modules)\n"
        "import dualcba; from dualcba import Learner\n"
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before}))\n"
        "print('torch.onnx' in sys.modules, 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    packages, heavy = done.stdout.splitlines()
    small = {"dualcba", "safetensors", "numpy", "torch", *sys.stdlib_module_names}
    assert set(ast.literal_eval(packages)) <= small
    assert heavy == "False False"


def test_what_is_imported_at_run_time_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [d for group in project["optional-dependencies"].values() for d in group]
    declared = {_bare(d) for d in [*project["dependencies"], *extras]}
    declared |= {"sklearn", "PIL", "mlflow", "_codecs"}  # of scikit-learn, pillow, mlflow-skinny
    used = {name.split(".")[0] for path in SOURCES for name in imports(path)}
    foreign = used - set(sys.stdlib_module_names) - {"dualcba", "__future__"}
    assert foreign <= {name.replace("-", "_") for name in declared}
    development = {_bare(d) for d in project["optional-dependencies"]["dev"]}
    needed = {_bare(d) for d in project["dependencies"]} | {"scipy"}  # scikit-learn needs it
    assert not foreign & (development - needed)


def _bare(requirement: str) -> str:
    return re.split(r"[<>=!~\[ ;]", requirement)[0].lower()


def test_python_version_command_and_layout() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = config["project"]
    assert (project["name"], project["requires-python"]) == ("dualcba", ">=3.11")
    assert project["version"] == dualcba.__version__
    assert project["scripts"]["dualcba"] == "dualcba.cli.app:main"
    assert config["tool"]["mypy"]["strict"] is True
    assert (ROOT / "src" / "dualcba" / "py.typed").exists()


@pytest.mark.parametrize(
    "name",
    [
        "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", ".ci/run", "results",
        "docs/README.md", "docs/architecture.md", "docs/usage.md", "benchmarks", "tools",
    ],
)  # fmt: skip
def test_the_repository_has(name: str) -> None:
    assert (ROOT / name).exists()


def test_make_has_the_targets_and_pins_torch() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test", "lint", "bench"):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert "torch==2.13.0" in makefile
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


OPTIONAL: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]


def test_make_test_installs_every_extra() -> None:
    """So that no test of an extra is skipped there; Triton needs a GPU, and timm torchvision."""
    others = {"cuda", "timm", "dev", "test-extras"}
    named = {f"dualcba[{name}]" for name in OPTIONAL.keys() - others}
    assert named <= set(OPTIONAL["test-extras"])
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^test: \$\(EXTRAS\)", makefile, re.MULTILINE)
    assert '-e ".[test-extras]" "$(TORCH)"' in makefile


@pytest.mark.skipif(os.environ.get("DUALCBA_EXTRAS") != "all", reason="`make test` has all extras")
def test_every_extra_is_installed() -> None:
    own = [text.removeprefix("dualcba[").rstrip("]") for text in OPTIONAL["test-extras"]]
    wanted = {_bare(d) for name in own for d in OPTIONAL.get(name, [name])}
    assert {"ray", "pyarrow"} <= wanted
    installed = {found.metadata["Name"].lower() for found in metadata.distributions()}
    assert wanted <= installed


def test_the_package_needs_neither_tools_nor_benchmarks_and_they_not_each_other() -> None:
    def packages(paths: list[Path]) -> set[str]:
        return {name.split(".")[0] for path in paths for name in imports(path)}

    assert not packages(SOURCES) & {"tools", "benchmarks", "tests"}
    assert not packages(TOOLS) & {"benchmarks", "tests"}
    assert not packages(BENCHMARKS) & {"tools", "tests"}


def test_benchmarks_time_and_tools_do_not() -> None:
    """What is measured in turns is measured by `dualcba.bench.timing`, and nowhere else."""
    clocks = {path.name for path in BENCHMARKS if "perf_counter" in path.read_text("utf-8")}
    # whole runs, start-up, parts, and single calls in a prequential loop
    assert clocks == {"abreast.py", "learners.py", "parts.py", "river_batches.py"}
    assert not any("dualcba.bench" in imports(path) for path in TOOLS)
    assert not any("perf_counter" in path.read_text("utf-8") for path in TOOLS)


def test_tests_mirror_the_package() -> None:
    rooms = {path.parent.name for path in (ROOT / "src" / "dualcba").glob("*/__init__.py")}
    tested = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert rooms <= tested
    assert tested - rooms - {"__pycache__"} == {"tools"}


@pytest.mark.parametrize("name", dualcba.__all__)
def test_public_names_are_documented(name: str) -> None:
    assert getattr(dualcba, name).__doc__


def test_one_sentence_says_how_to_install_an_extra() -> None:
    sources = (ROOT / "src" / "dualcba").rglob("*.py")
    named = [path.name for path in sources if "pip install" in path.read_text("utf-8")]
    assert named == ["errors.py"]


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "dualcba", "list", "settings"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "online" in done.stdout
