// Log-probability and rank of given columns, and the top n of their rows (kernels/plain/logprobs.py), one CTA a row.
//
// raw (the launcher leaves out mask and overlay): maximum and candidates, then the mass. processed: the mass is in the
// descriptor; a greedy row's is taken anew at T = 1. The rank is counted in the list, or in one more pass if it is low.
#ifndef DTYPE
#define DTYPE 0
#endif
#ifndef NT
#define NT 512
#endif
#define MIN_CTAS 2
#include "types.cuh"
#include "block.cuh"
#include "weights.cuh"
#include "row.cuh"
#include "overlay.cuh"
#include "list.cuh"
#include "peak.cuh"
#include "sampler.cuh"
#include "select.cuh"
#include "value.cuh"

struct Args {
    Source source;
    DescriptorArgs descriptor;  // xmax null: raw
    const i32* column;
    float* logprob; i32* rank; i32* top_ids; float* top_logprobs;
    i32 n, pad;
};

#define LEAST_LISTED 32

struct Table {  // a row's log-probabilities
    Scale scale;
    float xmax;
    double log_mass;
    bool raw;

    DEV float of(float x) const {
        double e = raw ? (double)x - (double)xmax : (double)(scale.far ? scale.exponent<true>(x) : scale.exponent<false>(x)) *
                                                        0.693147180559945309;
        return x > NEG_INF ? (float)(e - log_mass) : NEG_INF;
    }
};

// The largest `want` logits or more, sorted; bound: everything at or above it is listed.
DEV u64* largest(Sampler& q, Sampler::Peak& p, u32 want, u32& n, float& bound) {
    u32 key = q.kth_lane(p.lane0(), p.lane1(), want);
    bound = q.bound_of(key);
    q.relist(p, bound);
    __syncthreads();
    const u32 own = q.s.listed;
    if (own > LIST_CAP) {  // many are equal: cut exactly
        Cut cut = {NEG_INF, 0};
        u64 mass;
        if (!select(q, false, want, cut, false, cut, mass)) cut.value = NEG_INF;
        bound = POS_INF;
        __syncthreads();
        if (q.b.tid == 0) q.s.listed = 0;
        __syncthreads();
        each_value(q, [&](float x, u32 column) { if (cut.keeps(x, column)) q.append(order_key(x, column)); });
        __syncthreads();
        n = min(q.s.listed, (u32)LIST_CAP);
        return sort_list(q.b, q.s.list, n, q.s.spare);
    }
    n = own;
    return sort_list(q.b, q.s.list, own, q.s.spare);
}

extern "C" __global__ void __launch_bounds__(NT, MIN_CTAS) logprobs(const __grid_constant__ Args a) {
    extern __shared__ __align__(16) u8 shared_bytes[];
    Smem& s = *(Smem*)shared_bytes;
    static_assert(sizeof(Smem) <= SMEM_FIXED, "the launcher reserves SMEM_FIXED bytes before the mask words");
    u32* mask = (u32*)(shared_bytes + SMEM_FIXED);
    const MaskArgs& m = a.source.mask;
    const u32 row = blockIdx.x, slice = (column_limit(m) + TILE_COLS - 1) / TILE_COLS * TILE_WORDS;
    const i32 column = a.column[row];
    const bool raw = !a.descriptor.xmax;
    for (i32 i = threadIdx.x; i < a.n; i += NT) { a.top_ids[row * a.n + i] = -1; a.top_logprobs[row * a.n + i] = NEG_INF; }
    if (column < 0) {
        if (threadIdx.x == 0) { a.logprob[row] = NEG_INF; a.rank[row] = 0; }
        return;
    }
    if (!raw && a.descriptor.xmax[row] == POS_INF) {
        if (threadIdx.x == 0) {
            a.logprob[row] = 0; a.rank[row] = 1;
            if (a.n) { a.top_ids[row * a.n] = target_of(m, column); a.top_logprobs[row * a.n] = 0; }
        }
        return;
    }
    if (threadIdx.x == 0) { s.listed = 0; s.result = ~0u; s.found = 0; }
    Sampler q(s, a.source.overlay, m, mask, mask + slice, row);
    open_row(q.r, m, a.source.logits + row * a.source.stride, row, 0, q.b.tid, q.o.active);
    __syncthreads();
    if (q.o.active) q.o.build(q.b);
    const u32 want = max(a.n, LEAST_LISTED);
    Sampler::Peak p = q.first_pass();
    u64 best = p.best > NEG_INF ? (u64)ordered(p.best) : 0;
    q.nan = has_nan(p.nan_word);
    q.o.each(q.b, [&](float x, u32) { if (x > NEG_INF) best = best > ordered(x) ? best : ordered(x); });
    q.nan = __syncthreads_or(q.nan);
    best = q.b.max(best);
    q.xmax = unordered((u32)best);
    const float x = raw ? to_float(q.r.base[column]) : fmaxf(q.r.at(column), q.o.at(column));
    const bool processed = !raw && a.descriptor.temperature[row] != 0, certain = q.xmax == POS_INF;
    Cut cut = {NEG_INF, 0};
    if (processed) {
        q.xmax = a.descriptor.xmax[row];
        cut = {a.descriptor.threshold[row], (u32)a.descriptor.tie_column[row] + 1};
    }
    q.scale = Scale::of(certain ? 0.0f : q.xmax, processed ? a.descriptor.temperature[row] : 1.0f);
    u32 n, lower = 0;
    float bound;
    u64* keys = largest(q, p, want, n, bound);
    if (x >= bound) {
        for (u32 i = q.b.tid; i < n; i += NT) lower += key_value(keys[i]) > x;
    } else {
        q.r.each_tile(q.b, [&](u32, const Vec (&d)[4], bool any) {
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int e = 0; e < VEC; ++e) lower += any && element(d[j].w[e / PER_WORD], e % PER_WORD) > x;
        });
        q.o.each(q.b, [&](float y, u32) { lower += y > x; });
    }
    lower = q.b.sum32(lower);
    // the sorted list must outlive the mass pass, which lists nothing
    Table t = {q.scale, q.xmax, 0, raw};
    if (!certain) {
        u64 mass = processed ? (u64)a.descriptor.mass[row] : q.scale.far ? q.masses_exactly(Cut{NEG_INF, 0})
                                                                  : q.masses<true>(Cut{NEG_INF, 0});
        t.log_mass = log((double)mass * 5.684341886080801487e-14);
    } else {
        each_logit(q.r, q.b, [&](float y, u32 c) { if (y == POS_INF) atomicMin(&s.result, c); });
        __syncthreads();
    }
    auto value = [&](float y, u32 c) { return certain ? (c == s.result ? 0.0f : NEG_INF) : t.of(y); };
    if (q.b.tid == 0) { a.logprob[row] = value(x, column); a.rank[row] = lower + 1; }
    for (u32 i = q.b.tid; i < min(n, (u32)a.n); i += NT) {
        float y = key_value(keys[i]);
        if (processed && !cut.keeps(y, key_column(keys[i]))) continue;
        a.top_ids[row * a.n + i] = target_of(m, key_column(keys[i]));
        a.top_logprobs[row * a.n + i] = value(y, key_column(keys[i]));
    }
}
