// Around the decisions of a captured step (step.cu).
//
// step_feed    before the forward: drafts behind the golden tokens, from pinned memory.
// step_ready   one thread, before the memory-wait node: when the forward was done.
// step_open    one CTA, behind it: the descriptor's numbers from pinned memory to the device, in whole lines.
// step_set     one thread: gives a slot to an owner or takes it away.

#include "step.cuh"

struct FeedArgs {
    State state;
    const i32 *drafts, *num_drafts;  // pinned [slots, most - 1], [slots]
    i32 slots, most;
};

extern "C" __global__ void __launch_bounds__(NT) step_feed(const __grid_constant__ FeedArgs a) {
    for (i32 slot = threadIdx.x; slot < a.slots; slot += NT) {
        if (a.state.lengths[slot] == 0) continue;
        i32 n = max(0, min(a.num_drafts[slot], a.most - 1));
        for (i32 i = 0; i < n; ++i) a.state.tokens[(i64)slot * a.most + 1 + i] = a.drafts[slot * (a.most - 1) + i];
        a.state.lengths[slot] = 1 + n;
    }
}

struct ReadyArgs {
    i64* clock;
};

extern "C" __global__ void step_ready(const __grid_constant__ ReadyArgs a) { a.clock[0] = now_ns(); }

struct OpenArgs {
    const i64* pinned;  // the launch number is the first of it
    i64* head;          // its copy
    i32 bytes, pad;     // a multiple of 16
};

extern "C" __global__ void __launch_bounds__(1024) step_open(const __grid_constant__ OpenArgs a) {
    __shared__ i64 sealed;
    if (threadIdx.x == 0) {
        sealed = *(volatile const i64*)a.pinned;
        __threadfence_system();
    }
    __syncthreads();
    const int4* from = (const int4*)a.pinned;
    for (u32 i = threadIdx.x; i < a.bytes / 16; i += blockDim.x) {
        int4 v = __ldcv(from + i);  // what an earlier launch has read of it is not what is there now
        ((int4*)a.head)[i] = v;
    }
    __syncthreads();
    if (threadIdx.x == 0) a.head[0] = sealed;
}

struct SetArgs {
    State state;
    i64 token, position, length, epoch;
    i32 slot, most;
};

extern "C" __global__ void step_set(const __grid_constant__ SetArgs a) {
    a.state.tokens[(i64)a.slot * a.most] = a.token;
    a.state.positions[a.slot] = a.position;
    a.state.lengths[a.slot] = a.length;
    a.state.epoch[a.slot] = a.epoch;
}
