#!/usr/bin/env python3
"""Are the recorded figures of bench/results/*.json those of the present sources?

Each results file names in "sources" the globs of the files that the measured code is built from, the hash over them ("sources_hash",
comments and blank space stripped) and the commit. On a mismatch prints "stale: measured at COMMIT" and still exits 0: figures age, the
tests decide what is right. `check_results.py --hash GLOB...` prints the hash that a bench writes.
"""
import hashlib
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# String and character literals are kept whole, so that a "//" in one is no comment.
TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|//[^\n]*|/\*.*?\*/', re.S)


def stripped(text: str) -> str:
    kept = TOKEN.sub(lambda m: m.group(0) if m.group(0)[0] in "\"'" else " ", text)
    return "".join(kept.split())


def sources_hash(globs: list[str]) -> str:
    digest = hashlib.sha256()
    files = sorted({path for glob in globs for path in ROOT.glob(glob) if path.is_file()})
    for path in files:
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
        digest.update(stripped(path.read_text(encoding="utf-8")).encode() + b"\0")
    return digest.hexdigest()[:16] if files else "no files"


def main() -> int:
    if sys.argv[1:2] == ["--hash"]:
        print(sources_hash(sys.argv[2:]))
        return 0
    results = sorted((ROOT / "bench" / "results").glob("*.json"))
    for path in results:
        record = json.loads(path.read_text(encoding="utf-8"))
        fresh = sources_hash(record["sources"]) == record["sources_hash"]
        print(f"{path.name}: {'current' if fresh else 'stale: measured at ' + record['commit']}")
    print(f"results: {len(results)} files read")
    return 0


if __name__ == "__main__":
    sys.exit(main())
