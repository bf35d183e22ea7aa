// What the device decides once the descriptor of a captured step is sealed, and what it commits after sampling.
//
// step_begin   one CTA a row (slot, position): compares the sealed launch number with the device's counter, turns actions into row
//              status, spreads parameters, brings mask rows and lists from pinned memory to the device.
// step_ask     which rows want which log-probabilities.
// step_tell    one CTA a row: log-probabilities to pinned memory, logits to where they are kept.
// step_commit  one CTA: moves token and position of the slots that got tokens, writes the results to pinned memory, then the launch
//              number that the host waits for.
//
// A launch whose descriptor is not sealed (the flag came from the last resort) holds every row. The number is read before the rest,
// by one thread: who sees it sees the whole descriptor, which was written before it.
// Versions: 1. each row read its own numbers from pinned memory: 1 us a row, 82 us from the flag to the end with 64 rows that hold,
// 267 with 256. 2. step_open; mask rows by 16 bytes a thread. In use.

#include "step.cuh"

enum { UNGUIDED = 0, GUIDED = 1, HOLD = 2, IDLE = 3, HELD_BIT = 8 };
enum { ASK_RAW = 1, ASK_PROCESSED = 2 };

struct Descriptor {  // by slot; parameters of rows [positions, slots]; mask rows [slots * positions, words]
    const i64* sealed;
    const i32 *action, *depth;
    const i64* epoch;
    const float *temperature, *top_p, *min_p;
    const i32* top_k;
    const i64 *seed, *offset;
    const i32 *cached, *fill, *asks, *keep, *bias_from, *bias_start, *ban_from, *ban_start;
    const float *repetition, *presence, *frequency;
    const i32 *penalised, *fresh, *fresh_start, *rows, *bias_ids;  // from rows on pinned, all before that the device's copy
    const float* bias_values;
    const i32 *ban_ids, *fresh_ids, *fresh_counts;
};

struct Rows {  // device: what the sampler reads, a row each
    float *temperature, *top_p, *min_p;
    i32* top_k;
    i64 *seed, *offset;
    i32 *status, *index, *bitmask;  // bitmask: rows of their own first, then those of the cache
};

struct Features {  // device, null where the step has none
    i32 *asks, *bias_start, *bias_ids;
    float* bias_values;
    i32 *ban_start, *ban_ids;
    float *repetition, *presence, *frequency;
    i32 *penalised, *prefix, *counted_slot;
    u16* counts;
    i32 *seen, *counted;
};

struct BeginArgs {
    Descriptor in;
    State state;
    Rows out;
    Features more;
    // slots of the arrays; positions of this step (width) and of the arrays (most); the first row of the cache
    i32 words, slots, width, most, cache, vocab_size;
};

__device__ __forceinline__ void copy(i32* to, const i32* from, u32 n) {
    if (((i64)to | (i64)from | n * 4) & 15)
        for (u32 i = threadIdx.x; i < n; i += NT) to[i] = from[i];
    else
        for (u32 i = threadIdx.x; i < n / 4; i += NT) ((int4*)to)[i] = ((const int4*)from)[i];
}

__device__ __forceinline__ i32 decide(const BeginArgs& a, u32 slot, u32 at, i64 length) {
    if (length == 0) return IDLE;
    i32 action = a.in.epoch[slot] == a.state.epoch[slot] ? a.in.action[slot] : IDLE;
    if (action < UNGUIDED || action > IDLE) return HOLD;
    return action <= GUIDED && at && at >= min((i64)a.in.depth[slot], length) ? HOLD : action;
}

