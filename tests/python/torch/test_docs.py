"""The quick start of docs/python.md runs top to bottom, within a minute."""

import pathlib
import re
import time
import unittest

TEXT = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "python.md").read_text()


class QuickStart(unittest.TestCase):
    def test_runs(self):
        blocks = re.findall(r"```python\n(.*?)```", TEXT, re.S)
        self.assertEqual(len(blocks), 1)
        start = time.monotonic()
        exec(compile(blocks[0], "docs/python.md", "exec"), {})  # noqa: S102
        self.assertLess(time.monotonic() - start, 60)


if __name__ == "__main__":
    unittest.main()
