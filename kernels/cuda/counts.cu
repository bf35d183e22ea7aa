// Occurrence state of slots and top-p decay, changed in place once the step's tokens are known (kernels/plain/counts.py).
#define DTYPE 2
#ifndef NT
#define NT 256
#endif
#include "types.cuh"

struct CountArgs {
    void* counts;
    u32* seen;     // reset only
    u32* counted;  // optional: bit 1 = count above 0
    const i32* tokens; const i32* num_tokens; const i32* slot;
    const i32* parents;
    void* moved;
    i64 counts_stride, seen_stride, counted_stride;
    i32 batch, most, vocab_size, counts_bytes;
};

DEV void add_one(const CountArgs& a, i64 slot, i32 id) {
    if (id < 0 || id >= a.vocab_size) return;
    if (a.counts_bytes == 4) {
        atomicAdd((u32*)a.counts + slot * a.counts_stride + id, 1u);
    } else {  // two counts share a word; 65,535 is the end
        u64 at = (u64)((u16*)a.counts + slot * a.counts_stride + id);
        u32* word = (u32*)(at & ~(u64)3);
        u32 shift = at & 2 ? 16 : 0, old = *word, seen;
        do {
            if ((old >> shift & 0xffff) == 0xffff) break;
            seen = old;
            old = atomicCAS(word, seen, seen + (1u << shift));
        } while (old != seen);
    }
    if (a.counted) atomicOr(a.counted + slot * a.counted_stride + (id >> 5), 1u << (id & 31));
}

extern "C" __global__ void __launch_bounds__(NT) update_counts(const __grid_constant__ CountArgs a) {
    i32 i = blockIdx.x * NT + threadIdx.x;
    if (i >= a.batch * a.most) return;
    i32 b = i / a.most;
    if (a.slot[b] >= 0 && i % a.most < a.num_tokens[b]) add_one(a, a.slot[b], a.tokens[i]);
}

// One CTA: slot[0] becomes that of a new prompt of num_tokens[0] tokens; its first `most` weigh in for repetition only.
extern "C" __global__ void __launch_bounds__(NT) reset_counts(const __grid_constant__ CountArgs a) {
    i64 slot = a.slot[0];
    for (i32 i = threadIdx.x; i < a.vocab_size; i += NT) {
        if (a.counts_bytes == 4) ((u32*)a.counts)[slot * a.counts_stride + i] = 0;
        else ((u16*)a.counts)[slot * a.counts_stride + i] = 0;
    }
    for (i32 i = threadIdx.x; i < (a.vocab_size + 31) / 32; i += NT) {
        a.seen[slot * a.seen_stride + i] = 0;
        if (a.counted) a.counted[slot * a.counted_stride + i] = 0;
    }
    __syncthreads();
    for (i32 i = threadIdx.x; i < a.num_tokens[0]; i += NT) {
        i32 id = a.tokens[i];
        if (id < 0 || id >= a.vocab_size) continue;
        if (i < a.most) atomicOr(a.seen + slot * a.seen_stride + (id >> 5), 1u << (id & 31));
        else add_one(a, slot, id);
    }
}

// Two launches, so that all slots move at once: to the side (parents -> moved), then back (moved -> slots).
extern "C" __global__ void __launch_bounds__(NT) move_counts(const __grid_constant__ CountArgs a) {
    i32 i = blockIdx.x * NT + threadIdx.x, b = blockIdx.y;
    if (i >= a.vocab_size) return;
    bool back = a.parents == nullptr;
    i64 slot = (back ? a.slot : a.parents)[b], side = (i64)b * a.vocab_size + i, there = slot * a.counts_stride + i;
    if (a.counts_bytes == 4) {
        if (back) ((u32*)a.counts)[there] = ((u32*)a.moved)[side]; else ((u32*)a.moved)[side] = ((u32*)a.counts)[there];
    } else {
        if (back) ((u16*)a.counts)[there] = ((u16*)a.moved)[side]; else ((u16*)a.moved)[side] = ((u16*)a.counts)[there];
    }
}

struct DecayArgs {
    float* top_p;
    const i32* tokens; const i32* num_tokens; const i32* slot;
    const float* initial; const float* decay; const float* minimum; const i32* reset_id;
    i32 batch, most;
};

extern "C" __global__ void __launch_bounds__(NT) update_top_p_decay(const __grid_constant__ DecayArgs a) {
    i32 b = blockIdx.x * NT + threadIdx.x;
    if (b >= a.batch || a.slot[b] < 0) return;
    i32 s = a.slot[b];
    float p = a.top_p[s];
    for (i32 i = 0; i < a.num_tokens[b]; ++i) {
        i32 token = a.tokens[(i64)b * a.most + i];
        if (token == a.reset_id[s]) p = a.initial[s];
        else if (token >= 0) p = fmaxf(__fmul_rn(p, a.decay[s]), a.minimum[s]);
    }
    a.top_p[s] = p;
}
