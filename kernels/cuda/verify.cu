// Speculative verification (kernels/plain/verify.py): `match` for one-hot drafters, chains and trees, from the tokens that
// the target rows sampled; `reject` for chains of drafts drawn from a distribution, from row descriptors of both sides.
//
// reject: every draft is tested at once, in integers: floor(u * w_q * K_p / 2^64) < w_p * K_q. Only where a draft falls
// are two rows read again: the residual is K_q * A - K_p * B with A, B the sums of w_p, w_q where w_p * K_q > w_q * K_p.
#ifndef DTYPE
#define DTYPE 0
#endif
#ifndef NT
#define NT 512
#endif
#include "types.cuh"
#include "block.cuh"
#include "weights.cuh"
#include "row.cuh"
#include "overlay.cuh"
#include "value.cuh"

typedef unsigned __int128 u128;
enum { ACCEPT = 2, RESIDUAL = 3, BONUS = 4 };
#define CHUNK (2 * NT)
#define CHUNKS_MAX ((1 << 18) / CHUNK)

struct Outputs { i32* tokens; i32* nodes; i32* emitted; i32* accepted; i32* status; };

struct MatchArgs {
    const i32* drafts; const i32* lengths; const i32* parents;  // parents null: a chain
    const i32* sampled; const i32* sampled_status;
    Outputs out;
    i32 n, pad;
};

// One warp a request; the best path below each node from the last node up.
extern "C" __global__ void match(const __grid_constant__ MatchArgs a) {
    extern __shared__ i32 state[];
    i32* depth = state;
    i32* next = state + a.n + 1;
    const u32 b = blockIdx.x, lane = threadIdx.x;
    const i32 width = a.n + 1, length = min(a.lengths[b], a.n);
    const i32* drafts = a.drafts + (i64)b * a.n;
    for (i32 i = lane; i < width; i += 32) { depth[i] = 0; next[i] = 0; a.out.tokens[b * width + i] = a.out.nodes[b * width + i] = -1; }
    __syncwarp();
    if (lane) return;
    const i32* sampled = a.sampled + (i64)b * width;
    for (i32 node = length; node >= 1; --node) {  // children come after their parents
        i32 parent = a.parents ? a.parents[b * a.n + node - 1] : node - 1;
        if (parent < 0 || parent >= node || sampled[parent] < 0 || drafts[node - 1] != sampled[parent]) continue;
        if (depth[node] + 1 >= depth[parent]) { depth[parent] = depth[node] + 1; next[parent] = node; }
    }
    i32 node = 0, emitted = 0, accepted = 0;
    for (;;) {
        if (sampled[node] < 0) break;
        a.out.tokens[b * width + emitted++] = sampled[node];
        if (!next[node]) break;
        node = next[node];
        a.out.nodes[b * width + accepted++] = node;
    }
    a.out.emitted[b] = emitted; a.out.accepted[b] = accepted; a.out.status[b] = a.sampled_status[(i64)b * width + node];
}

struct RejectArgs {
    Source target; DescriptorArgs p;
    Source draft; DescriptorArgs q;
    const i32* drafts; const i32* lengths; const i64* seed; const i64* offset; const i32* target_status;
    Outputs out;
    i32 n, pad;
};

struct Shared {
    Scratch scratch;
    i32 accept[256];  // 1 accepted, 0 rejected, -1 passed over
    u64 high[CHUNKS_MAX], low[CHUNKS_MAX];
    u32 chunk, column;
    u128 rest;
};

// The part of a column in the draw: its w_p, and w_q if a residual is drawn and the column has some.
struct Residual {
    const RejectArgs& a;
    Kept p, q;
    View target, draft;
    bool on, same_columns;

    DEV Residual(const RejectArgs& args, u32 r, u32 d, bool residual)
        : a(args), p(args.p, r), q(args.q, residual ? d : 0), target(args.target, r), draft(args.draft, residual ? d : 0),
          on(residual) {
        same_columns = !a.target.mask.d2t && !a.draft.mask.d2t && a.target.mask.bit_offset == a.draft.mask.bit_offset;
    }
    DEV void add(u32 column, u64& high, u64& low) const {
        u64 w = p.weight(target.at(column), column);
        if (!w) return;
        if (on) {
            u32 c = same_columns ? column : find_column(a.draft.mask, target_of(a.target.mask, column));
            u64 v = c < a.draft.mask.width ? q.weight(draft.at(c), c) : 0;
            if ((u128)w * q.total <= (u128)v * p.total) return;
            low += v;
        }
        high += w;
    }
    // Rows that can be read by whole vectors: both then come together, which hides their latency.
    DEV bool by_vectors() const {
        return same_columns && target.vectors() && (!on || draft.vectors());
    }
    DEV void add_chunk(u32 first, u32 lane, u64& high, u64& low) const {
        if (!by_vectors() || first + CHUNK > target.limit || (on && first + CHUNK > draft.limit)) {
            for (u32 e = lane; e < CHUNK; e += 32) add(first + e, high, low);
            return;
        }
#pragma unroll 1
        for (u32 v = first / VEC + lane; v < (first + CHUNK) / VEC; v += 64) {
            Vec x[2], y[2];
            u32 b[2];
#pragma unroll
            for (u32 j = 0; j < 2; ++j) {
                x[j] = load_vec(target.base + (v + 32 * j) * VEC);
                if (on) y[j] = load_vec(draft.base + (v + 32 * j) * VEC);
                b[j] = target.vector_bits(v + 32 * j) | (on ? draft.vector_bits(v + 32 * j) << 16 : 0);
            }
#pragma unroll
            for (u32 j = 0; j < 2; ++j)
#pragma unroll 1
                for (u32 e = 0; e < VEC; ++e) {
                    u32 column = (v + 32 * j) * VEC + e;
                    u64 w = b[j] >> e & 1 ? p.weight(element_of(x[j], e), column) : 0;
                    if (!w) continue;
                    if (on) {
                        u64 o = b[j] >> (16 + e) & 1 ? q.weight(element_of(y[j], e), column) : 0;
                        if ((u128)w * q.total <= (u128)o * p.total) continue;
                        low += o;
                    }
                    high += w;
                }
        }
    }
    DEV u128 mass(u64 high, u64 low) const { return on ? (u128)high * q.total - (u128)low * p.total : (u128)high; }
};

