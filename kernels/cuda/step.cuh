// What the kernels of a captured step share: the state of the slots, and the clock.

#ifndef NT
#define NT 256
#endif

typedef unsigned int u32;
typedef unsigned short u16;
typedef int i32;
typedef long long i64;

struct State {  // device
    i64 *tokens, *positions, *lengths, *epoch, *counter, *clock;  // clock: ns at the end of the forward, and behind the wait
    i32 *action, *drafts, *num_drafts, *emitted;  // of the launch at work
};

__device__ __forceinline__ i64 now_ns() {
    i64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
