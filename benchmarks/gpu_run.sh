#!/usr/bin/env bash
# Everything that needs a GPU, in one run: the machine's facts, the GPU tests, and a check of the gallery.
# Usage: benchmarks/gpu_run.sh OUTPUT_FOLDER
set -uo pipefail
cd "$(dirname "$0")/.."
out=$1
mkdir -p "$out"
export PYTHONPATH="$PWD/src:${PYTHONPATH:-}" OPWRIGHT_CACHE_DIR=/tmp/opwright-cache COLUMNS=110 PYTHONUNBUFFERED=1
python3 -m opwright doctor --json "$out/doctor.json"
if [ "${SKIP_TESTS:-}" = "" ]; then
echo "== opwright demo"
( time timeout 200 python3 -m opwright demo --json "$out/demo.json" ) > "$out/demo.log" 2>&1
grep -v '^opwright: compiling' "$out/demo.log" | tail -40
echo "== tests marked gpu"
timeout 300 python3 -m pytest tests -m gpu -q --tb=short -p no:cacheprovider > "$out/pytest.log" 2>&1
grep -E '^(E  |FAILED|ERROR|[0-9]+ (passed|failed)|Fatal)' "$out/pytest.log" | tail -50
tail -1 "$out/pytest.log"
fi
echo "== bench"
timeout 250 python3 benchmarks/gpu_bench.py "$out" 2>&1 | tail -75
timeout 60 python3 -m opwright.gallery.add --size 1024 --size 4096 > "$out/add-table.txt" 2>&1; tail -20 "$out/add-table.txt"
