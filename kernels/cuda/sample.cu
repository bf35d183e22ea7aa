// The mask-aware sampler: one cluster of C CTAs a row, see kernels/plain/sample.py for the meaning.
//
// Versions tried (256 rows x 128,256 bf16 on an H200): see benchmarks/RESULTS.md, "Kernels".
//
// 1. greedy: one pass; the tile of the first maximum is read again for its column.
// 2. few allowed tokens (C = 1): their ids go to the list straight from the mask, nothing else is read.
// 3. top-k: one pass; the first tiles give a lower bound of the k-th largest, what reaches it goes to the list.
// 4. otherwise: maximum, then masses by tiles (backwards, so that L2 helps); top-p first tries the list of the largest
//    logits, and falls back to histograms of ordered keys (select.cuh) for flat rows.
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

struct Args {
    const Logit* logits;
    i64 stride;
    MaskArgs mask;
    RowArgs rows;
    OverlayArgs overlay;
    i32* token; i32* status; float* xmax; float* threshold; i32* tie_column; i64* mass; float* temperature;
    i32* column;  // of the token, for launches that follow
    i32 keep_ties, pad;
};

struct Output {
    const Args& a;
    u32 row;

    DEV void descriptor(float xmax, float threshold, i32 tie, u64 mass, float temperature) const {
        if (!a.xmax) return;
        a.xmax[row] = xmax; a.threshold[row] = threshold; a.tie_column[row] = tie;
        a.mass[row] = (i64)mass; a.temperature[row] = temperature;
    }
    DEV void token(i32 column, i32 status) const {
        a.token[row] = column < 0 ? -1 : target_of(a.mask, column);
        a.status[row] = status;
        if (a.column) a.column[row] = column;
    }
    DEV void nothing(i32 status) const {
        token(-1, status);
        descriptor(NEG_INF, POS_INF, -1, 0, 0.0f);
    }
    DEV void one_hot(u32 column, float x, i32 status) const {
        token((i32)column, status);
        descriptor(x, x, (i32)column, (u64)1 << 44, 0.0f);
    }
    DEV void drawn(u32 column, Cut cut, float xmax, u64 mass, float temperature, i32 status) const {
        token((i32)column, status);
        descriptor(xmax, cut.value, cut.cols > 0x7fffffffu ? 0x7fffffff : (i32)cut.cols - 1, mass, temperature);
    }
};

struct Filters {
    float temperature, top_p, min_p;
    i32 top_k;
    u64 bits;
    bool greedy, keep_ties;

    DEV Filters(const Args& a, u32 row) {
        temperature = a.rows.temperature[row];
        top_k = a.rows.top_k[row]; top_p = a.rows.top_p[row]; min_p = a.rows.min_p[row];
        greedy = !(temperature > 0) || top_k == 1 || top_p <= 0;
        keep_ties = a.keep_ties;
        if (top_k < 0) top_k = 0;
        bits = GREEDY_ONLY ? 0 : random_bits((u64)a.rows.seed[row], (u64)a.rows.offset[row], (u32)a.rows.purpose[row]);
    }
    DEV bool nucleus() const { return top_p < 1; }
    DEV float floor(float xmax) const { return min_p > 0 ? below(min_p_threshold(xmax, temperature, min_p)) : NEG_INF; }
};

