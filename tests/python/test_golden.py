"""The committed golden files are exactly what make_golden.py writes, and the script imports nothing of the library."""
import ast
import pathlib
import subprocess
import sys
import tempfile
import unittest

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
SCRIPT = GOLDEN / "make_golden.py"


class Golden(unittest.TestCase):
    def test_files_are_current(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, SCRIPT, folder], check=True)
            made = {p.name: p.read_bytes() for p in pathlib.Path(folder).iterdir()}
        committed = {p.name: p.read_bytes() for p in GOLDEN.glob("*.golden")}
        self.assertEqual(sorted(made), sorted(committed))
        for name, data in made.items():
            self.assertEqual(data, committed[name], f"{name} differs: run tests/golden/make_golden.py")

    def test_script_is_independent(self):
        imported = set()
        for node in ast.walk(ast.parse(SCRIPT.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name.split(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").split(".")[0])
        self.assertLessEqual(imported, {"ml_dtypes", "numpy", "pathlib", "struct", "sys"})

    def test_size(self):
        self.assertLess(sum(p.stat().st_size for p in GOLDEN.glob("*.golden")), 2_000_000)


if __name__ == "__main__":
    unittest.main()
