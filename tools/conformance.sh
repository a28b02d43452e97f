#!/bin/sh
# 2,000 random problems on every ISA level this machine has, with a seed of the day; check enforces its own coverage.
set -eu
cd "$(dirname "$0")/.."
seed=${1:-$(date +%Y%j)}
echo "headwater check --cases 2000 --seed $seed"
build/headwater check --cases 2000 --seed "$seed"
for isa in $(build/headwater info --json | python3 -c 'import json, sys; print(*[i["name"] for i in json.load(sys.stdin)["cpu"]["isa"] if i["usable"]])'); do
  echo "headwater check --cases 2000 --seed $seed --isa $isa"
  build/headwater check --cases 2000 --seed "$seed" --isa "$isa"
done
