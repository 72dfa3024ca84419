#!/usr/bin/env bash
# AMK on quantised weights against torch's own weight-only products on the same codes, and against bf16, on this machine's card, position 128.
#   fleet/measure_quant.sh [OUT [SECONDS [JOB ...]]]    in OUT (default reports/data/device) a result file a job and one log; SECONDS for all (default 240)
# A JOB is MODEL/FORMAT, with the options of FORMAT as in --weights, or MODEL/FORMAT/own for the weights of the model that the cache ($AMK_HOME) holds, else random
# ones.  Default: Llama-3.2-1B and Llama-3.1-8B in 8 and 4 bits, SmolLM2's own weights in both.  All prepare side by side and are timed in turn, the small ones first.
# From the root of a source tree whose native module is built, in an environment with torch, triton and transformers.  Settings:
#   POSITIONS   by commas (default 128)      BLOCKS   ABBA blocks a cell (default 8)     RIVALS   by commas, {} for the bits (default: torch-int{},pdl-graph)
#   COMMIT      where there is no checkout   NAME     beginning of the files' names (default DATE-CARD-quant-peers)
# Ends with a table of all cells.  Exit code: jobs without a result.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
OUT=${1:-reports/data/device}
LIMIT=${2:-240}
JOBS=("${@:3}")
EIGHT=int8-bf16,head=int8-bf16
FOUR=bf16,head=int8-bf16
[ ${#JOBS[@]} -eq 0 ] && JOBS=(smollm2-135m/$EIGHT/own smollm2-135m/int4-g64-$FOUR/own llama-3.2-1b/$EIGHT llama-3.2-1b/int4-g128-$FOUR
  llama-3.1-8b/$EIGHT llama-3.1-8b/int4-g128-$FOUR)
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
NAME=${NAME:-$(date -u +%F)-$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0 | awk '{print tolower($NF)}')-quant-peers}
turn=$(mktemp -d)
pids=() files=() logs=() rank=0
for job in "${JOBS[@]}"; do
  IFS=/ read -r model format own <<<"$job"
  file=$OUT/$NAME-$model-${format%%,*}
  files+=("$file.json") logs+=("$turn/$rank.log")
  (
    timeout -k 15 "$LIMIT" "$PYTHON" -m amk_bench.baselines.run --model "$model" --weights "$format" ${own:+--checkpoint "$model"} \
      --positions "${POSITIONS:-128}" --baselines "${RIVALS:-}" --blocks "${BLOCKS:-8}" --no-restart --turn "$turn" --of ${#JOBS[@]} --rank $rank \
      --seconds $((LIMIT - 15)) --out "$file.json" ${COMMIT:+--commit "$COMMIT"} >"$turn/$rank.log" 2>&1
    touch "$turn/gone.$rank-$model-1-$format"
  ) &
  pids+=($!)
  rank=$((rank + 1))
done
wait "${pids[@]}"
cat "${logs[@]}" >"$OUT/$NAME.txt"
failed=0
for i in "${!files[@]}"; do
  [ -e "${files[i]}" ] && continue
  failed=$((failed + 1))
  echo "no result of ${JOBS[i]}: $(tail -n 1 "${logs[i]}" | cut -c1-200)"
done
rm -rf "$turn"
"$PYTHON" -m amk_bench.baselines.show "${files[@]}"
exit $failed
