// p(token) and whole rows of probabilities from row descriptors (kernels/plain/probability.py).
#ifndef DTYPE
#define DTYPE 0
#endif
#ifndef NT
#define NT 256
#endif
#include "types.cuh"
#include "block.cuh"
#include "weights.cuh"
#include "row.cuh"
#include "overlay.cuh"
#include "value.cuh"

struct Args {
    Source source;
    DescriptorArgs descriptor;
    const i32* tokens;  // [rows, n]; null: every column
    float* out;
    i64 out_stride;
    i32 n, pad;
};

extern "C" __global__ void __launch_bounds__(NT) probability(const __grid_constant__ Args a) {
    u32 row = blockIdx.y, i = blockIdx.x * NT + threadIdx.x;
    if (i >= a.n) return;
    u32 column = a.tokens ? find_column(a.source.mask, a.tokens[(i64)row * a.n + i]) : i;
    Kept kept(a.descriptor, row);
    u64 w = kept.total && column < a.source.mask.width ? kept.weight(View(a.source, row).at(column), column) : 0;
    a.out[row * a.out_stride + i] = w ? (float)((double)w / (double)kept.total) : 0.0f;
}
