// The mask-aware sampler: one cluster of C CTAs a row, see kernels/plain/sample.py for the meaning.
//
// Versions tried, us on an H200 (256 rows x 128,256 bf16, dense mask; k = 50 and p = 0.9 / temperature / flat p = 0.95):
//  1. candidates above a bound from the first tiles, gathered in the pass: 58 / 57 / 379. Phases called out of line
//     keep the row's state in local memory; gathering stalls the stream (the row alone: 28 us at 1 row).
//  2. one copy of cold code, state in registers, far rows apart: 56 / 47 / 381.
//  3. bounds by two 8-bit digit counts instead of 32 counting barriers; values taken from registers: 50 / 48 / 499 (a
//     sampled bracket of the nucleus, too wide).
//  4. no gathering: after the pass, the vectors of threads whose maximum reaches the final bound are read again; fully
//     allowed tiles skip the blend: 55 / 41 / 389, one warp a candidate; 38 / 41 / 238 with the work shared out.
//  5. best tile and second maximum a thread, so that one tile a candidate is read; bins of single values by predicated
//     counts; warp-aggregated digit counts: 34 / 45 / 155.
//  6. bf16 rows under top-p count single values in the first pass (values.cuh), two passes instead of three, any C:
//     45 / 75 / 84 as a branch of the common path (and 109 to 25 for one row), 31 / 41 / 78 in a function of its own and with
//     a bin for what is not counted in place of branches. In use.
//  Greedy launches: 512 threads x 2 CTAs 20 us (1,024 rows 72), 128 allowed 41 us at 1,024 rows; x 3 with the list of few
//  allowed tokens: 23 (80), 14. In use: the latter.
//
// 1. greedy: one pass; the tile of the first maximum is read again for its column.
// 2. few allowed tokens (C = 1): their ids go to the list straight from the mask, nothing else is read.
// 3. top-k: one pass; lane maxima bound the k-th largest, the tiles that can hold what reaches it are read again.
// 4. top-p on bf16 without an overlay: values counted in the first pass, then the list or one more pass (values.cuh).
// 5. otherwise: maximum, then masses by tiles (backwards, so that L2 helps); top-p by the list of the largest where the
//    nucleus is short, by a sampled bracket (nucleus.cuh, C = 1) where it is long, else by histograms (select.cuh).
// Everything after the maximum is integer arithmetic, so every path and every C give the same token.

#ifndef DTYPE
#define DTYPE 0
#endif
#ifndef NT
#define NT 512
#endif
#ifndef MIN_CTAS
#define MIN_CTAS 2
#endif
#include "types.cuh"
#include "block.cuh"
#include "weights.cuh"
#include "row.cuh"
#include "overlay.cuh"
#include "list.cuh"
#include "peak.cuh"
#include "sampler.cuh"
#include "select.cuh"
#include "nucleus.cuh"

#ifndef GREEDY_ONLY
#define GREEDY_ONLY 0
#endif
#define SPARSE_MAX 1024  // with fewer allowed tokens the row is a list from the start
#define TOP_K_MAX 1024   // above it top-k goes by histograms

extern __shared__ __align__(16) u8 shared_bytes[];

enum { DEAD = 1, NAN_SEEN = 2, POS_INF_SEEN = 4, HELD = 8 };

#include "launch.cuh"
#include "paths.cuh"
#include "values.cuh"

