// One row of logits under its mask: the slice of a CTA, its mask words in shared memory, 16-byte loads by tiles.
// Column i stands for target id bit_offset + i (+ d2t[i]). A tile is 128 vectors: four a lane of one warp.

#define TILE_VECS 128
#define TILE_COLS (TILE_VECS * VEC)
#define TILE_WORDS (TILE_COLS / 32)

enum { UNGUIDED = 0, GUIDED = 1 };

struct MaskArgs {
    const u32* words;   // [rows, stride]; null: every row is unguided unless row_status says otherwise
    const i32* index;   // null: row r uses mask row r
    const i32* status;  // null: guided if there are words
    const i32* d2t;
    i64 stride;
    i32 rows, vocab_size, width, bit_offset;
};

DEV i32 target_of(const MaskArgs& m, u32 column) { return m.bit_offset + (i32)column + (m.d2t ? m.d2t[column] : 0); }
DEV bool in_vocabulary(const MaskArgs& m, i32 target) { return target >= 0 && target < m.vocab_size; }

DEV i32 status_of(const MaskArgs& m, u32 row) { return m.status ? m.status[row] : m.words ? GUIDED : UNGUIDED; }

// Mask words of a row; null where the row is guided and its index is outside the mask (nothing is allowed).
DEV const u32* words_of(const MaskArgs& m, u32 row) {
    i32 i = m.index ? m.index[row] : (i32)row;
    return m.words && i >= 0 && i < m.rows ? m.words + i * m.stride : nullptr;
}

// Columns at and above this one stand for no id of the vocabulary (with d2t each column is looked at).
DEV u32 column_limit(const MaskArgs& m) {
    i32 n = m.d2t ? m.width : min(m.width, m.vocab_size - m.bit_offset);
    return n > 0 ? (u32)n : 0;
}

DEV u32 low_bits(i32 n) { return n >= 32 ? FULL : n <= 0 ? 0 : (1u << n) - 1; }

// 32 columns from 32 * w on: their bits of a target-indexed bit set (null: all ones).
DEV u32 column_word(const MaskArgs& m, const u32* bits, u32 w, u32 limit) {
    u32 first = w * 32;
    if (first >= limit) return 0;
    u32 valid = low_bits((i32)(limit - first));
    if (m.d2t) {
        u32 word = 0;
        for (u32 i = 0; i < 32 && first + i < limit; ++i) {
            i32 t = target_of(m, first + i);
            if (in_vocabulary(m, t)) word |= (bits ? bits[t >> 5] >> (t & 31) & 1 : 1u) << i;
        }
        return word;
    }
    if (!bits) return valid;
    u32 at = m.bit_offset + first, i = at >> 5, shift = at & 31;
    u32 low = bits[i], last = (u32)(m.vocab_size - 1) >> 5;
    u32 high = shift && i < last ? bits[i + 1] : 0;
    return __funnelshift_r(low, high, shift) & valid;
}

// Bytes chosen by the selector, each with its sign bit in all places (nibbles of 8 and more).
DEV u32 spread(u32 signs, u32 selector) {
    u32 r;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(r) : "r"(signs), "r"(selector));
    return r;
}

// The allowed elements of a vector that cannot be loaded as one: at the end of a row, or not aligned.
PHASE Vec load_single(const Logit* p, u32 b) {
    Vec d;
#pragma unroll
    for (int k = 0; k < 4; ++k) d.w[k] = NEG_INF_WORD;
#pragma unroll
    for (int e = 0; e < VEC; ++e) {
        if (!(b >> e & 1)) continue;
#if DTYPE == 2
        d.w[e] = __float_as_uint(p[e]);
#else
        d.w[e / 2] = e & 1 ? (d.w[e / 2] & 0xffffu) | (u32)p[e] << 16 : (d.w[e / 2] & 0xffff0000u) | p[e];
#endif
    }
    return d;
}

struct Row {
    const Logit* base;
    u32* mask;  // shared; word 0 is the first of this CTA's slice; unused if not masked
    u32 limit, width, tile0, tiles;
    bool masked, aligned;

