"""The wheel builds, has what it should, and works in an environment that has nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
from dormouse_client import HeldJob, Worker, __version__
from dormouse_client.testing import Double

done: list[bytes] = []
with Double().client() as client:
    worker = Worker(client)

    @worker.handler("q")
    def handler(job: HeldJob) -> None:
        done.append(job.data)

    client.publish("q", "x", delay=0)
    worker.run_until_idle()
assert done == [b"x"]
print(__version__)
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_is_used_from_an_empty_environment(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == "dormouse_client-0.1.0-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert "dormouse_client/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "conformance"))]
    run(sys.executable, "-m", "venv", "empty", cwd=tmp_path)
    python = tmp_path / "empty" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    assert run(python, "-W", "error", "program.py", cwd=tmp_path) == "0.1.0\n"
    # Its types are available to type checkers of the program.
    checked = run(sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "program.py", cwd=tmp_path)
    assert "no issues found" in checked
