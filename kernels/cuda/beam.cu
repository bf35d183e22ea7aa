// Candidates of a beam step (kernels/plain/beam.py): the best 2 * width of one beam by
// (cum + logprob + diversity * beam) / length ^ penalty, each operation in fp32; then one warp a request merges the
// beams, moves the survivors and keeps the pool of finished ones.
#define DTYPE 2
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

struct Args {
    const float* logprobs;
    const i32* width; const float* length_penalty; const float* diversity; const i32* early_stopping;
    const i32* end_id; const i32* max_length;
    float* cum; i32* tokens; i32* length; float* pool_score; float* pool_cum; i32* pool_tokens; i32* pool_length; u8* done;
    i32* parent; i32* token;
    u64* best;        // [requests, beams, 2 * beams] order keys of ranks
    i32* old_tokens;  // [requests, beams, longest]
    i32 beams, vocab_size, longest, pad;
};

DEV double length_scale(const Args& a, i32 b, i32 length) {
    return pow((double)max(length, 1), (double)a.length_penalty[b]);
}

struct Smem {
    Scratch scratch;
    u32 listed;
    u64 list[LIST_CAP];
    u64 spare[SPARE_CAP];
};

struct Ranking {
    const float* logprobs;
    float cum, bonus, scale;
    DEV float total(u32 token) const { return __fadd_rn(cum, logprobs[token]); }
    DEV float of(u32 token) const {
        float t = total(token);
        return t > NEG_INF ? __fdiv_rn(__fadd_rn(t, bonus), scale) : NEG_INF;
    }
};

extern "C" __global__ void __launch_bounds__(NT) beam_candidates(const __grid_constant__ Args a) {
    extern __shared__ __align__(16) u8 shared_bytes[];
    Smem& s = *(Smem*)shared_bytes;
    Block b(s.scratch);
    const u32 beam = blockIdx.x, request = blockIdx.y, want = 2 * a.width[request];
    const u32 at = request * a.beams + beam;
    u64* best = a.best + (i64)at * 2 * a.beams;
    for (u32 i = b.tid; i < 2 * a.beams; i += NT) best[i] = 0;
    if (a.done[request] || !(a.cum[at] > NEG_INF)) return;
    Ranking rank = {a.logprobs + (i64)at * a.vocab_size, a.cum[at], __fmul_rn(a.diversity[request], (float)beam),
                    (float)length_scale(a, request, a.length[request] + 1)};
    // the want-th largest of NT thread maxima bounds the want-th largest of all
    u64 top = 0;
    for (u32 t = b.tid; t < a.vocab_size; t += NT) {
        float x = rank.of(t);
        if (x > NEG_INF) { u64 k = order_key(x, t); top = top > k ? top : k; }
    }
    u32 bound = 0;
    for (u32 bit = 0x80000000u; bit; bit >>= 1)
        if (__syncthreads_count((u32)(top >> 32) >= (bound | bit)) >= (int)want) bound |= bit;
    if (b.tid == 0) s.listed = 0;
    __syncthreads();
    for (u32 t = b.tid; t < a.vocab_size; t += NT) {
        float x = rank.of(t);
        if (!(x > NEG_INF) || ordered(x) < bound) continue;
        u32 i = atomicAdd(&s.listed, 1u);
        if (i < LIST_CAP) s.list[i] = order_key(x, t);
    }
    __syncthreads();
    if (s.listed > LIST_CAP) {  // thousands of equal ranks: one after the other
        u64 after = ~0ull;
        for (u32 n = 0; n < want; ++n) {
            u64 mine = 0;
            for (u32 t = b.tid; t < a.vocab_size; t += NT) {
                float x = rank.of(t);
                u64 k = x > NEG_INF ? order_key(x, t) : 0;
                if (k < after && k > mine) mine = k;
            }
            after = b.max(mine);
            if (b.tid == 0) best[n] = after;
        }
        return;
    }
    u32 n = s.listed;
    u64* keys = sort_list(b, s.list, n, s.spare);
    for (u32 i = b.tid; i < min(n, want); i += NT) best[i] = keys[i];
}

struct Pool {
    const Args& a;
    u32 b;