// Counts of a new owner: cleared, then one entry a token: count, and 2^16 for "in the part that only repetition looks at".
__device__ void begin_counts(const BeginArgs& a, u32 slot) {
    u16* counts = a.more.counts + (i64)slot * a.vocab_size;
    i32 *seen = a.more.seen + (i64)slot * a.words, *counted = a.more.counted + (i64)slot * a.words;
    for (u32 i = threadIdx.x; i < a.vocab_size; i += NT) counts[i] = 0;
    for (u32 i = threadIdx.x; i < a.words; i += NT) seen[i] = counted[i] = 0;
    __syncthreads();
    for (i32 i = a.in.fresh_start[slot] + threadIdx.x; i < a.in.fresh_start[slot + 1]; i += NT) {
        i32 id = a.in.fresh_ids[i], count = a.in.fresh_counts[i];
        counts[id] = (u16)(count & 0xffff);
        if (count >> 16) atomicOr((u32*)seen + (id >> 5), 1u << (id & 31));
        if (count & 0xffff) atomicOr((u32*)counted + (id >> 5), 1u << (id & 31));
    }
}

__device__ void begin_features(const BeginArgs& a, u32 row, u32 slot, u32 at, bool live) {
    const Features& m = a.more;
    if (threadIdx.x == 0) {
        for (u32 i = row; i <= row + 1; ++i) {  // the end too: the row behind may have come before the seal
            m.bias_start[i] = a.in.bias_start[i];
            m.ban_start[i] = a.in.ban_start[i];
        }
        m.asks[row] = live ? a.in.asks[slot] : 0;
        m.penalised[row] = live ? a.in.penalised[slot] : -1;
        m.repetition[row] = a.in.repetition[slot];
        m.presence[row] = a.in.presence[slot];
        m.frequency[row] = a.in.frequency[slot];
        if (at == 0) m.counted_slot[slot] = live ? a.in.penalised[slot] : -1;
        for (i32 i = 1; i < a.width; ++i)
            m.prefix[row * (a.width - 1) + i - 1] = i <= at ? (i32)a.state.tokens[(i64)slot * a.most + i] : -1;
    }
    if (!live) return;
    i32 to = a.in.bias_start[row], n = a.in.bias_start[row + 1] - to, from = a.in.bias_from[slot];
    for (i32 i = threadIdx.x; i < n; i += NT) {
        m.bias_ids[to + i] = a.in.bias_ids[from + i];
        m.bias_values[to + i] = a.in.bias_values[from + i];
    }
    to = a.in.ban_start[row], n = a.in.ban_start[row + 1] - to, from = a.in.ban_from[row];
    for (i32 i = threadIdx.x; i < n; i += NT) m.ban_ids[to + i] = a.in.ban_ids[from + i];
    if (at == 0 && a.in.fresh[slot]) begin_counts(a, slot);
}

extern "C" __global__ void __launch_bounds__(NT) step_begin(const __grid_constant__ BeginArgs a) {
    const u32 row = blockIdx.x, slot = row / a.width, at = row % a.width;
    __shared__ i32 shared_action, shared_sealed;
    if (threadIdx.x == 0) {
        if (row == 0) a.state.clock[1] = now_ns();
        bool sealed = *a.in.sealed == a.state.counter[0] + 1;
        i64 length = a.state.lengths[slot];
        i32 action = sealed ? decide(a, slot, at, length) : length ? HOLD : IDLE;
        if (action <= GUIDED) {
            u32 from = at * a.slots + slot;
            a.out.temperature[row] = a.in.temperature[from];
            a.out.top_p[row] = a.in.top_p[from];
            a.out.min_p[row] = a.in.min_p[from];
            a.out.top_k[row] = a.in.top_k[from];
            a.out.seed[row] = a.in.seed[from];
            a.out.offset[row] = a.in.offset[from];
        }
        a.out.status[row] = action == IDLE ? HOLD : action;
        if (at == 0) {
            a.state.action[slot] = action;
            i64 usable = action <= GUIDED ? min((i64)a.in.depth[slot], length) : 1;
            a.state.num_drafts[slot] = (i32)usable - 1;
        } else {
            a.state.drafts[slot * (a.width - 1) + at - 1] = (i32)a.state.tokens[(i64)slot * a.most + at];
        }
        shared_action = action;
        shared_sealed = sealed;
    }
    __syncthreads();
    if (a.more.asks && shared_sealed) begin_features(a, row, slot, at, shared_action <= GUIDED);
    if (shared_action != GUIDED) return;
    const u32 pinned = slot * a.most + at;
    const i32 cached = a.in.cached[pinned];  // -1: no row of the cache
    const i64 to = cached < 0 ? row : a.cache + cached;
    if (threadIdx.x == 0) a.out.index[row] = (i32)to;
    if (cached < 0 || a.in.fill[pinned]) copy(a.out.bitmask + to * a.words, a.in.rows + (i64)pinned * a.words, a.words);
}

