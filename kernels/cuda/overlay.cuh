// Tokens whose logit is changed inside the pass: bias, then penalties, then bans (kernels/plain/overlay.py).
// Their mask bits are cleared, so that the dense pass never meets them; their adjusted fp32 logits form a list.
// Macro OVERLAY: 0 compiles all of it away. Above OVERLAY_CAP entries the list is left and values are computed anew.

#ifndef OVERLAY
#define OVERLAY 0
#endif
#define OVERLAY_CAP 2048

struct OverlayArgs {
    const i32* bias_start; const i32* bias_ids; const float* bias_values;
    const i32* ban_start; const i32* ban_ids;
    const float* repetition; const float* presence; const float* frequency; const i32* slot;
    const void* counts; const u32* seen; const u32* counted; const i32* prefix;
    i64 counts_stride, seen_stride, counted_stride;
    i32 counts_bytes, prefix_length;
};

struct Penalty {
    float repetition, presence, frequency;
    const void* counts;
    const u32* seen;
    const i32* prefix;
    i32 counts_bytes, prefix_length, vocab_size;
    bool on;

    DEV Penalty(const OverlayArgs& a, u32 row, i32 vocab) : on(false) {
        i32 slot = a.slot ? a.slot[row] : -1;
        if (slot < 0) return;
        repetition = a.repetition[row]; presence = a.presence[row]; frequency = a.frequency[row];
        on = !(repetition == 1.0f && presence == 0.0f && frequency == 0.0f);
        counts_bytes = a.counts_bytes; prefix_length = a.prefix ? a.prefix_length : 0; vocab_size = vocab;
        counts = (const u8*)a.counts + slot * a.counts_stride * counts_bytes;
        seen = a.seen + slot * a.seen_stride;
        prefix = a.prefix ? a.prefix + (i64)row * prefix_length : nullptr;
    }
    DEV i32 count(i32 id) const {
        i32 n = counts_bytes == 2 ? (i32)((const u16*)counts)[id] : ((const i32*)counts)[id];
        for (i32 i = 0; i < prefix_length; ++i) n += prefix[i] == id;
        return n;
    }
    DEV bool was_seen(i32 id) const { return seen[id >> 5] >> (id & 31) & 1; }
    // Each operation rounded by itself.
    DEV float apply(float x, i32 n, bool earlier, float limit) const {
        if (!is_finite(x)) return x;
        float y = x;
        if (n > 0 || earlier) y = x < 0 ? __fmul_rn(x, repetition) : __fdiv_rn(x, repetition);
        if (n > 0) y = __fadd_rn(y, -__fadd_rn(presence, __fmul_rn(frequency, (float)n)));
        return y != y ? y : clamp_finite(y, limit);
    }
};

DEV float add_bias(float x, float value) {
    if (!is_finite(x)) return x;
    float total = __fadd_rn(x, value);
    return is_finite(value) ? clamp_finite(total, FLT_MAX_) : total;
}

#if OVERLAY
struct OverlayList {
    u32 n;
    u32 column[OVERLAY_CAP];
    float value[OVERLAY_CAP];
};

struct Overlay {
    OverlayList& list;
    const OverlayArgs& a;
    const MaskArgs& m;
    const Row& r;
    Penalty penalty;
    u32* touched;  // shared, laid out as the row's mask words
    u32 row;
    bool bias, bans, active;