DEV u128 share_of(u64 bits, u128 total) {
    return (u128)bits * (u64)(total >> 64) + ((u128)bits * (u64)total >> 64);
}

// The column drawn from p or from the residual, for all threads of the CTA that owns it; found tells which CTA that is.
DEV bool draw(Block& b, Shared& s, Residual& r, u64 bits, u32& column) {
    u32 all = (column_limit(r.a.target.mask) + CHUNK - 1) / CHUNK, per = (all + C - 1) / C;
    u32 first = min(b.rank * per, all), n = min(per, all - first);
    for (int attempt = 0; attempt < 2; ++attempt) {
        u64 high = 0, low = 0;
        for (u32 i = b.warp; i < n; i += WARPS) {
            u64 h = 0, l = 0;
            r.add_chunk((first + i) * CHUNK, b.lane, h, l);
#pragma unroll
            for (int d = 16; d; d >>= 1) { h += __shfl_xor_sync(FULL, h, d); l += __shfl_xor_sync(FULL, l, d); }
            if (b.lane == 0) { s.high[i] = h; s.low[i] = l; }
            high += h; low += l;
        }
        high = b.sum(b.lane ? 0 : high);
        low = b.sum(b.lane ? 0 : low);
        u64 high_before, low_before, own_high = high, own_low = low;
        high = b.cluster_sum(high, high_before);
        low = b.cluster_sum(low, low_before);
        u128 total = r.mass(high, low);
        if (!total && r.on) { r.on = false; __syncthreads(); continue; }  // no mass is left: draw from p itself
        u128 target = share_of(bits, total), before = r.mass(high_before, low_before), own = r.mass(own_high, own_low);
        if (target < before || target - before >= own) return false;
        target -= before;
        u64 unused, h = b.tid < n ? s.high[b.tid] : 0, l = b.tid < n ? s.low[b.tid] : 0;
        u128 at = r.mass(b.scan(h, unused), b.scan(l, unused)), mine = r.mass(h, l);
        if (at <= target && target - at < mine) { s.chunk = b.tid; s.rest = target - at; }
        __syncthreads();
        target = s.rest;
        u32 c = (first + s.chunk) * CHUNK + 2 * b.tid;
        u64 h0 = 0, l0 = 0, h1 = 0, l1 = 0;
        r.add(c, h0, l0);
        r.add(c + 1, h1, l1);
        at = r.mass(b.scan(h0 + h1, unused), b.scan(l0 + l1, unused));
        u128 m0 = r.mass(h0, l0), m1 = r.mass(h1, l1);
        if (at <= target && target - at < m0) s.column = c;
        at += m0;
        if (at <= target && target - at < m1) s.column = c + 1;
        __syncthreads();
        column = s.column;
        return true;
    }
    return false;
}

extern "C" __global__ void __launch_bounds__(NT, 2) reject(const __grid_constant__ RejectArgs a) {
    __shared__ Shared s;
    Block b(s.scratch);
    const u32 request = blockIdx.x / C;
    const i32 width = a.n + 1, length = min(a.lengths[request], a.n);
    const i32* drafts = a.drafts + (i64)request * a.n;
    for (i32 j = b.tid; j < length; j += NT) {
        u32 row = request * width + j, draft_row = request * a.n + j;
        Kept p(a.p, row), q(a.q, draft_row);
        u32 cp = find_column(a.target.mask, drafts[j]), cq = find_column(a.draft.mask, drafts[j]);
        u64 wq = cq < a.draft.mask.width ? q.weight(View(a.draft, draft_row).at(cq), cq) : 0;
        u64 wp = cp < a.target.mask.width ? p.weight(View(a.target, row).at(cp), cp) : 0;
        u64 u = random_bits((u64)a.seed[row], (u64)a.offset[row], ACCEPT);
        s.accept[j] = !wq ? -1 : share_of(u, (u128)wq * p.total) < (u128)wp * q.total;
    }
    __syncthreads();
    i32 node = 0;
    while (node < length && a.p.mass[request * width + node] && s.accept[node] == 1) ++node;
    const u32 row = request * width + node;
    const bool live = a.p.mass[row] != 0;
    u32 column = 0;
    bool mine = false;
    if (live) {
        Residual r(a, row, request * a.n + node, node < length && s.accept[node] == 0);
        mine = draw(b, s, r, random_bits((u64)a.seed[row], (u64)a.offset[row], node < length ? RESIDUAL : BONUS), column);
    }
    if (mine && b.tid == 0) a.out.tokens[request * width + node] = target_of(a.target.mask, column);
    if (b.rank == 0) {
        for (i32 i = b.tid; i < width; i += NT) {
            if (i < node) a.out.tokens[request * width + i] = drafts[i];
            else if (i > node || !live) a.out.tokens[request * width + i] = -1;
            a.out.nodes[request * width + i] = i < node ? i + 1 : -1;
        }
        if (b.tid == 0) {
            a.out.emitted[request] = node + live; a.out.accepted[request] = node;
            a.out.status[request] = a.target_status[row];
        }
    }
    if (C > 1) b.cluster_sync();
}