// All filters and the draw on a sorted list that holds every candidate, or, with whole > 0, the largest of a row whose
// mass is whole: then false if the nucleus does not end within the list.
DEV bool finish_list(Sampler& q, const Filters& f, const Output& out, u64* keys, u32 n, u64 whole, i32 status) {
    Block& b = q.b;
    u64* work = keys == q.s.list ? q.s.spare : q.s.list;
    u32 m = n;
    if (f.min_p > 0) {
        const float floor = f.floor(q.xmax);
        u32 mine = 0;
#pragma unroll 1
        for (u32 i = b.tid; i < n; i += NT) mine += key_value(keys[i]) > floor;
        m = b.sum32(mine);
    }
    if (f.top_k && (u32)f.top_k < m) {
        u32 k = f.top_k;
        if (f.keep_ties) {
            u32 mine = 0;
#pragma unroll 1
            for (u32 i = b.tid; i < m; i += NT) mine += key_value(keys[i]) >= key_value(keys[k - 1]);
            k = b.sum32(mine);
        }
        m = k;
    }
    const bool brief = m <= NT;  // one key a thread: its mass is taken once
    u64 total, sum = 0, own = 0;
    if (brief) {
        if (b.tid < m) own = q.scale.mass(key_value(keys[b.tid]));
        work[b.tid] = sum = own;
    } else {
        const u32 each = (m + NT - 1) / NT;
#pragma unroll 1
        for (u32 e = 0, i = b.tid * each; e < each && i < m; ++e, ++i) sum += q.scale.mass(key_value(keys[i]));
    }
    u64 running = b.scan(sum, total), mass = total;
    if (f.nucleus()) {
        u64 target = share(f.top_p, whole ? whole : total);
        if (target > total) return false;
        if (brief) {
            if (running < target && target - running <= own) { q.s.pick_index = b.tid + 1; q.s.pick_mass = running + own; }
        } else {
            const u32 each = (m + NT - 1) / NT;
#pragma unroll 1
            for (u32 e = 0, i = b.tid * each; e < each && i < m; ++e, ++i) {
                u64 w = q.scale.mass(key_value(keys[i]));
                if (running < target && target - running <= w) { q.s.pick_index = i + 1; q.s.pick_mass = running + w; }
                running += w;
            }
        }
        __syncthreads();
        u32 cut = q.s.pick_index;
        mass = q.s.pick_mass;
        if (f.keep_ties) {
            float last = key_value(keys[cut - 1]);
            u32 mine = 0;
#pragma unroll 1
            for (u32 i = b.tid; i < m; i += NT) mine += key_value(keys[i]) >= last;
            mine = b.sum32(mine);
            if (whole && mine == n) return false;  // ties may go on outside the list
            mass += (mine - cut) * q.scale.mass(last);
            cut = mine;
        }
        m = cut;
    }
    const Cut cut = {key_value(keys[m - 1]), key_column(keys[m - 1]) + 1};
    const u64 target = high64(f.bits, mass);
    if (!brief) {
        u32 column = pick_in_column_order(b, q.scale, keys, m, target, q.r.limit, work, q.s.result);
        if (b.tid == 0) out.drawn(column, cut, q.xmax, mass, f.temperature, status);
        return true;
    }
    u64 at_key, at = running_in_column_order(b, keys, work, m, at_key);
    if (at > target && at - at_key <= target) out.drawn(running_column(b, keys, m), cut, q.xmax, mass, f.temperature, status);
    return true;
}

#if C == 1 && !GREEDY_ONLY
// The allowed logits of a row with few of them, gathered one by one; sorted.
DEV u64* gather_sparse(Sampler& q, u32& n, i32& status) {
#pragma unroll 1
    for (u32 i = 4 * q.b.tid; i < q.r.tiles * TILE_WORDS; i += 4 * NT) {
        const Vec v = *(const Vec*)(q.r.mask + i);
        u32 count = __popc(v.w[0]) + __popc(v.w[1]) + __popc(v.w[2]) + __popc(v.w[3]);
        if (!count) continue;
        u32 at = atomicAdd(&q.s.listed, count);
#pragma unroll
        for (u32 k = 0; k < 4; ++k)
            for (u32 w = v.w[k]; w; w &= w - 1) q.s.list[at++] = q.r.first_column() + (i + k) * 32 + __ffs(w) - 1;
    }
    __syncthreads();
    n = q.s.listed;
    bool nan = false;
#pragma unroll 1
    for (u32 i = q.b.tid; i < n; i += NT) {
        u32 column = (u32)q.s.list[i];
        float x = to_float(q.r.base[column]);
        nan |= x != x;
        q.s.list[i] = x > NEG_INF ? order_key(x, column) : 0;
    }
    q.o.each(q.b, [&](float x, u32 column) {
        nan |= x != x;
        if (x > NEG_INF) q.append(order_key(x, column));
    });
    if (__syncthreads_or(nan)) status |= NAN_SEEN;
    u32 listed = q.s.listed, valid = 0;
#pragma unroll 1
    for (u32 i = q.b.tid; i < listed; i += NT) valid += q.s.list[i] != 0;
    n = q.b.sum32(valid);
    return sort_list(q.b, q.s.list, listed, q.s.spare);
}
#endif

