// -inf into every column that is not allowed, in place (kernels/plain/masks.py), for engines that sample elsewhere.
//
// One warp a tile of 1,024 columns (512 in fp32): each lane brings one mask word, shuffles hand it round; fully allowed
// vectors are neither read nor written, fully banned ones only written, mixed ones read, blended and written.
// FEW_ROWS: one vector a thread, its own mask byte; with few rows that many more warps beats the shared mask word.

#ifndef DTYPE
#define DTYPE 0
#endif
#ifndef NT
#define NT 256
#endif
#ifndef FEW_ROWS
#define FEW_ROWS 0
#endif
#include "types.cuh"
#include "block.cuh"
#include "row.cuh"

struct Args {
    Logit* logits;
    i64 stride;
    MaskArgs mask;
    i32 tiles, pad;
};

DEV void store_vec(Logit* p, const Vec& v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3])
                 : "memory");
}

DEV Logit neg_inf() {
#if DTYPE == 2
    return NEG_INF;
#else
    return (Logit)NEG_INF_WORD;
#endif
}

// Bits of one vector of the row, then what they ask for.
DEV void finish_vector(Logit* base, bool aligned, u32 width, u32 vector, u32 b) {
    u32 first = vector * VEC;
    if (b == (1u << VEC) - 1 || first >= width) return;
    if (aligned && first + VEC <= width) {
        Vec v;
#pragma unroll
        for (int k = 0; k < 4; ++k) v.w[k] = NEG_INF_WORD;
        if (b) { v = *(const Vec*)(base + first); Row::blend(b, v); }
        store_vec(base + first, v);
        return;
    }
#pragma unroll
    for (u32 e = 0; e < VEC; ++e)
        if (!(b >> e & 1) && first + e < width) base[first + e] = neg_inf();
}

extern "C" __global__ void __launch_bounds__(NT) apply_bitmask(const __grid_constant__ Args a) {
    const u32 row = blockIdx.y, width = a.mask.width;
    if (status_of(a.mask, row) != GUIDED) return;
    const u32* bits = words_of(a.mask, row);
    const u32 limit = bits ? column_limit(a.mask) : 0;
    Logit* base = a.logits + row * a.stride;
    const bool aligned = ((u64)base & 15) == 0, plain = !a.mask.d2t && a.mask.bit_offset == 0;
#if FEW_ROWS
    u32 vector = blockIdx.x * NT + threadIdx.x, first = vector * VEC;
    if (first >= width) return;
    u32 word = plain && (first | 31) < limit ? bits[first >> 5] : column_word(a.mask, bits, first >> 5, limit);
    finish_vector(base, aligned, width, vector, word >> (first & 31) & ((1u << VEC) - 1));
#else
    const u32 lane = threadIdx.x & 31;
    for (u32 tile = blockIdx.x * (NT / 32) + threadIdx.x / 32; tile < a.tiles; tile += gridDim.x * (NT / 32)) {
        u32 w = tile * TILE_WORDS + (lane & (TILE_WORDS - 1));
        u32 word = plain && (w + 1) * 32 <= limit ? bits[w] : column_word(a.mask, bits, w, limit);
        if (__all_sync(FULL, word == FULL)) continue;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            u32 vector = j * 32 + lane;
            u32 b = __shfl_sync(FULL, word, vector * VEC / 32) >> (vector * VEC & 31) & ((1u << VEC) - 1);
            finish_vector(base, aligned, width, tile * TILE_VECS + vector, b);
        }
    }
#endif
}
