#!/usr/bin/env bash
# Everything that is checked on a card, one log a part.  From the root of a source tree, in an environment with amk's requirements:
#   fleet/check_card.sh OUT [PART ...]      parts: native vm robust suites shapes sanitizer crowd trace time price rows ranks quant a8 (default: all, in this order)
# The model is looked for in the cache ($AMK_HOME).  One line a part when it ends; exit code: parts that failed.
# CARDS: cards by number, separated by spaces (default: all that nvidia-smi shows, or those of CUDA_VISIBLE_DEVICES).  Each takes one part after
# the other, so that nothing runs beside a part on its card.
set -uo pipefail
cd "$(dirname "$0")/.."
OUT=${1:?"usage: fleet/check_card.sh OUT [PART ...]"}
shift
PARTS=${*:-native vm robust suites shapes sanitizer crowd trace time price rows ranks quant a8}
PYTHON=${PYTHON:-python3}
ARCH=${ARCH:-auto}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
PYTEST="$PYTHON -m pytest -p no:cacheprovider -q -rA --tb=short"

part() {
  case $1 in
    native) make native PY="$PYTHON" ;;
    vm) $PYTEST tests/vm/test_cuda_{device,load,vm,ranks}.py ;;
    robust) $PYTHON -m amk_bench.device_check robust ;;
    suites)  # ranks in a process of their own: a launch that loses the context would take the cells behind it along
      local rc=0 of
      for of in "not ranks" ranks; do
        $PYTEST suites/parity suites/perplexity --arch="$ARCH" --update-reports --ignore=suites/parity/test_random_weights.py -k "$of" || rc=1
      done
      return $rc ;;
    shapes) $PYTEST suites/parity/test_random_weights.py --arch="$ARCH" --update-reports ;;
    sanitizer)
      $PYTHON -m amk_bench.sanitizer --out "$OUT/sanitizer" --at-once 5 &&
        $PYTHON -m amk_bench.sanitizer --out "$OUT/sanitizer" --at-once 4 --mode exact --tools memcheck,synccheck,initcheck-raw,racecheck &&
        $PYTHON -m amk_bench.sanitizer --out "$OUT/sanitizer" --at-once 3 --weights int4-g128,head=int8-g128 --tools memcheck,initcheck-raw,racecheck ;;
    crowd) $PYTHON -m amk_bench.crowd ;;
    trace) $PYTHON -m amk_core.cli trace smollm2-135m --position 1024 --perfetto "$OUT/trace.json" ;;
    time) $PYTHON -m amk_bench.device_check time --out "$OUT/timing.json" ;;
    price) $PYTHON -m amk_bench.invariance --out "$OUT/invariance.json" ;;
    rows) $PYTHON -m amk_bench.rows_check --trace ;;
    ranks) $PYTHON -m amk_bench.rank_check small weights time trace ;;
    quant) $PYTHON -m amk_bench.quant_check ;;
    a8) $PYTHON -m amk_bench.quant_check a8 ;;
    *) echo "no part named $1" && return 2 ;;
  esac
}

# Of several cards: `mkdir` says who takes a part.
taken=$(mktemp -d)
lane() {
  local name start verdict
  [ -n "$1" ] && export CUDA_VISIBLE_DEVICES=$1
  for name in $PARTS; do
    mkdir "$taken/$name" 2>/dev/null || continue
    start=$SECONDS verdict=ok
    part "$name" >"$OUT/$name.txt" 2>&1 || { verdict=FAIL && touch "$taken/$name/failed"; }
    printf '%-4s %-10s %4s s  %s\n' "$verdict" "$name" $((SECONDS - start)) "$(tail -n 1 "$OUT/$name.txt" | cut -c1-120)"
  done
}

if [[ " $PARTS " == *" native "* ]]; then  # the others need it
  PARTS_BEHIND=${PARTS/native/} PARTS=native
  lane ""
  PARTS=$PARTS_BEHIND
fi
visible=${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | paste -sd ' ')}
for card in ${CARDS:-${visible//,/ }}; do lane "$card" & done
[ -n "${CARDS:-$visible}" ] || lane ""
wait
failed=$(find "$taken" -name failed | wc -l)
rm -rf "$taken"
exit "$failed"