extern "C" __global__ void __launch_bounds__(NT, MIN_CTAS) sample(const __grid_constant__ Args a) {
    Smem& s = *(Smem*)shared_bytes;
    static_assert(sizeof(Smem) <= SMEM_FIXED, "the launcher reserves SMEM_FIXED bytes before the mask words");
    u32* mask = (u32*)(shared_bytes + SMEM_FIXED);
#ifdef TRACE
    if (threadIdx.x < 16) s.trace[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x == 0) s.trace[0] = clock64();
#endif
    const u32 row = blockIdx.x / C;
    const Output out = {a, row};
    if (threadIdx.x == 0) s.listed = s.nan = s.zeros = s.strays = 0;
    i32 kind = status_of(a.mask, row);
    if (kind != GUIDED && kind != UNGUIDED) {
        if (threadIdx.x == 0 && blockIdx.x % C == 0) out.nothing(HELD);
        return;
    }
    u32 slice = ((column_limit(a.mask) + TILE_COLS - 1) / TILE_COLS + C - 1) / C * TILE_WORDS;
    Sampler q(s, a.overlay, a.mask, mask, mask + slice, row);
    const Filters f(a, row);
    u32 allowed = open_row(q.r, a.mask, a.logits + row * a.stride, row, q.b.rank, q.b.tid, q.o.active);
    i32 status = 0;
    const bool top_k = !GREEDY_ONLY && !f.greedy && f.top_k && (u32)f.top_k < q.r.limit;
    const bool top_p = !GREEDY_ONLY && !f.greedy && !top_k && f.nucleus();
    const bool by_values = VALUES && top_p && !q.o.active;  // changed logits have any fp32 value
    const bool nucleus = top_p && !by_values;
    if (by_values)
#pragma unroll 1
        for (u32 i = q.b.tid; i < LIST_CAP; i += NT) s.list[i] = 0;
    __syncthreads();
    if (q.o.active) q.o.build(q.b);
    STAGE(q, 1)

    u64* keys = nullptr;  // a sorted list that decides the row, if there is one
    u64 whole = 0, own = 0;
    u32 n = 0;
    bool done = false, vote = false;
    Cut cut = {NEG_INF, 0};
#if C == 1
    if (q.r.masked && q.b.sum32(allowed) <= SPARSE_MAX) {
        keys = gather_sparse(q, GREEDY_ONLY || f.greedy, n, status);
        u64 best = n ? keys[0] : 0;
        if (!best) { if (q.b.tid == 0) out.nothing(status | DEAD); return; }
        q.xmax = key_value(best);
        if (q.xmax == POS_INF) status |= POS_INF_SEEN;
        if (GREEDY_ONLY || f.greedy || q.xmax == POS_INF) {
            if (q.b.tid == 0) out.one_hot(key_column(best), q.xmax, status);
            return;
        }
        q.scale = Scale::of(q.xmax, f.temperature);
    }
#endif
#if VALUES
    if (!keys && by_values) {
        const Sampler copy = q;
        nucleus_row(copy, f, out);
        done = true;
    } else
#endif
    if (!keys) {
        const u32 step = (q.r.tiles + SAMPLED_TILES - 1) / SAMPLED_TILES;
        Sampler::Peak p = q.first_pass(SAMPLING && nucleus ? (float*)s.list : nullptr, step);
        STAGE(q, 2)
        u64 dense, changed;
        row_maximum(q, p, dense, changed);
        STAGE(q, 3)
        if (q.nan) status |= NAN_SEEN;
        if (!dense && !changed) {
            if (q.b.rank == 0 && q.b.tid == 0) out.nothing(status | DEAD);
            done = true;
        } else if (GREEDY_ONLY || f.greedy || q.xmax == POS_INF) {
            finish_one_hot(q, out, dense, changed, q.xmax == POS_INF ? status | POS_INF_SEEN : status);
            done = true;
        }
#if !GREEDY_ONLY
        else {
            q.scale = Scale::of(q.xmax, f.temperature);
            if (top_k && f.top_k <= TOP_K_MAX && merge_candidates(q, p, f.top_k, keys, n)) {
                done = !keys;  // only the leader goes on
            } else if (cut.value = f.floor(q.xmax); !q.scale.far) {
#if SAMPLING
                if (nucleus && nucleus_beyond(q, p, f.top_p, step)) {
                    STAGE(q, 8)
                    const Sampler copy = q;
                    if (!draw_nucleus(copy, f, out, cut, own, status)) by_histogram(q, f, out, cut, own, status);
                    done = true;
                } else
#endif
                {
                STAGE(q, 7)
                own = q.masses(cut);
                STAGE(q, 4)
                u64 before;
                whole = q.b.cluster_sum(own, before);
                if (nucleus) {
                    if (q.b.tid == 0) s.listed = 0;
                    __syncthreads();
                    vote = merge_candidates(q, p, NUCLEUS_LIST, keys, n);
                } else if (!top_k) {
                    u32 column;
                    if (q.draw(cut, own, before, high64(f.bits, whole), column) && q.b.tid == 0)
                        out.drawn(column, cut, q.xmax, whole, f.temperature, status);
                    done = true;
                }
                }
            }
        }
#endif
    }
    STAGE(q, 5)
#if !GREEDY_ONLY
    if (keys) done = finish_list(q, f, out, keys, n, whole, status);
    if (C > 1 && vote) done = q.b.cluster_max(done) != 0;  // the leader's word
    if (!done) by_histogram(q, f, out, cut, own, status);
#endif
    STAGE(q, 6)
#ifdef TRACE
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x < 16) a.mass[threadIdx.x] = s.trace[threadIdx.x];
#endif
    if (C > 1) q.b.cluster_sync();  // peers may still read this CTA's shared memory
}
