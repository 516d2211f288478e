"""A wheel holds all that a machine without a compiler needs, the C kernels and man pages too."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.support.builders import animals, write, zip_bytes
from tests.support.paths import ROOT, WHEEL_SOURCES

PROGRAM = """
import json, sys
from shardprep.image import _pixels, _resample, resample
kernels = [one.__file__ for one in (_pixels, _resample)]
print(json.dumps([resample.BACKEND, *kernels]))
"""


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("cc") is None, reason="a wheel is made where a compiler is")
def test_a_wheel_brings_the_kernels_to_a_machine_without_a_compiler(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in WHEEL_SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, tree / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            tree.mkdir(exist_ok=True)
            shutil.copy(path, tree)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    offline = ["--no-deps", "--no-index"]
    make = [*pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", str(tmp_path), "."]
    subprocess.run(make, cwd=tree, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert re.fullmatch(r"shardprep-[\d.]+-cp311-abi3-linux_\w+\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    shared = {name.partition(".data/data/share/")[2] for name in names if ".data/data/" in name}
    assert shared == {
        *(f"man/man1/{path.name}" for path in (ROOT / "docs" / "man").iterdir()),
        "bash-completion/completions/shardprep",
        "zsh/site-functions/_shardprep",
        "fish/vendor_completions.d/shardprep.fish",
    }
    assert {"shardprep/py.typed", "shardprep/schemas/detection.json"} <= {*names}
    shutil.rmtree(tree)

    clean = tmp_path / "clean"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", clean], check=True)
    python = str(clean / "bin" / "python")
    packages = sysconfig.get_path("purelib", vars={"base": str(clean)})
    here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    # The dependencies are those of this environment; its own shardprep is not among them.
    (clean / packages / "dependencies.pth").write_text("\n".join(here))
    # A path to a checkout would make pip believe that shardprep is installed already.
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    install = [*pip, "--python", python, "install", "--no-compile", *offline, str(wheel)]
    subprocess.run(install, check=True, env=own)
    environment = {"PATH": str(tmp_path / "nowhere"), "HOME": str(tmp_path)}

    def said(*arguments: str) -> str:
        done = subprocess.run(
            [python, *arguments], cwd=tmp_path, env=environment, text=True, check=False,
            capture_output=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    backend, *kernels = json.loads(said("-c", PROGRAM))
    assert backend == "c"
    assert all(kernel.startswith(f"{packages}{os.sep}") for kernel in kernels)
    assert said("-m", "shardprep", "--version").strip()
    assert (clean / "share/man/man1/shardprep-build.1").is_file()
    write(tmp_path / "pets.zip", zip_bytes(animals(60)))
    assert "60 written" in said("-m", "shardprep", "build", "pets.zip", "--shards", "2")
