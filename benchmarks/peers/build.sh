#!/bin/sh
# Builds libpeers.so for the table: sh benchmarks/peers/build.sh FLASHINFER_WHEEL XGRAMMAR_FOLDER OUT_FOLDER CURAND_INCLUDE
# (needs nvcc).
set -e
here=$(dirname "$0"); wheel=$1; xgrammar=$2; out=$3
mkdir -p "$out/src"
python3 - "$wheel" "$out/src" <<'END'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    headers = ("flashinfer/data/include/", "flashinfer/data/cccl/")
    wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if name.startswith(headers)])
END
# xgrammar's device code and dispatch, without the functions that take torch tensors; torch's stream becomes a variable
sed -e '/torch\/extension.h/d' -e '/ATen/d' -e 's/at::cuda::getCurrentCUDAStream().stream()/xg_stream/' \
    -e '/^void ApplyTokenBitmaskInplace(/,$d' "$xgrammar/kernels/apply_token_bitmask_inplace_cuda.cu" > "$out/src/body.cuh"
{ echo '#include <type_traits>'; echo 'static cudaStream_t xg_stream;'; cat "$out/src/body.cuh"; } > "$out/src/xgrammar_kernel.cuh"
data=$out/src/flashinfer/data
nvcc -w -O3 -std=c++17 -arch=sm_90 -Xcompiler -fPIC -shared -cudart static --expt-relaxed-constexpr -I"$out/src" -I"$4" -I"$data/include" \
    -I"$data/cccl/cub" -I"$data/cccl/libcudacxx/include" -I"$data/cccl/thrust" -o "$out/libpeers.so" "$here/peers.cu"
