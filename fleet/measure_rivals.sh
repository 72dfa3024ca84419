#!/usr/bin/env bash
# AMK against vLLM, llama.cpp and the launch-based step on this machine's card; several models prepare side by side and are timed in turn.
#   fleet/measure_rivals.sh unpack PARTS TO        joins PARTS/*.partaa, *.partab ... and unpacks the archives (*.tar.xz) into folders in TO
#   fleet/measure_rivals.sh measure OUT [SECONDS]  one result file a model and batch in OUT; SECONDS for all of them (default 540)
# From the root of a source tree whose native module is built, in an environment with torch, triton and transformers.  Settings:
#   MODELS      by spaces (default: the four public shapes)       POSITIONS  by commas (default 128,1024,4096)
#   BATCHES     by spaces (default: 1 4 16)                       RIVALS     by commas (default vllm,llama.cpp,pdl-graph and the reasons)
#   AMK_VLLM_PYTHON, AMK_VLLM_PATH, AMK_VLLM_MODES, AMK_LLAMA_CPP, AMK_LLAMA_CPP_VERSION: where the engines are, see docs/baselines.md
# What a call has no time for is an empty cell that says so; with files already in OUT, their model and batch are left out, so that the
# same command goes on.  Exit code: runs without a result.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}

unpack() {
  local parts=${1:?PARTS} to=${2:?TO} first archive name
  mkdir -p "$to"
  for first in "$parts"/*.partaa; do
    [ -e "$first" ] && cat "${first%aa}"?? >"$to/$(basename "${first%.partaa}")"
  done
  for archive in "$parts"/*.tar.xz "$to"/*.tar.xz; do
    [ -e "$archive" ] || continue
    name=$(basename "${archive%.tar.xz}")
    mkdir -p "$to/$name"
    "$PYTHON" -c 'import sys, tarfile; tarfile.open(sys.argv[1], "r:xz").extractall(sys.argv[2], filter="fully_trusted")' \
      "$archive" "$to/$name" && echo "unpacked $to/$name"
  done
}

measure() {
  local out=${1:?OUT} limit=${2:-540} started=$SECONDS failed=0 batch model left running
  local models=${MODELS:-smollm2-135m tinyllama-1.1b llama-3.2-1b llama-3.1-8b} positions=${POSITIONS:-128,1024,4096}
  local rivals=${RIVALS:-vllm,llama.cpp,pdl-graph,hazyresearch,mirage,sglang,tensorrt-llm,automegakernel}
  mkdir -p "$out"
  out=$(cd "$out" && pwd)
  export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
  # A mode is chosen once with care; then one start a model and batch is saved.
  export AMK_VLLM_MODES=${AMK_VLLM_MODES:-inproc-async}
  for batch in ${BATCHES:-1 4 16}; do
    running=()
    for model in $models; do [ -e "$out/$model.b$batch.json" ] || running+=("$model"); done
    left=$((limit - (SECONDS - started)))
    [ ${#running[@]} -eq 0 ] && continue
    [ $left -lt 60 ] && echo "batch $batch: not begun, $left s are left" && continue
    local turn pids=()
    turn=$(mktemp -d)
    for model in "${running[@]}"; do
      timeout -k 10 $left "$PYTHON" -m amk_bench.baselines.run --model "$model" --batch "$batch" --positions "$positions" \
        --baselines "$rivals" --turn "$turn" --of ${#running[@]} --seconds $((left - 40)) --out "$out/$model.b$batch.json" \
        ${COMMIT:+--commit "$COMMIT"} >"$out/$model.b$batch.txt" 2>&1 &
      pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || true; done
    rm -rf "$turn"
    for model in "${running[@]}"; do
      [ -e "$out/$model.b$batch.json" ] || failed=$((failed + 1))
      printf '%-16s batch %-3s %4s s  %s\n' "$model" "$batch" $((SECONDS - started)) "$(tail -n 1 "$out/$model.b$batch.txt" | cut -c1-120)"
    done
  done
  return $failed
}

case ${1:-} in
  unpack | measure) "$@" ;;
  *) sed -n '2,11s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