DEV void finish_one_hot(Sampler& q, const Output& out, u64 dense, u64 changed, i32 status) {
    u32 tile = ~(u32)dense;
    bool dense_wins = dense >> 32 >= changed >> 32 && dense;
    if (!dense_wins) {
        if (q.b.rank == 0 && q.b.tid == 0) out.one_hot(key_column(changed), key_value(changed), status);
        return;
    }
    if (tile - q.r.tile0 >= q.r.tiles || q.b.warp != 0) return;
    Vec d[4];
    float top = unordered((u32)(dense >> 32));
    u32 first = ~0u;
    if (q.r.load(tile, q.b.lane, d))
        each_element(d, tile, q.b.lane, [&](float x, u32 column) { if (x == top) first = min(first, column); });
    first = __reduce_min_sync(FULL, first);
    if (dense >> 32 == changed >> 32) first = min(first, key_column(changed));
    if (q.b.lane == 0) out.one_hot(first, top, status);
}

#if !GREEDY_ONLY
// At least the k largest of the row (all that reach a common bound), in the leader, sorted; bound: that bound. False: too
// many, the row goes on by histograms.
DEV bool merge_candidates(Sampler& q, Sampler::Peak& p, u32 k, u64*& keys, u32& n) {
    u32 key, part;
    q.kth_lanes(p.lane0(), p.lane1(), k, C > 1 ? (k + C - 1) / C : 0, key, part);
#if C > 1  // the best common bound: any CTA's k-th, or the least of all their (k / C)-ths
    const u64* slot = q.b.show(key, ~part);
    key = max((u32)q.b.peek_max(slot), ~(u32)q.b.peek_max(slot + 1));
#endif
    const float bound = q.bound_of(key);
    STAGE(q, 12)
    q.relist(p, bound);
    __syncthreads();
    STAGE(q, 13)
    n = q.s.listed;
    keys = nullptr;
#if C > 1
    slot = q.b.show(n);
    u32 there = q.b.lane < C ? (u32)q.b.peek(slot, q.b.lane) : 0, counts[C];
    n = 0;
    bool over = false;
#pragma unroll
    for (u32 peer = 0; peer < C; ++peer) {
        counts[peer] = __shfl_sync(FULL, there, peer);
        over |= counts[peer] > LIST_CAP;
        n += counts[peer];
    }
    if (over || n > SPARE_CAP) return false;
    if (q.b.rank == 0) {
        u32 at = 0;
#pragma unroll
        for (u32 peer = 0; peer < C; ++peer) {  // each peer's list by its own threads, all at once
            if (q.b.tid / (NT / C) == peer)
                for (u32 i = q.b.tid % (NT / C); i < counts[peer]; i += NT / C) q.s.spare[at + i] = q.b.peek(&q.s.list[i], peer);
            at += counts[peer];
        }
    }
    q.b.cluster_sync();  // all lists have been read
    if (q.b.rank == 0) keys = sort_list(q.b, q.s.spare, n, q.s.list);
#else
    if (n > LIST_CAP) return false;
    keys = sort_list(q.b, q.s.list, n, q.s.spare);
#endif
    return true;
}

