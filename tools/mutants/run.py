#!/usr/bin/env python3
"""Plants each fault of mutants.toml in a scratch copy, rebuilds, and shows that `headwater check` finds it within 2,000 cases.

    tools/mutants/run.py                       all of them
    tools/mutants/run.py --sample 4 --seconds 420      four, chosen by the day, as far as the time goes
    tools/mutants/run.py --only sink           those whose name holds "sink"

Exit code: 0 every fault was found, 1 one was missed or no longer applies, 2 the sources themselves fail or cannot be built.
"""

import argparse
import datetime
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECK = "headwater_check_only"


def run(command, cwd, timeout=None):
    try:
        done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        return None, str(late.stdout)


def copy_sources(to):
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.decode().split("\0")
    for name in filter(None, files):
        if not (ROOT / name).is_file():
            continue
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name)


def has_avx512():
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    return cpuinfo.exists() and "avx512f" in cpuinfo.read_text()


class Scratch:
    """A copy of the sources and its build directory."""

    def __init__(self, where, jobs):
        self.source = where / "source"
        self.build_dir = where / "build"
        self.jobs = str(jobs)
        copy_sources(self.source)
        # -O1 builds faster, and a fault is a fault at any level. An ISA that this machine cannot run would only cost time.
        command = ["cmake", "-S", str(self.source), "-B", str(self.build_dir), "-G", "Ninja", "-DHEADWATER_CUDA=OFF", "-DCMAKE_BUILD_TYPE=Release",
                   "-DCMAKE_CXX_FLAGS_RELEASE=-O1", f"-DHEADWATER_AVX512={'ON' if has_avx512() else 'OFF'}"]
        if shutil.which("ccache"):
            command.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
        code, text = run(command, where)
        if code != 0:
            sys.exit(fail(text))

    def build(self, target):
        return run(["ninja", "-C", str(self.build_dir), "-j", self.jobs, target], self.source)

    def check(self, cases, seed):
        binary = self.build_dir / "cli" / "check" / CHECK
        return run([str(binary), str(cases), str(seed)], self.source, timeout=900)

    def test(self, name):
        return run([str(self.build_dir / "tests" / "conformance" / name)], self.source, timeout=900)


def fail(text):
    print(text[-3000:], file=sys.stderr)
    return 2


def plant(scratch, mutant):
    """The file as it was, or None when the edit does not apply exactly once."""
    path = scratch.source / mutant["file"]
    before = path.read_text()
    if before.count(mutant["old"]) != 1:
        return None
    path.write_text(before.replace(mutant["old"], mutant["new"]))
    return before


def first_line(text):
    lines = [line for line in text.splitlines() if line.startswith("FAILED") or "[  FAILED  ]" in line]
    return lines[0][:110] if lines else ""


def try_one(scratch, mutant, cases, seed):
    """(verdict, detail): caught, missed, broken."""
    before = plant(scratch, mutant)
    if before is None:
        return "broken", "the edit does not apply exactly once"
    try:
        target = mutant.get("test", CHECK)
        code, text = scratch.build(target)
        if code != 0:
            errors = [line for line in text.splitlines() if "error" in line]
            return "broken", "does not build: " + (errors or text.splitlines())[-1][:200]
        code, text = scratch.test(target) if "test" in mutant else scratch.check(cases, seed)
        if code == 0:
            return "missed", ""
        if code is None:
            return "caught", "it never ended"
        if code < 0:
            return "caught", f"killed by signal {-code}"
        return "caught", first_line(text)
    finally:
        (scratch.source / mutant["file"]).write_text(before)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0, help="try this many, chosen at random")
    parser.add_argument("--sample-seed", default=datetime.date.today().isoformat(), help="what the sample is chosen by (default: the day)")
    parser.add_argument("--seconds", type=float, default=0, help="start no fault that might not end within this many seconds")
    parser.add_argument("--first", type=int, default=1, help="begin with this one of the list, counted from 1")
    parser.add_argument("--only", default="", help="names that hold this text")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--scratch", default="", help="keep the copy and its build here")
    parser.add_argument("--list", action="store_true", help="print the faults and check that each applies exactly once")
    options = parser.parse_args()

    mutants = tomllib.loads((ROOT / "tools" / "mutants" / "mutants.toml").read_text())["mutant"]
    stale = [m["name"] for m in mutants if (ROOT / m["file"]).read_text().count(m["old"]) != 1]
    if options.list:
        for m in mutants:
            print(("STALE  " if m["name"] in stale else "       ") + f"{m['name']:58} {m['file']}")
        return 1 if stale else 0
    for name in stale:
        print(f"FAILED  {name}: the edit does not apply exactly once")
    chosen = [m for m in mutants[options.first - 1 :] if options.only in m["name"] and m["name"] not in stale]
    if options.sample > 0:
        chosen = random.Random(options.sample_seed).sample(chosen, min(options.sample, len(chosen)))

    begin = time.monotonic()
    where = pathlib.Path(options.scratch) if options.scratch else pathlib.Path(tempfile.mkdtemp(prefix="headwater-mutants-"))
    counts = {"caught": 0, "missed": 0, "broken": len(stale)}
    tried = 0
    longest = 0.0
    try:
        where.mkdir(parents=True, exist_ok=True)
        scratch = Scratch(where, options.jobs)
        code, text = scratch.build(CHECK)
        if code != 0:
            return fail(text)
        code, text = scratch.check(200, options.seed)
        if code != 0:
            return fail("the sources without a fault fail the check:\n" + text)
        print(f"built and checked without a fault in {time.monotonic() - begin:.0f} s")
        for mutant in chosen:
            if options.seconds > 0 and time.monotonic() - begin + longest > options.seconds:
                break
            at = time.monotonic()
            verdict, detail = try_one(scratch, mutant, options.cases, options.seed)
            counts[verdict] += 1
            longest = max(longest, time.monotonic() - at)
            tried += 1
            mark = verdict if verdict == "caught" else verdict.upper()
            print(f"{mark:7} {mutant['name']:58} {time.monotonic() - at:5.0f} s  {detail}", flush=True)
    finally:
        if not options.scratch:
            shutil.rmtree(where, ignore_errors=True)
    print(f"{tried} of {len(mutants)} faults tried in {time.monotonic() - begin:.0f} s: {counts['caught']} caught, {counts['missed']} missed, "
          f"{counts['broken']} that do not apply or build")
    return 0 if counts["missed"] == 0 and counts["broken"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
