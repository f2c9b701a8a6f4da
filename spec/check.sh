#!/usr/bin/env bash
# Checks the model with TLC: each world of a set to exhaustion, or each mutant until its invariant breaks.
#   check.sh quick | long | larger | mutants [name …]
# TLC is the command that runs it, for example TLC='java -Xmx4g -cp /path/to/tla2tools.jar tlc2.TLC'.
set -u
cd "$(dirname "$0")" || exit 2
: "${TLC:=java -Xmx4g -XX:+UseParallelGC -cp tla2tools.jar tlc2.TLC}"
set_=${1:-quick}
shift || true
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0

# run CFG [option …]: leaves TLC's output in $tmp/out.
run() {
  local cfg=$1
  shift
  $TLC -workers 1 -noTE -lncheck final "$@" -metadir "$tmp/states" -config "$cfg" Safety.tla >"$tmp/out" 2>&1
  rm -rf "$tmp/states"
}
figures() {
  grep -E 'distinct states found, |depth of the complete|^Finished in' "$tmp/out" | tail -3 | tr '\n' ' ' |
    sed -E 's/([0-9]+) states generated, ([0-9]+) distinct states found, ([0-9]+) states left on queue\. The depth of the complete state graph search is ([0-9]+)\. Finished in (.*) at .*/\2 distinct states (\1 generated, \3 left), depth \4, \5/'
}

case $set_ in
quick | long | larger)
  : >"$tmp/taken"
  for cfg in "$set_"/*.cfg; do
    name=$(basename "$cfg" .cfg)
    [ $# -eq 0 ] || case " $* " in *" $name "*) ;; *) continue ;; esac
    run "$cfg" -coverage 60
    if grep -q 'No error has been found' "$tmp/out" && grep -q ' 0 states left on queue' "$tmp/out"; then
      echo "ok    $set_/$name: $(figures)"
    else
      failed=1
      echo "FAIL  $set_/$name"
      grep -E -A400 'Error' "$tmp/out" | head -400
    fi
    # "<Action line …>: distinct:total" of TLC's last coverage report
    sed -nE 's/^<([A-Za-z]+) line .*>: ([0-9]+):([0-9]+).*/\1 \3/p' "$tmp/out" >>"$tmp/taken"
  done
  if [ $# -eq 0 ] && [ "$set_" = quick ]; then
    never=$(awk '{ n[$1] += $2 } END { for (a in n) if (n[a] == 0) printf " %s", a }' "$tmp/taken")
    [ -s "$tmp/taken" ] && [ -z "$never" ] && echo "ok    every action was taken" || { failed=1; echo "FAIL  actions never taken:$never"; }
  fi
  ;;
mutants)
  total=0 killed=0
  while IFS=$'\t' read -r name world invariant what; do
    [[ $name == \#* || -z $name ]] && continue
    [ $# -eq 0 ] || case " $* " in *" $name "*) ;; *) continue ;; esac
    total=$((total + 1))
    sed -e "s/^  Mutant = .*/  Mutant = \"$name\"/" -e "s/^INVARIANTS .*/INVARIANTS $invariant/" "$world.cfg" >"$tmp/m.cfg"
    run "$tmp/m.cfg"
    if grep -q "Invariant $invariant is violated" "$tmp/out"; then
      killed=$((killed + 1))
      echo "killed  $name by $invariant in $(grep -c '^State [0-9]' "$tmp/out") states: $what ($(figures))"
      [ $# -eq 0 ] || sed -n '/^State 1:/,/^[0-9]* states generated/p' "$tmp/out" | head -n -1
    else
      failed=1
      echo "ALIVE   $name: $what ($(figures))"
      grep -E 'Error' "$tmp/out" | head -5
    fi
  done <mutants.tsv
  echo "mutants=$total killed=$killed"
  ;;
*)
  echo "usage: check.sh quick | long | larger | mutants [name …]" >&2
  exit 2
  ;;
esac
exit $failed
