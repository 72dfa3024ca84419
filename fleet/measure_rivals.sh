#!/usr/bin/env bash
# AMK against vLLM, llama.cpp and the launch-based step on this machine's card; several jobs prepare side by side and are timed in turn.
#   fleet/measure_rivals.sh unpack PARTS TO       unpacks the archives NAME.tar.xz of PARTS (or NAME.tar.xz.partaa, .partab ...) into TO/NAME
#   fleet/measure_rivals.sh measure OUT [SECONDS [JOB ...]]   one result file a job in OUT; SECONDS for all of them (default 540)
# A JOB is MODEL:BATCH, or MODEL:BATCH:MODE+MODE with the modes of vLLM to try; those named are one group, timed in their order.  Default: the four public
# shapes, a group for each of the batches 1, 4, 16.
# From the root of a source tree whose native module is built, in an environment with torch, triton and transformers.  Settings:
#   POSITIONS   by commas (default 128,1024,4096)       RIVALS     by commas (default vllm,llama.cpp,pdl-graph and the reasons)
#   RESTART     0: engines are not restarted half-way   BLOCKS     ABBA blocks a cell (default 8)      COMMIT    where there is no checkout
#   AMK_VLLM_PYTHON, AMK_VLLM_PATH, AMK_VLLM_MODES, AMK_LLAMA_CPP, AMK_LLAMA_CPP_VERSION, AMK_RIVALS_FILES: see docs/baselines.md
# What a call has no time for is an empty cell that says so; jobs whose file is in OUT are left out, so that the same command goes on.
# Exit code: jobs without a result.
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
    if tar -xJf "$archive" -C "$to/$name" 2>/dev/null ||
      "$PYTHON" -c 'import sys, tarfile; tarfile.open(sys.argv[1], "r:xz").extractall(sys.argv[2], filter="fully_trusted")' \
        "$archive" "$to/$name"; then echo "unpacked $to/$name"; else echo "NOT unpacked: $archive"; fi
  done
}

# group OUT SECONDS JOB ...
group() {
  local out=$1 left=$2 job model batch modes name turn pids=() jobs=() failed=0 started=$SECONDS rank=0
  local positions=${POSITIONS:-128,1024,4096}
  local rivals=${RIVALS:-vllm,llama.cpp,pdl-graph,hazyresearch,mirage,sglang,tensorrt-llm,automegakernel}
  for job in "${@:3}"; do
    IFS=: read -r model batch modes <<<"$job"
    [ -e "$out/$model.b$batch.json" ] || jobs+=("$job")
  done
  [ ${#jobs[@]} -eq 0 ] && return 0
  [ "$left" -lt 60 ] && echo "not begun, $left s are left: ${jobs[*]}" && return 0
  turn=$(mktemp -d)
  for job in "${jobs[@]}"; do
    IFS=: read -r model batch modes <<<"$job"
    name=$model.b$batch
    (
      # A mode is chosen once with care; then one start a job is saved.
      modes=${modes:-${AMK_VLLM_MODES:-inproc-async}}
      AMK_VLLM_MODES=${modes//+/,} timeout -k 15 "$left" "$PYTHON" -m amk_bench.baselines.run --model "$model" --batch "$batch" \
        --positions "$positions" --baselines "$rivals" --blocks "${BLOCKS:-8}" --turn "$turn" --of ${#jobs[@]} --rank $rank \
        --seconds $((left - 30)) --out "$out/$name.json" ${COMMIT:+--commit "$COMMIT"} \
        $([ "${RESTART:-1}" = 0 ] && echo --no-restart) >"$out/$name.txt" 2>&1
      touch "$turn/gone.$rank-$model-$batch"
    ) &
    pids+=($!)
    rank=$((rank + 1))
  done
  wait "${pids[@]}"
  rm -rf "$turn"
  for job in "${jobs[@]}"; do
    IFS=: read -r model batch modes <<<"$job"
    name=$model.b$batch
    [ -e "$out/$name.json" ] || failed=$((failed + 1))
    printf '%-16s batch %-3s %4s s  %s\n' "$model" "$batch" $((SECONDS - started)) "$(tail -n 1 "$out/$name.txt" | cut -c1-160)"
  done
  return $failed
}

measure() {
  local out=${1:?OUT} limit=${2:-540} started=$SECONDS failed=0 batch
  mkdir -p "$out"
  out=$(cd "$out" && pwd)
  export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
  if [ $# -gt 2 ]; then
    group "$out" "$limit" "${@:3}" || failed=$?
    return $failed
  fi
  for batch in 1 4 16; do
    group "$out" $((limit - (SECONDS - started))) {smollm2-135m,tinyllama-1.1b,llama-3.2-1b,llama-3.1-8b}:$batch || failed=$((failed + $?))
  done
  return $failed
}

case ${1:-} in
  unpack | measure) "$@" ;;
  *) sed -n '2,13s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
