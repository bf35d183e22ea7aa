// Weights of given logits as integers: what the selection oracle of the tests takes for its exponential.
#ifndef DTYPE
#define DTYPE 2
#endif
#ifndef NT
#define NT 256
#endif
#include "types.cuh"
#include "weights.cuh"

struct Args {
    const float* x;
    u64* mass;
    i64 n;
    float xmax, temperature;
};

extern "C" __global__ void __launch_bounds__(NT) weights(const __grid_constant__ Args a) {
    i64 i = (i64)blockIdx.x * NT + threadIdx.x;
    if (i < a.n) a.mass[i] = Scale::of(a.xmax, a.temperature).mass(a.x[i]);
}
