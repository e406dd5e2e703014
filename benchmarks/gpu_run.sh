#!/usr/bin/env bash
# All measurements and tests that need a GPU, in one run. Usage: benchmarks/gpu_run.sh OUTPUT_FOLDER [STEP...]
# Steps: doctor tests calls graphs cuda conv self gallery check others numpy lltm train demo timing table (default: all, in this order);
# opinfo (of torch's functions OPINFO), corpus (of the checkouts CORPUS of public Triton kernels), cuda_corpus (of those in
# the folder CUDA_CORPUS), ports, ports_tests and ports_checks (of those in PORTS), many, tensor and parallel (all GPUs), cluster (all GPUs, with Ray),
# selftest, offsets, check_times (of OPERATORS), rows and llm (checks and times of the language model's operators LLM_OPS), llm_model, profile (of its VARIANT), npbench (of the checkout NPBENCH). Each has its own time limit. BEFORE names a checkout of an earlier
# version, beside which calls are timed. With PACK=1 all files end in
# one archive, results.tar.gz.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$1
shift
mkdir -p "$out"
export PYTHONPATH="$PWD/src:${PYTHONPATH:-}" OPWRIGHT_CACHE_DIR=/tmp/opwright-cache COLUMNS=110 PYTHONUNBUFFERED=1

doctor() { python3 -m opwright doctor --json "$out/doctor.json"; }
tests() {
  timeout -s INT "${TESTS_LIMIT:-300}" python3 -m pytest ${TESTS:-tests} -m gpu -n "${WORKERS:-4}" -v --tb=short -p no:cacheprovider > "$out/pytest.log" 2>&1
  grep -E '^(E  |FAILED|ERROR|skipped|=* ?[0-9]+ (passed|failed)|Fatal)' "$out/pytest.log" | cut -c1-250 | tail -60
}
cuda() { timeout 120 python3 benchmarks/cuda_bench.py "$out" 2>&1 | grep -v '^opwright: compiling' | tail -90; }
calls() { timeout "${CALLS_LIMIT:-400}" python3 benchmarks/calls.py --rounds "${ROUNDS:-3}" ${BEFORE:+--before "$BEFORE"} --json "$out/calls.json" 2>&1 | tail -20; }
graphs() { timeout 200 python3 benchmarks/cuda_graphs_bench.py "$out" 2>&1 | grep -v '^opwright: compiling' | tail -40; }
check() {
  timeout 150 python3 -m opwright check opwright.gallery.add --device cuda --json "$out/check-add.json" > "$out/check-add.log" 2>&1
  tail -25 "$out/check-add.log"
}
conv() {
  timeout 80 python3 -m opwright bench opwright.gallery.conv1d:conv1d --device cuda --direction forward --iters 12 \
    --kernel mojo_gpu --kernel cuda --kernel triton --json "$out/conv1d.json" > "$out/conv1d.log" 2>&1
  grep -v '^opwright: compiling' "$out/conv1d.log" | tail -40
}
lltm() { timeout 150 python3 benchmarks/lltm_bench.py "$out" ${LLTM:-} 2>&1 | grep -v '^opwright: compiling' | tail -60; }
others() {
  timeout 200 python3 -m opwright check opwright.gallery.lltm opwright.gallery.conv1d opwright.gallery.kmeans opwright.gallery.outer_sum \
    --device cuda --json "$out/check-others.json" > "$out/check-others.log" 2>&1
  tail -60 "$out/check-others.log"
}
gallery() {
  timeout 150 python3 -m opwright bench opwright.gallery.add opwright.gallery.trig opwright.gallery.kmeans opwright.gallery.outer_sum opwright.gallery.conv1d \
    opwright.gallery.lltm --quick --device cuda \
    --json "$out/gallery.json" --html "$out/gallery.html" > "$out/gallery.log" 2>&1
  tail -12 "$out/gallery.log"
}
numpy() { timeout 120 python3 benchmarks/numpy_bench.py --points 20000000 --threads 1 16 2>&1 | grep -v '^opwright: compiling' | tee "$out/numpy.txt"; }
npbench() {
  timeout 540 python3 benchmarks/npbench.py "$NPBENCH" --device cuda --preset "${PRESET:-L}" --limit 60 -o "$out/npbench.json" \
    --only arc_distance azimint_hist compute conv2d_bias doitgen gemm gemver gesummv hdiff k2mm k3mm atax \
    bicg mvt mlp softmax
}
train() {
  for options in "--kernel cuda" "--kernel triton" "--cuda-graph" "--kernel cuda --bfloat16" "--kernel cuda --compile"; do
    echo "-- $options"
    timeout 90 python3 -m opwright.gallery.lltm.train --device cuda --steps 400 $options \
      --json "$out/train${options// /}.json" 2>&1 | grep -E 'steps in|apart|at the end|Error'
  done
  python3 -c "import json,pathlib; p=pathlib.Path('$out'); n=sorted(p.glob('train*.json')); (p/'lltm-training.json').write_text(json.dumps([json.loads(f.read_text()) for f in n])); [f.unlink() for f in n]"
}
demo() {
  timeout 200 python3 -m opwright demo --json "$out/demo.json" > "$out/demo.log" 2>&1
  grep -v '^opwright: compiling' "$out/demo.log" | tail -40
}
check_times() {
  timeout 300 python3 benchmarks/op_times.py "$out/op-times.json" --device cuda --daemon ${OPERATORS:+--only $OPERATORS}
}
rows() {
  timeout 300 python3 benchmarks/op_times.py "$out/row-kernels.json" --device cuda \
    --only llm:{rms_norm,rms_norm_backward,add_rms_norm,add_rms_norm_,layer_norm,layer_norm_backward,softmax,softmax_backward,rope,rope_,cross_entropy,cross_entropy_backward,glu,glu_backward}
}
llm() { timeout "${LLM_LIMIT:-300}" python3 -W ignore benchmarks/llm_ops.py "$out/llm-operators.json" ${LLM_OPS:-} 2>&1 | grep -v '^opwright: compiling' | cut -c1-300 | tail -80; }
llm_model() { timeout "${LLM_LIMIT:-550}" python3 -W ignore benchmarks/llm_model.py "$out/llm-model.json" ${VARIANTS:+--only "$VARIANTS"} 2>&1 | tail -30; }
profile() { timeout 90 python3 -W ignore benchmarks/llm_profile.py "${VARIANT:-opwright}" 2>&1 | grep -v '^opwright: compiling' | cut -c1-130 | tee "$out/llm-profile.txt"; }
self() { OUT="$out" timeout 100 python3 benchmarks/self_comparison.py --quick 2>&1 | tail -40; }
timing() { timeout 250 python3 benchmarks/gpu_bench.py "$out" 2>&1 | tail -75; }
table() { timeout 60 python3 -m opwright.gallery.add --size 1024 --size 4096 > "$out/add-table.txt" 2>&1; tail -20 "$out/add-table.txt"; }

