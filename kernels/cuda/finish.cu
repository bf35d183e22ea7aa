// Why and where sequences end (kernels/plain/finish.py): end ids over length over stop words, the first such token wins.
#define DTYPE 2
#ifndef NT
#define NT 128
#endif
#include "types.cuh"

enum { NONE = 0, END_ID = 1, LENGTH = 2, STOP_WORDS = 3 };

struct Args {
    const i32* tokens; const i32* num_tokens; const i32* length; const i32* max_length;
    const i32* end_start; const i32* end_ids;
    const i32* row_start; const i32* word_start; const i32* word_ids;
    i32* history;
    i32* reason; i32* kept;
    i32 batch, most, window, pad;
};

struct Sequence {
    const Args& a;
    i32 b;

    DEV i32 token(i32 i) const { return a.tokens[(i64)b * a.most + i]; }
    DEV i32 text(i32 i) const { return i < 0 ? a.history[(i64)b * a.window + a.window + i] : token(i); }  // i >= -window
    DEV bool ends(i32 id) const {
        for (i32 i = a.end_start[b]; i < a.end_start[b + 1]; ++i)
            if (a.end_ids[i] == id) return true;
        return false;
    }
    DEV bool stops(i32 last) const {
        for (i32 w = a.row_start[b]; w < a.row_start[b + 1]; ++w) {
            i32 from = a.word_start[w], n = a.word_start[w + 1] - from, i = 0;
            if (!n || n > last + 1 + a.window) continue;
            while (i < n && a.word_ids[from + i] == text(last - n + 1 + i)) ++i;
            if (i == n) return true;
        }
        return false;
    }
};

extern "C" __global__ void __launch_bounds__(NT) finish_reasons(const __grid_constant__ Args a) {
    i32 b = blockIdx.x * NT + threadIdx.x;
    if (b >= a.batch) return;
    Sequence s = {a, b};
    i32 room = a.max_length[b] - a.length[b], n = a.num_tokens[b], reason = NONE, t = 0;
    for (; t < n && !reason; ++t)
        reason = s.ends(s.token(t)) ? END_ID : t + 1 >= room ? LENGTH : s.stops(t) ? STOP_WORDS : NONE;
    a.reason[b] = reason;
    a.kept[b] = t;
}

// The window moves on by the first num_tokens tokens; one thread a sequence, in place from the front.
extern "C" __global__ void __launch_bounds__(NT) shift_history(const __grid_constant__ Args a) {
    i32 b = blockIdx.x * NT + threadIdx.x;
    if (b >= a.batch) return;
    Sequence s = {a, b};
    i32 n = a.num_tokens[b];
    for (i32 i = 0; i < a.window; ++i) a.history[(i64)b * a.window + i] = s.text(i + n - a.window);
}
