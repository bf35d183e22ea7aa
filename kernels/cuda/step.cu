// The frame of a captured step: what the device decides once its descriptor is sealed, and what it commits after sampling.
//
// step_begin   one CTA a slot, behind the memory-wait node: compares the sealed launch number with the device's counter, turns
//              actions into row status, brings parameters and guided rows from pinned memory to the device.
// step_commit  one CTA: moves token and position of the slots that got a token, writes the results to pinned memory, then the launch
//              number that the host polls.
// step_set     one thread: gives a slot to an owner or takes it away.
//
// A launch whose descriptor is not sealed (the flag came from the last resort) holds every row. The number is read by each CTA for
// itself: a CTA that sees it sees the whole descriptor, which was written before it.

#ifndef NT
#define NT 256
#endif

typedef unsigned int u32;
typedef int i32;
typedef long long i64;

enum { UNGUIDED = 0, GUIDED = 1, HOLD = 2, IDLE = 3, HELD_BIT = 8 };

struct Descriptor {  // pinned
    volatile i64* sealed;
    const i32* action;
    const i64* epoch;
    const float *temperature, *top_p, *min_p;
    const i32* top_k;
    const i64 *seed, *offset;
    const i32* rows;  // [slots, words]
};

struct State {  // device
    i64 *tokens, *positions, *lengths, *epoch, *counter;
    i32* action;  // of this launch, for commit
};

struct Rows {  // device: what the sampler reads
    float *temperature, *top_p, *min_p;
    i32* top_k;
    i64 *seed, *offset;
    i32 *status, *bitmask;
};

struct BeginArgs {
    Descriptor in;
    State state;
    Rows out;
    i32 words, width;  // width: tokens a row (T)
};

extern "C" __global__ void __launch_bounds__(NT) step_begin(const __grid_constant__ BeginArgs a) {
    const u32 slot = blockIdx.x;
    __shared__ i32 shared_action;
    if (threadIdx.x == 0) {
        i64 sealed = *a.in.sealed;
        __threadfence_system();
        i32 action = HOLD;
        if (a.state.lengths[slot] == 0) action = IDLE;
        else if (sealed == a.state.counter[0] + 1)
            action = a.in.epoch[slot] == a.state.epoch[slot] ? a.in.action[slot] : IDLE;
        if (action < UNGUIDED || action > IDLE) action = HOLD;
        if (action <= GUIDED) {
            a.out.temperature[slot] = a.in.temperature[slot];
            a.out.top_p[slot] = a.in.top_p[slot];
            a.out.min_p[slot] = a.in.min_p[slot];
            a.out.top_k[slot] = a.in.top_k[slot];
            a.out.seed[slot] = a.in.seed[slot];
            a.out.offset[slot] = a.in.offset[slot];
        }
        a.out.status[slot] = action == IDLE ? HOLD : action;
        a.state.action[slot] = action;
        shared_action = action;
    }
    __syncthreads();
    if (shared_action != GUIDED) return;
    const i32* from = a.in.rows + (i64)slot * a.words;
    i32* to = a.out.bitmask + (i64)slot * a.words;
    for (u32 w = threadIdx.x; w < a.words; w += blockDim.x) to[w] = from[w];
}

struct CommitArgs {
    State state;
    const i32 *token, *status;  // of the sampler
    i32 *out_token, *out_status, *out_action;  // pinned
    i64* out_epoch;
    volatile i64* out_launch;
    i32 slots, width;
};

extern "C" __global__ void __launch_bounds__(NT) step_commit(const __grid_constant__ CommitArgs a) {
    for (u32 slot = threadIdx.x; slot < a.slots; slot += blockDim.x) {
        i32 action = a.state.action[slot];
        i32 token = action <= GUIDED ? a.token[slot] : -1;
        a.out_token[slot] = token;
        a.out_status[slot] = action <= GUIDED ? a.status[slot] : HELD_BIT;
        a.out_action[slot] = action;
        a.out_epoch[slot] = a.state.epoch[slot];
        if (token >= 0) {
            a.state.tokens[(i64)slot * a.width] = token;
            a.state.positions[slot] += 1;
        }
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        i64 launch = a.state.counter[0] + 1;
        a.state.counter[0] = launch;
        *a.out_launch = launch;
    }
}

struct SetArgs {
    State state;
    i64 token, position, length, epoch;
    i32 slot, width;
};

extern "C" __global__ void step_set(const __grid_constant__ SetArgs a) {
    a.state.tokens[(i64)a.slot * a.width] = a.token;
    a.state.positions[a.slot] = a.position;
    a.state.lengths[a.slot] = a.length;
    a.state.epoch[a.slot] = a.epoch;
}
