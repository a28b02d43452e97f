"""Every file of examples/write_problem.py, and the three lines of docs/problem_files.md, runs within tolerance of the oracle."""
import os
import re
import subprocess
import sys
import tempfile

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))
command = os.path.join(os.environ["HEADWATER_BUILD_DIR"], "headwater")


def run(path):
    result = subprocess.run([command, "run", "--check", path], capture_output=True, text=True)
    print(result.stdout + result.stderr)
    assert result.returncode == 0, path
    assert "allowed" in result.stdout


def main():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, os.path.join(root, "examples", "write_problem.py"), folder], check=True)
        names = sorted(os.listdir(folder))
        assert len(names) == 5, names
        for name in names:
            run(os.path.join(folder, name))
        with open(os.path.join(root, "docs", "problem_files.md"), encoding="utf-8") as f:
            code = re.search(r"```python\n(.*?)```", f.read(), re.S).group(1)
        subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
        run(os.path.join(folder, "problem.safetensors"))


if __name__ == "__main__":
    main()