    DEV Overlay(OverlayList& l, const OverlayArgs& args, const MaskArgs& mask, const Row& rw, u32* bits, u32 at)
        : list(l), a(args), m(mask), r(rw), penalty(args, at, mask.vocab_size), touched(bits), row(at) {
        bias = a.bias_start && a.bias_start[at + 1] > a.bias_start[at];
        bans = a.ban_start && a.ban_start[at + 1] > a.ban_start[at];
        active = bias || bans || penalty.on;
    }
    // The column of a target id, by bisection where the vocabulary is pruned (targets ascend); none: limit.
    __device__ __noinline__ u32 column_of(i32 id) const {
        if (id < 0 || id >= m.vocab_size) return r.limit;
        if (!m.d2t) return id >= m.bit_offset ? min((u32)(id - m.bit_offset), r.limit) : r.limit;
        u32 low = 0, high = r.limit;
        while (low < high) {
            u32 mid = (low + high) / 2;
            if (target_of(m, mid) < id) low = mid + 1; else high = mid;
        }
        return low < r.limit && target_of(m, low) == id ? low : r.limit;
    }
    // Clears the column's mask bit; true for the one thread that found it set.
    DEV bool claim(u32 column) const {
        if (column >= r.limit || !r.owns(column)) return false;
        u32 i = column - r.first_column(), bit = 1u << (i & 31);
        return (atomicAnd(&r.mask[i >> 5], ~bit) & bit) != 0;
    }
    DEV void touch(u32 column) {
        u32 i = column - r.first_column();
        atomicOr(&touched[i >> 5], 1u << (i & 31));
        u32 at = atomicAdd(&list.n, 1u);
        if (at < OVERLAY_CAP) list.column[at] = column;
    }
    __device__ __noinline__ float adjusted(u32 column) const {
        float x = to_float(r.base[column]);
        i32 id = target_of(m, column);
        if (bias)
            for (i32 i = a.bias_start[row]; i < a.bias_start[row + 1]; ++i)
                if (a.bias_ids[i] == id) x = add_bias(x, a.bias_values[i]);
        return penalty.on ? penalty.apply(x, penalty.count(id), penalty.was_seen(id), FLT_MAX_) : x;
    }
    __device__ __noinline__ u32 touched_word(u32 w) const {  // tokens with penalty state among 32 columns of the row
        u32 word = column_word(m, penalty.seen, w, r.limit);
        if (a.counted) return word | column_word(m, a.counted + a.slot[row] * a.counted_stride, w, r.limit);
        for (u32 i = 0; i < 32 && w * 32 + i < r.limit; ++i) {
            i32 id = target_of(m, w * 32 + i);
            if (in_vocabulary(m, id) && penalty.count(id) > 0) word |= 1u << i;
        }
        return word;
    }
    // Called by all threads once the mask words are in place.
    DEV void build(const Block& b) {
        u32 words = r.tiles * TILE_WORDS;
        for (u32 i = b.tid; i < words; i += NT) touched[i] = 0;
        if (b.tid == 0) list.n = 0;
        __syncthreads();
        if (bans)
            for (i32 i = a.ban_start[row] + (i32)b.tid; i < a.ban_start[row + 1]; i += NT) claim(column_of(a.ban_ids[i]));
        __syncthreads();
        if (bias)
            for (i32 i = a.bias_start[row] + (i32)b.tid; i < a.bias_start[row + 1]; i += NT) {
                u32 c = column_of(a.bias_ids[i]);
                if (claim(c)) touch(c);
            }
        if (penalty.on) {
            for (i32 i = b.tid; i < penalty.prefix_length; i += NT) {
                u32 c = column_of(penalty.prefix[i]);
                if (claim(c)) touch(c);
            }
            __syncthreads();
            for (u32 i = b.tid; i < words; i += NT) {
                u32 hit = r.mask[i] ? r.mask[i] & touched_word(r.first_column() / 32 + i) : 0;
                r.mask[i] &= ~hit;
                for (; hit; hit &= hit - 1) touch(r.first_column() + i * 32 + __ffs(hit) - 1);
            }
        }
        __syncthreads();
        u32 n = min(list.n, (u32)OVERLAY_CAP);
        for (u32 i = b.tid; i < n; i += NT) list.value[i] = adjusted(list.column[i]);
        __syncthreads();
    }
    template <class F> DEV void each(const Block& b, F f) const {  // f(x, column)
        if (!active) return;
        if (list.n <= OVERLAY_CAP) {
            for (u32 i = b.tid; i < list.n; i += NT) f(list.value[i], list.column[i]);
            return;
        }
        for (u32 i = b.tid; i < r.tiles * TILE_WORDS; i += NT)
            for (u32 w = touched[i]; w; w &= w - 1) {
                u32 c = r.first_column() + i * 32 + __ffs(w) - 1;
                f(adjusted(c), c);
            }
    }
    DEV float at(u32 column) const {  // adjusted logit of a touched column, -inf for any other
        if (!active || !r.owns(column)) return NEG_INF;
        u32 i = column - r.first_column();
        return touched[i >> 5] >> (i & 31) & 1 ? adjusted(column) : NEG_INF;
    }
};
#else
struct OverlayList {};
struct Overlay {
    static const bool active = false;
    DEV Overlay(OverlayList&, const OverlayArgs&, const MaskArgs&, const Row&, u32*, u32) {}
    DEV void build(const Block&) {}
    template <class F> DEV void each(const Block&, F) const {}
    DEV float at(u32) const { return NEG_INF; }
};
#endif