struct AskArgs {
    const i32 *asks, *column;
    i32 *raw, *processed;
    i32 rows, pad;
};

extern "C" __global__ void __launch_bounds__(NT) step_ask(const __grid_constant__ AskArgs a) {
    i32 row = blockIdx.x * NT + threadIdx.x;
    if (row >= a.rows) return;
    a.raw[row] = a.asks[row] == ASK_RAW ? a.column[row] : -1;
    a.processed[row] = a.asks[row] == ASK_PROCESSED ? a.column[row] : -1;
}

struct Told {
    float* logprob;
    i32 *rank, *top_ids;
    float* top_logprobs;
};

struct TellArgs {
    Told from[2], to;  // raw, processed; pinned [positions, slots] and [positions, slots, n]
    const i32 *asks, *token, *keep, *action;
    const float* logits;
    float* kept;  // [., vocab_size]
    i64 stride;
    i32 n, slots, width, vocab_size;
};

extern "C" __global__ void __launch_bounds__(NT) step_tell(const __grid_constant__ TellArgs a) {
    const u32 row = blockIdx.x, slot = row / a.width, at = row % a.width, to = at * a.slots + slot;
    if (a.action[slot] > GUIDED) return;
    const i32 ask = a.asks[row];
    if (ask && a.token[row] >= 0) {
        const Told& from = a.from[ask - 1];
        if (threadIdx.x == 0) { a.to.logprob[to] = from.logprob[row]; a.to.rank[to] = from.rank[row]; }
        for (u32 i = threadIdx.x; i < a.n; i += NT) {
            a.to.top_ids[to * a.n + i] = from.top_ids[row * a.n + i];
            a.to.top_logprobs[to * a.n + i] = from.top_logprobs[row * a.n + i];
        }
    }
    if (at || a.keep[slot] < 0) return;
    const float* logits = a.logits + row * a.stride;
    float* kept = a.kept + (i64)a.keep[slot] * a.vocab_size;
    for (u32 i = threadIdx.x; i < a.vocab_size; i += NT) kept[i] = logits[i];
}

struct CommitArgs {
    State state;
    const i32 *token, *status, *emitted;  // a row each of the sampler; emitted by slot, null: one token where there is one
    i32 *out_token, *out_status, *out_action;  // pinned, tokens and status [positions, slots]
    i64* out_epoch;
    i64* out_waited;
    volatile i64* out_launch;
    i32 slots, active, width, most;
};

extern "C" __global__ void __launch_bounds__(NT) step_commit(const __grid_constant__ CommitArgs a) {
    for (u32 slot = threadIdx.x; slot < a.active; slot += NT) {
        const i32 action = a.state.action[slot];
        const i32 *token = a.token + slot * a.width, *status = a.status + slot * a.width;
        const i32 n = action > GUIDED ? 0 : a.emitted ? a.emitted[slot] : token[0] >= 0;
        for (i32 at = 0; at < a.width; ++at) {
            a.out_token[at * a.slots + slot] = at < n ? token[at] : -1;
            a.out_status[at * a.slots + slot] = action <= GUIDED ? status[at] : HELD_BIT;
        }
        a.out_action[slot] = action;
        a.out_epoch[slot] = a.state.epoch[slot];
        a.state.emitted[slot] = n;
        if (n) {
            a.state.tokens[(i64)slot * a.most] = token[n - 1];
            a.state.positions[slot] += n;
        }
        if (a.state.lengths[slot] > 1) a.state.lengths[slot] = 1;
    }
    if (threadIdx.x == 0) *a.out_waited = a.state.clock[1] - a.state.clock[0];
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        i64 launch = a.state.counter[0] + 1;
        a.state.counter[0] = launch;
        *a.out_launch = launch;
    }
}
