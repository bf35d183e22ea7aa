#!/bin/sh
# Runs small launches of every kernel under compute-sanitizer: sh tests/gpu/sanitize.sh [memcheck|racecheck|synccheck ...]
# Needs a CUDA device and compute-sanitizer; exit 1 where a tool reports an error or a test fails.
cd "$(dirname "$0")" || exit 1
export MASKSTREAM_KERNEL_LINES=1
S=test_sample.py V=test_verify.py
failed=0
for tool in ${*:-memcheck synccheck racecheck}; do
  echo "== $tool"
  compute-sanitizer --tool "$tool" --error-exitcode 9 --report-api-errors no --print-limit 20 \
    python3 -m pytest -c pytest.ini -x -p no:cacheprovider \
    "$S::test_every_width_and_dtype[100-bf16]" "$S::test_every_width_and_dtype[8193-bf16]" "$S::test_every_width_and_dtype[8193-fp16]" \
    "$S::test_every_width_and_dtype[8193-fp32]" "$S::test_overlay[20]" "$S::test_pruned_vocabulary_slices_strides_and_pool" \
    "$S::test_the_greedy_launch_is_the_general_one[half]" "test_logprobs.py::test_logprobs[middle-bf16-True]" \
    "test_logprobs.py::test_logprobs[middle-fp32-False]" "test_logprobs.py::test_probability[bf16-True]" \
    "test_logprobs.py::test_probability[fp32-False]" $V test_state.py \
    test_bitmask.py::test_slices_and_pruned_vocabularies || failed=1
done
exit $failed