opinfo() {
  timeout 300 python3 -m tests.opinfo.table cuda "$out/opinfo.json" --jobs 8 ${OPINFO:+--only $OPINFO} > "$out/opinfo.log" 2>&1
  tail -25 "$out/opinfo.log"
}
corpus() {
  timeout "${CORPUS_LIMIT:-540}" python3 -m tests.corpus.triton.table $CORPUS --gpu --jobs "${WORKERS:-15}" -o "$out/triton-corpus.json" > "$out/corpus.log" 2>&1
  tail -40 "$out/corpus.log"
}
cuda_corpus() {
  timeout 120 python3 benchmarks/cuda_corpus_values.py "$CUDA_CORPUS" --gpu --jobs 12 --json "$out/cuda-corpus-values.json" > "$out/cuda-corpus.log" 2>&1
  grep -E '^(differs|[0-9]+ kernels|on )' "$out/cuda-corpus.log"
}
ports() {
  timeout 250 python3 benchmarks/ports.py "$PORTS" "$out/ports.json" "extension-cpp cuda" fused-ssim > "$out/ports.log" 2>&1
  grep -E '^==|"status"|"identical"|"complete"|Error' "$out/ports.log" | cut -c1-200
}
ports_tests() {
  timeout "${PORTS_LIMIT:-560}" python3 benchmarks/ports_tests.py "$PORTS" "$out/ports_tests.json" > "$out/ports_tests.log" 2>&1
  grep -E '"(status|exit|passed|failed|skipped|wheel|error)"|Error' "$out/ports_tests.log" | cut -c1-250
}
ports_checks() {
  timeout 395 python3 benchmarks/ports_tests.py "$PORTS" "$out/ports_checks.json" ${EXTENSIONS:-pytorch_spline_conv detectron2 Deformable-DETR/models/ops} \
    --only-checks --device cuda --limit 330 > "$out/ports_checks.log" 2>&1
  grep -E '"(status|seconds|interrupted|error)"|^ +"[a-z]+: |::|Error' "$out/ports_checks.log" | cut -c1-250
}
many() {
  timeout 500 python3 -W ignore benchmarks/many_gpus.py "$out/many-gpus.json" --jobs 6 > "$out/many-gpus.log" 2>&1
  grep -E 'operator=|kernel=|Error' "$out/many-gpus.log" | cut -c1-250
}
tensor() {
  timeout 550 python3 -W ignore benchmarks/tensor_parallel.py "$out/tensor-parallel.json" > "$out/tensor.log" 2>&1
  grep -E 'model=|Error' "$out/tensor.log" | cut -c1-300
}
parallel() { timeout "${LLM_LIMIT:-400}" python3 -W ignore benchmarks/llm_parallel.py "$out/llm-parallel.json" ${PARALLEL:-} 2>&1 | cut -c1-300 | tail -20; }
cluster() {
  timeout 590 python3 -W ignore benchmarks/cluster_gpus.py "$out/cluster-gpus.json" ${CLUSTER:-} --rounds "${ROUNDS:-2}" > "$out/cluster.log" 2>&1
  tail -5 "$out/cluster.log" | cut -c1-300
}
selftest() {
  timeout -s INT 400 python3 -m opwright selftest --device cuda --jobs ${WORKERS:-8} --json "$out/selftest.json" > "$out/selftest.log" 2>&1
  tail -30 "$out/selftest.log"
}
offsets() {
  timeout 200 python3 -m opwright check opwright.gallery.add opwright.gallery.trig opwright.gallery.lltm opwright.gallery.conv1d \
    --device cuda --check "large offsets" --jobs 1 --json "$out/offsets.json" > "$out/offsets.log" 2>&1
  tail -40 "$out/offsets.log"
}

[ $# -gt 0 ] || set -- doctor tests calls graphs cuda conv self gallery check others numpy lltm train demo timing table
for step in "$@"; do
  echo "== $step"
  start=$SECONDS
  "$step"
  echo "   $step: $((SECONDS - start)) s"
done
if [ -n "${PACK:-}" ]; then
  packed=$(mktemp -d)/results.tar.gz
  tar -C "$out" -czf "$packed" . && find "$out" -mindepth 1 -delete && mv "$packed" "$out"
fi
