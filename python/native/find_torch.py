"""Prints the folder of the installed torch, if it is 2.11 or newer: of this interpreter's environment, import hooks or not."""
import os
import re
import sysconfig

for key in ("platlib", "purelib"):
    folder = os.path.join(sysconfig.get_paths()[key], "torch")
    try:
        with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
            found = re.search(r"__version__ = '(\d+)\.(\d+)", file.read())
    except OSError:
        continue
    if found and (int(found[1]), int(found[2])) >= (2, 11):
        print(folder)
        break
