#!/usr/bin/env python3
"""Include directions of docs/design.md: a file may include only what stands to its left.

    include <- core <- formats <- plan <- cpu | cuda <- headwater.cc <- cli, python
    reference sees include, core types and formats (only cli/check sees it); io sees include, core, formats; cpu and cuda never meet;
    a kernel directory sees common/ and its own path's common/, never a sibling. Third parties stay in their room.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# core's headers name record layouts, so core and formats may see each other's headers; everything else is a strict order.
ALLOWED = {
    "include": {"include"},
    "src/core": {"include", "src/core", "src/formats"},
    "src/formats": {"include", "src/formats", "src/core"},
    "src/reference": {"include", "src/core", "src/formats", "src/reference"},
    "src/plan": {"include", "src/core", "src/formats", "src/plan"},
    "src/cpu": {"include", "src/core", "src/formats", "src/plan", "src/cpu"},
    "src/cuda": {"include", "src/core", "src/formats", "src/plan", "src/cuda"},
    "src/io": {"include", "src/core", "src/formats", "src/io"},
    "src": {"include", "src/core", "src/plan", "src/cpu", "src/cuda", "src"},
    # src/cuda: page-locked memory for the cases of `headwater check`, nothing else.
    "cli": {"include", "src/core", "src/formats", "src/plan", "src/io", "src/reference", "src/cuda", "cli"},
}
# header prefix -> directories that may use it
ROOMS = {
    "hwy/": ("src/cpu",),
    "cute/": ("src/cuda/hopper",),
    "cutlass/": ("src/cuda/hopper",),
    "cuda": ("src/cuda", "cli/device_problem.cc"),
    "cub/": ("src/cuda",),
    "torch/": ("python",),
    "fmt/": ("cli",),
    "CLI/": ("cli",),
    "nlohmann/": ("cli", "src/io"),
    "immintrin": ("src/cpu", "src/core", "cli"),
    "omp.h": ("src/cpu", "cli"),
}
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^">]+)[">]')


def layer(path: str) -> str | None:
    if path.startswith(("headwater/", "include/")):
        return "include"
    best = None  # the longest directory of the list that holds the path
    for name in ALLOWED:
        if path.startswith(name + "/") and (best is None or len(name) > len(best)):
            best = name
    return best


def kernel_dir(path: str) -> list[str] | None:
    """['mma', 'decode'] for src/cuda/mma/decode/x.cuh; None outside kernel directories."""
    parts = path.split("/")
    parts = [part for part in parts if part != "instances"]
    return parts[2:-1] if parts[:2] == ["src", "cuda"] and len(parts) > 4 else None


def problems_of(path: pathlib.Path) -> list[str]:
    name = path.relative_to(ROOT).as_posix()
    own = layer(name)
    if own is None:
        return []
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = match.group(1)
        where = f"{name}:{number}: includes {target}"
        if target.startswith("../") or "/../" in target:
            found.append(f"{where}: relative paths are not used")
            continue
        for prefix, rooms in ROOMS.items():
            if target.startswith(prefix) and not name.startswith(rooms):
                found.append(f"{where}: only under {', '.join(rooms)}")
        to = layer(target)
        if to is not None and to not in ALLOWED[own]:
            found.append(f"{where}: {own} may not see {to}")
        mine, theirs = kernel_dir(name), kernel_dir(target)
        if mine and theirs and mine != theirs and theirs[-1] != "common":
            found.append(f"{where}: a kernel directory sees common/, never a sibling")
    return found


def main() -> int:
    sources = [p for top in ("include", "src", "cli") for p in (ROOT / top).rglob("*") if p.suffix in {".h", ".cc", ".cuh", ".cu", ".inc"}]
    found = [problem for path in sorted(sources) for problem in problems_of(path)]
    print("\n".join(found) if found else f"includes: {len(sources)} files, directions hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