    DEV u32 first_column() const { return tile0 * TILE_COLS; }
    DEV bool owns(u32 column) const { return column / TILE_COLS - tile0 < tiles; }
    DEV bool test(u32 column) const {
        if (!masked) return column < limit;
        u32 i = column - first_column();
        return mask[i >> 5] >> (i & 31) & 1;
    }
    DEV float at(u32 column) const { return test(column) ? to_float(base[column]) : NEG_INF; }

    DEV u32 bits(u32 vector) const {  // the VEC bits of a vector of the slice
        if (masked) {
            u32 i = vector - tile0 * TILE_VECS;
            u32 b = ((const u8*)mask)[VEC == 8 ? i : i >> 1];
            return VEC == 8 ? b : b >> (i & 1) * 4 & 15;
        }
        return low_bits((i32)limit - (i32)(vector * VEC)) & ((1u << VEC) - 1);
    }

    // The lane's four vectors of a tile, banned logits as -inf; false: the warp has nothing allowed in it.
    DEV bool load(u32 tile, u32 lane, Vec (&d)[4]) const {
        u32 v0 = tile * TILE_VECS + lane;
        const Logit* p = base + v0 * VEC;
        if (!masked && aligned && (tile + 1) * TILE_COLS <= limit) {
#pragma unroll
            for (int j = 0; j < 4; ++j) d[j] = load_vec(p + j * 32 * VEC);
            return true;
        }
        u32 b[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) b[j] = bits(v0 + j * 32);
        if (!__any_sync(FULL, b[0] | b[1] | b[2] | b[3])) return false;
        bool vectors = aligned && (tile + 1) * TILE_COLS <= width;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int k = 0; k < 4; ++k) d[j].w[k] = NEG_INF_WORD;
            if (vectors && b[j]) d[j] = load_vec(p + j * 32 * VEC);
        }
        if (!vectors) {
#pragma unroll
            for (int j = 0; j < 4; ++j) if (b[j]) d[j] = load_single(p + j * 32 * VEC, b[j]);
            return true;
        }
        if (__all_sync(FULL, (b[0] & b[1] & b[2] & b[3]) == (1u << VEC) - 1)) return true;
#pragma unroll
        for (int j = 0; j < 4; ++j) blend(b[j], d[j]);
        return true;
    }

    // One vector, its banned logits still to be blended by the bits b: so that several loads can be under way.
    DEV Vec load_raw(u32 vector, u32& b) const {
        Vec d;
#pragma unroll
        for (int k = 0; k < 4; ++k) d.w[k] = NEG_INF_WORD;
        b = bits(vector);
        const Logit* p = base + vector * VEC;
        if (!b) return d;
        if (aligned && (vector + 1) * VEC <= width) return load_vec(p);
        return load_single(p, b);  // has -inf where b has none: blending again changes nothing
    }
    DEV Vec load_one(u32 vector) const {
        u32 b;
        Vec d = load_raw(vector, b);
        blend(b, d);
        return d;
    }

    static DEV void blend(u32 b, Vec& d) {
#if DTYPE == 2
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            u32 keep = (u32)((i32)(b << (31 - k)) >> 31);
            d.w[k] = (d.w[k] & keep) | (NEG_INF_WORD & ~keep);
        }
#else
#pragma unroll
        for (int h = 0; h < 2; ++h) {  // four bits to the sign bits of four bytes, each then spread over a half
            u32 signs = (b >> 4 * h & 15) * 0x10204080u & 0x80808080u;
            u32 k0 = spread(signs, 0x9988), k1 = spread(signs, 0xbbaa);
            d.w[2 * h] = (d.w[2 * h] & k0) | (NEG_INF_WORD & ~k0);
            d.w[2 * h + 1] = (d.w[2 * h + 1] & k1) | (NEG_INF_WORD & ~k1);
        }
