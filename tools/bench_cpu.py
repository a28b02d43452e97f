#!/usr/bin/env python3
"""Measures bench/shapes/cpu.txt several times and writes bench/results/cpu_NAME.json.

    tools/bench_cpu.py BUILD NAME [--runs 3] [--rounds 200] [--scaling-rounds 40] [--out FILE]

A run counts if both its ceilings are at least 95 % of the best known of this machine: of these runs, and of results kept before. A shape's
row is that of the valid run with the second lowest ratio to the floor, so that two of three runs are at least as good; "floor_ratios" holds
all valid ones. A last, shorter run times one thread against all. About three minutes a run on two cores; let nothing else run meanwhile.
Exit code: 0 written, 1 fewer than two valid runs (written all the same, "valid": false), 2 the bench failed.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import check_results

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What the measured code is built from.
SOURCES = ["src/headwater.cc", "src/core/*", "src/formats/*", "src/plan/*", "src/cpu/*", "include/headwater/*.h", "cmake/isa_flags.cmake"]
VALID_SHARE = 0.95
KEYS = ("fma_gflops", "dram_gbps")


def bench(build: pathlib.Path, arguments: list[str], path: pathlib.Path) -> dict:
    command = [str(build / "headwater"), "bench", "bench/shapes/cpu.txt", "--json", str(path), *arguments]
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        sys.exit(2)
    return json.loads(path.read_text(encoding="utf-8"))


def same_machine(a: dict, b: dict) -> bool:
    return a["cpu"] == b["cpu"] and all(a["ceilings"][key] == b["ceilings"][key] for key in ("threads", "isa"))


def best_ceilings(records: list[dict]) -> dict:
    best = dict(records[0]["ceilings"])
    best.pop("lowest_over_best", None)
    for key in KEYS:
        best[key] = max(record["ceilings"][key] for record in records)
    return best


def earlier(record: dict) -> list[dict]:
    found = []
    for path in (ROOT / "bench" / "results").glob("cpu_*.json"):
        kept = json.loads(path.read_text(encoding="utf-8"))
        if same_machine(kept, record):
            found.append(kept)
    return found


def middle_rows(runs: list[dict]) -> list[dict]:
    rows = []
    for index, first in enumerate(runs[0]["rows"]):
        candidates = sorted((run["rows"][index] for run in runs), key=lambda row: row["floor_ratio"])
        row = dict(candidates[min(1, len(candidates) - 1)])
        row["floor_ratios"] = [round(candidate["floor_ratio"], 4) for candidate in candidates]
        if "over_twin" in first:  # of its own: a ratio within one run
            row["over_twin"] = sorted(candidate["over_twin"] for candidate in candidates)[min(1, len(candidates) - 1)]
        rows.append(row)
    return rows


def report(rows: list[dict]) -> str:
    lines = []
    for row in rows:
        goal = ""
        if "reach" in row:
            goal = f"reach {row['reach']:.2f}: " + ("held" if row["floor_ratio"] <= row["reach"] else f"missed by {row['floor_ratio'] / row['reach'] - 1:.0%}")
        elif "over_twin" in row:
            goal = f"{row['over_twin']:.2f} of {row['twin']}"
        ratios = " ".join(f"{ratio:.3f}" for ratio in row["floor_ratios"])
        lines.append(f"{row['name']:30} {ratios:20} {goal}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("name", help="of the machine: zen3_2cores")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--scaling-rounds", type=int, default=40)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    build = options.build.resolve()
    dirty = subprocess.run(["git", "status", "--porcelain", "src", "include"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout != b""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "run.json"
        runs = [bench(build, ["--rounds", str(options.rounds)], path) for _ in range(options.runs)]
        threads = os.cpu_count() or 1 if not hasattr(os, "sched_getaffinity") else len(os.sched_getaffinity(0))
        scaling = []
        if threads > 1 and options.scaling_rounds > 0:
            arguments = ["--rounds", str(options.scaling_rounds), "--plain-rounds", "0", "--threads", f"1,{threads}"]
            scaling = [{"name": row["name"], **row["scaling"]} for row in bench(build, arguments, path)["rows"] if "scaling" in row]
    best = best_ceilings(runs + earlier(runs[0]))
    for run in runs:
        run["valid"] = all(run["ceilings"][key] >= VALID_SHARE * best[key] for key in KEYS)
    valid = [run for run in runs if run["valid"]]
    rows = middle_rows(valid or runs)
    result = {
        "cpu": runs[0]["cpu"],
        "command": f"tools/bench_cpu.py BUILD {options.name} --runs {options.runs} --rounds {options.rounds}",
        "commit": commit + ("-dirty" if dirty else ""),
        "sources": SOURCES,
        "sources_hash": check_results.sources_hash(SOURCES),
        "valid": len(valid) >= 2,
        "ceilings": best,
        "runs": [{key: run[key] for key in ("valid", "ceilings", "geometric_mean_floor_ratio")} for run in runs],
        "rows": rows,
        "scaling": scaling,
    }
    out = options.out or ROOT / "bench" / "results" / f"cpu_{options.name}.json"
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"\n{len(valid)} of {len(runs)} runs valid; ratios of the valid ones, the row kept is the second\n{report(rows)}\n{out}")
    return 0 if result["valid"] else 1


if __name__ == "__main__":
    sys.exit(main())
