#!/usr/bin/env python3
"""Sizes that make one ask why (docs/design.md): public header 300 lines, host file 600, device file 500."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def limit(name: str, suffix: str) -> int | None:
    if name.startswith("include/"):
        return 300
    if suffix in {".cu", ".cuh"}:
        return 500
    return 600 if suffix in {".h", ".cc", ".py"} else None


def main() -> int:
    found = []
    for top in ("include", "src", "cli", "python"):
        for path in sorted((ROOT / top).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            most = limit(name, path.suffix) if path.is_file() else None
            if most is not None:
                lines = len(path.read_text(encoding="utf-8").splitlines())
                if lines > most:
                    found.append(f"{name}: {lines} lines, at most {most}")
    print("\n".join(found) if found else "sizes: within the limits")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