#endif
    }

    template <class F> DEV void each_tile(const Block& b, F f) const {  // f(tile, data, any)
        Vec d[4];
        for (u32 t = tile0 + b.warp; t < tile0 + tiles; t += WARPS) { bool any = load(t, b.lane, d); f(t, d, any); }
    }
    // Backwards: the second pass meets what the first one read last, while L2 still holds it.
    template <class F> DEV void each_tile_backwards(const Block& b, F f) const {
        if (b.warp >= tiles) return;
        Vec d[4];
        for (i32 t = (i32)b.warp + (i32)((tiles - 1 - b.warp) / WARPS * WARPS); t >= 0; t -= WARPS) {
            bool any = load(tile0 + t, b.lane, d);
            f(tile0 + t, d, any);
        }
    }
};

DEV float element_of(const Vec& v, u32 e) {  // e known at run time only: selects, no memory
    u32 i = e / PER_WORD;
    u32 word = i & 2 ? (i & 1 ? v.w[3] : v.w[2]) : (i & 1 ? v.w[1] : v.w[0]);
    return element(word, e % PER_WORD);
}

// f(x, column) for each allowed logit of the slice, in little code: for passes that few rows need.
template <class F> DEV void each_logit(const Row& r, const Block& b, F f) {
    u32 end = (r.tile0 + r.tiles) * TILE_VECS, v = r.tile0 * TILE_VECS + b.tid;
    if (v >= end) return;
    Vec d = r.load_one(v);
    while (v < end) {
        u32 now = v;
        Vec next = d;
        v += NT;
        if (v < end) next = r.load_one(v);
#pragma unroll 1
        for (u32 k = 0; k < 4; ++k) {
#pragma unroll
            for (u32 h = 0; h < PER_WORD; ++h) {
                float x = element(d.w[0], h);
                if (x != NEG_INF) f(x, now * VEC + k * PER_WORD + h);
            }
            d.w[0] = d.w[1]; d.w[1] = d.w[2]; d.w[2] = d.w[3];
        }
        d = next;
    }
}

// f(x, column) for each element of a lane's four vectors.
template <class F> DEV void each_element(const Vec (&d)[4], u32 tile, u32 lane, F f) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
            for (int h = 0; h < PER_WORD; ++h)
                f(element(d[j].w[k], h), (tile * TILE_VECS + j * 32 + lane) * VEC + k * PER_WORD + h);
}

DEV u32 max_of(const Vec& v) { return max_word(max_word(v.w[0], v.w[1]), max_word(v.w[2], v.w[3])); }
DEV u32 max_nan_of(const Vec& v) {
    return max_nan_word(max_nan_word(v.w[0], v.w[1]), max_nan_word(v.w[2], v.w[3]));
}

// Places this CTA's slice and fills its mask words; returns how many of its columns are allowed (per thread).
DEV u32 open_row(Row& r, const MaskArgs& m, const Logit* base, u32 row, u32 rank, u32 tid, bool force_mask) {
    r.base = base;
    r.width = m.width;
    r.limit = column_limit(m);
    r.aligned = ((u64)base & 15) == 0;
    bool guided = status_of(m, row) == GUIDED;
    r.masked = guided || m.d2t || force_mask;
    u32 all = (r.limit + TILE_COLS - 1) / TILE_COLS, per = (all + C - 1) / C;
    r.tile0 = min(rank * per, all);
    r.tiles = min(per, all - r.tile0);
    if (!r.masked) return 0;
    const u32* bits = guided ? words_of(m, row) : nullptr;
    bool none = guided && !bits;
    u32 first = r.tile0 * TILE_WORDS, n = r.tiles * TILE_WORDS, count = 0;
    bool quick = bits && !m.d2t && m.bit_offset == 0 && ((u64)bits & 15) == 0;
    for (u32 i = tid * 4; i < n; i += NT * 4) {
        Vec v;
        if (quick && (first + i + 4) * 32 <= r.limit) {
            v = load_vec(bits + first + i);
        } else {
#pragma unroll
            for (int k = 0; k < 4; ++k) v.w[k] = none ? 0 : column_word(m, bits, first + i + k, r.limit);
        }
        *(Vec*)(r.mask + i) = v;
        count += __popc(v.w[0]) + __popc(v.w[1]) + __popc(v.w[2]) + __popc(v.w[3]);
    }
    return count;
}