    DEV void insert(float cum, i32 beam, i32 length, i32 last) const {  // last < 0: nothing follows the beam's tokens
        i32 total = length + (last >= 0), width = a.width[b], at = 0;
        float score = (float)((double)cum / length_scale(a, b, total));
        float* scores = a.pool_score + (i64)b * a.beams;
        while (at < a.beams && scores[at] >= score) ++at;
        if (at >= width) return;
        i64 base = (i64)b * a.beams;
        for (i32 i = a.beams - 1; i > at; --i) {
            scores[i] = scores[i - 1]; a.pool_cum[base + i] = a.pool_cum[base + i - 1];
            a.pool_length[base + i] = a.pool_length[base + i - 1];
            for (i32 j = 0; j < a.longest; ++j)
                a.pool_tokens[(base + i) * a.longest + j] = a.pool_tokens[(base + i - 1) * a.longest + j];
        }
        scores[at] = score; a.pool_cum[base + at] = cum; a.pool_length[base + at] = total;
        for (i32 j = 0; j < a.longest; ++j)
            a.pool_tokens[(base + at) * a.longest + j] =
                j < length ? a.old_tokens[(base + beam) * a.longest + j] : j == length && last >= 0 ? last : -1;
    }
};

extern "C" __global__ void beam_merge(const __grid_constant__ Args a) {
    const u32 b = blockIdx.x, lane = threadIdx.x;
    const i64 base = (i64)b * a.beams;
    for (i32 i = lane; i < a.beams; i += 32) a.parent[base + i] = a.token[base + i] = -1;
    if (a.done[b]) return;
    for (i32 i = lane; i < a.beams * a.longest; i += 32) a.old_tokens[base * a.longest + i] = a.tokens[base * a.longest + i];
    __syncwarp();
    if (lane) return;  // a few dozen candidates: one thread is enough
    const i32 width = a.width[b], position = a.length[b], many = 2 * a.beams;
    Pool pool = {a, b};
    i32 next[64], chosen = 0;
    float cums[64], old[64];
    for (i32 i = 0; i < a.beams; ++i) { next[i] = 0; old[i] = a.cum[base + i]; }
    for (i32 rank = 0; rank < 2 * width; ++rank) {
        i32 beam = -1;
        u64 top = 0;
        for (i32 i = 0; i < a.beams; ++i) {
            u64 k = next[i] < many ? a.best[(base + i) * many + next[i]] : 0;
            if (k >> 32 > top >> 32) { top = k; beam = i; }  // ties: lower beam first
        }
        if (beam < 0) break;
        ++next[beam];
        i32 token = (i32)key_column(top);
        float cum = __fadd_rn(old[beam], a.logprobs[(base + beam) * a.vocab_size + token]);
        if (token == a.end_id[b]) {
            if (rank < width) pool.insert(cum, beam, position, token);
        } else if (chosen < width) {
            a.parent[base + chosen] = beam; a.token[base + chosen] = token; cums[chosen++] = cum;
        }
    }
    float best = NEG_INF;
    for (i32 i = 0; i < a.beams; ++i) {
        a.cum[base + i] = i < chosen ? cums[i] : NEG_INF;
        if (i < chosen) best = fmaxf(best, cums[i]);
        for (i32 j = 0; j < a.longest; ++j)
            a.tokens[(base + i) * a.longest + j] =
                i >= chosen ? -1 : j == position ? a.token[base + i]
                                                 : a.old_tokens[(base + a.parent[base + i]) * a.longest + j];
    }
    a.length[b] = position + 1;
    float worst = a.pool_score[base + width - 1];
    bool done = chosen == 0;
    if (!done && worst > NEG_INF) {
        i32 stopping = a.early_stopping[b], length = position + 1;
        if (stopping != 1 && stopping != 0 && a.length_penalty[b] > 0) length = a.max_length[b];
        done = stopping == 1 || (double)best / length_scale(a, b, length) <= (double)worst;
    }
    a.done[b] = done;
}

// End of generation: live beams of requests that are not done join the pool.
extern "C" __global__ void beam_finalize(const __grid_constant__ Args a) {
    const u32 b = blockIdx.x;
    const i64 base = (i64)b * a.beams;
    if (a.done[b]) return;
    for (i32 i = threadIdx.x; i < a.beams * a.longest; i += 32) a.old_tokens[base * a.longest + i] = a.tokens[base * a.longest + i];
    __syncwarp();
    if (threadIdx.x) return;
    Pool pool = {a, b};
    for (i32 i = 0; i < a.beams; ++i)
        if (a.cum[base + i] > NEG_INF) pool.insert(a.cum[base + i], i, a.length[b], -1);
    a.done[b] = 1;
}
