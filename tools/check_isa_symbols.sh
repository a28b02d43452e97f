#!/bin/sh
# Objects compiled with an instruction set's own flags may define nothing that the linker could hand to code of another level: no weak symbol
# (an inline function, a template such as std::min) and no global one outside headwater::cpu::<isa>. Usage: check_isa_symbols.sh BUILD_DIR...
set -eu
[ $# -gt 0 ] || { echo "usage: $0 BUILD_DIR..." >&2; exit 2; }
nm=${NM:-nm}
bad=0 seen=0
for dir in "$@"; do
  for isa in x86_avx2 x86_avx512 arm_neon; do
    object=$(find "$dir" -name "$isa.cc.o" | head -1)
    [ -n "$object" ] || continue
    seen=$((seen + 1))
    name=${isa#x86_}
    name=${name#arm_}
    # Undefined symbols and local ones (lower case, but for the weak w, v and the unique u) are fine.
    found=$($nm -C "$object" | grep -E '^[0-9a-f]* *[A-TV-Zwvu] ' | grep -vE "^ +w " | grep -vE " headwater::cpu::$name::" || true)
    if [ -n "$found" ]; then
      echo "$object defines symbols that others could be given:"
      echo "$found"
      bad=1
    fi
  done
done
[ $seen -gt 0 ] || { echo "no object of an instruction set under $*" >&2; exit 2; }
[ $bad -eq 0 ] && echo "isa symbols: $seen objects, none leaks"
exit $bad