// Rows whose filters end outside any list, and those of extreme temperatures. A copy of the state: its original stays in registers.
PHASE void by_histogram(Sampler q, const Filters& f, const Output& out, Cut cut, u64 own, i32 status) {
    if (q.scale.far) own = q.masses_exactly(cut);
    u64 before, whole = q.b.cluster_sum(own, before);
    if (f.top_k && select(q, false, f.top_k, cut, f.keep_ties, cut, own)) whole = q.b.cluster_sum(own, before);
    if (f.nucleus() && select(q, true, share(f.top_p, whole), cut, f.keep_ties, cut, own))
        whole = q.b.cluster_sum(own, before);
    u32 column;
    if (q.draw(cut, own, before, high64(f.bits, whole), column) && q.b.tid == 0)
        out.drawn(column, cut, q.xmax, whole, f.temperature, status);
}
#endif

#if SAMPLING
PHASE bool draw_nucleus(const Sampler& from, const Filters& f, const Output& out, Cut cut, u64& own, i32 status) {
    Sampler q(from, *(Smem*)shared_bytes, (u32*)(shared_bytes + SMEM_FIXED));
    if (!select_nucleus(q, f.top_p, cut, f.keep_ties, cut, own)) return false;
    u32 column;
    if (q.draw(cut, own, 0, high64(f.bits, own), column) && q.b.tid == 0)
        out.drawn(column, cut, q.xmax, own, f.temperature, status);
    return true;
}
#endif

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
    if (threadIdx.x == 0) s.listed = s.nan = 0;
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
    __syncthreads();
    if (q.o.active) q.o.build(q.b);
    STAGE(q, 1)

    u64* keys = nullptr;  // a sorted list that decides the row, if there is one
    u64 whole = 0, own = 0;
    u32 n = 0;
    bool done = false, vote = false;
    Cut cut = {NEG_INF, 0};
#if C == 1 && !GREEDY_ONLY
    if (q.r.masked && q.b.sum32(allowed) <= SPARSE_MAX) {
        keys = gather_sparse(q, n, status);
        u64 best = n ? keys[0] : 0;
        if (!best) { if (q.b.tid == 0) out.nothing(status | DEAD); return; }
        q.xmax = key_value(best);
        if (q.xmax == POS_INF) status |= POS_INF_SEEN;
        if (f.greedy || q.xmax == POS_INF) {
            if (q.b.tid == 0) out.one_hot(key_column(best), q.xmax, status);
            return;
        }
        q.scale = Scale::of(q.xmax, f.temperature);
    }
#endif
    if (!keys) {
        const bool top_k = !GREEDY_ONLY && !f.greedy && f.top_k && (u32)f.top_k < q.r.limit;
        const bool nucleus = !f.greedy && f.nucleus() && !top_k;
        const u32 step = (q.r.tiles + SAMPLED_TILES - 1) / SAMPLED_TILES;
        Sampler::Peak p = q.first_pass(SAMPLING && nucleus ? (float*)s.list : nullptr, step);
        STAGE(q, 2)
        u64 changed = 0;
        q.nan = has_nan(p.nan_word);
        q.o.each(q.b, [&](float x, u32 column) {
            q.nan |= x != x;
            if (x > NEG_INF) changed = changed > order_key(x, column) ? changed : order_key(x, column);
        });
        if (q.nan) s.nan = 1;  // seen by all after the barrier of the maximum
        u64 dense = q.b.max(p.best > NEG_INF ? (u64)ordered(p.best) << 32 | (u32)~p.tile : 0);
        q.nan = s.nan;
        if (q.o.active) changed = q.b.max(changed);
#if C > 1
        const u64* slot = q.b.show(dense, changed, q.nan);
        dense = q.b.peek_max(slot);
        if (OVERLAY) changed = q.b.peek_max(slot + 1);
        q.nan = q.b.peek_max(slot + 2) != 0;
#endif
        STAGE(q, 3)
        if (q.nan) status |= NAN_SEEN;
        q.xmax = unordered((u32)((dense > changed ? dense : changed) >> 32));
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
