// Penalties in place on logits, for engines that sample elsewhere (kernels/plain/penalties.py).
#ifndef DTYPE
#define DTYPE 0
#endif
#ifndef NT
#define NT 256
#endif
#include "types.cuh"
#include "block.cuh"
#include "row.cuh"
#include "overlay.cuh"

struct Args {
    Logit* logits;
    i64 stride;
    OverlayArgs overlay;
    i32 width, vocab_size;
};

DEV Logit from_float(float x) {
#if DTYPE == 2
    return x;
#elif DTYPE == 1
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
#else
    u32 b = __float_as_uint(x);
    return x != x ? 0x7fc0 : (u16)((b + 0x7fff + (b >> 16 & 1)) >> 16);
#endif
}

DEV float largest() { return DTYPE == 2 ? FLT_MAX_ : DTYPE == 1 ? 65504.0f : __uint_as_float(0x7f7f0000u); }

extern "C" __global__ void __launch_bounds__(NT) penalties(const __grid_constant__ Args a) {
    u32 row = blockIdx.y, id = blockIdx.x * NT + threadIdx.x;
    if (id >= a.width) return;
    Penalty penalty(a.overlay, row, a.vocab_size);
    if (!penalty.on) return;
    i32 n = penalty.count(id);
    bool earlier = penalty.was_seen(id);
    if (n <= 0 && !earlier) return;
    Logit* p = a.logits + row * a.stride + id;
    float x = to_float(*p);
    if (is_finite(x)) *p = from_float(penalty.apply(x, n, earlier, largest()));
}
