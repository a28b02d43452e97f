#!/usr/bin/env python3
"""bench/results/h200.json from the JSON files of one tools/gpu/run.sh: collect.py OUT COMMIT.

Rows by shape set and format; the hash is over everything that the measured kernels are built from (tools/check_results.py).
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import check_results  # noqa: E402

SOURCES = ["src/cuda/**/*", "src/plan/*.h", "src/core/*.h", "src/formats/*.h", "include/headwater/*.h"]


def main() -> int:
    out = pathlib.Path(sys.argv[1])
    rows = []
    device = ""
    for path in sorted(out.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if "rows" not in record:
            continue
        device = record["device"]
        for row in record["rows"]:
            rows.append({"set": pathlib.Path(record["shapes"]).stem, **row})
    result = {
        "device": device,
        "command": "tools/gpu/run.sh BUILD OUT",
        "commit": sys.argv[2],
        "sources": SOURCES,
        "sources_hash": check_results.sources_hash(SOURCES),
        "rows": rows,
    }
    target = check_results.ROOT / "bench" / "results" / "h200.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{target}: {len(rows)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
