// Single adjusted logits and their weights under a row's descriptor, for kernels that look at few columns.

struct Source {
    const Logit* logits;
    i64 stride;
    MaskArgs mask;
    OverlayArgs overlay;
};

struct DescriptorArgs {
    const float* xmax; const float* threshold; const i32* tie_column; const i64* mass; const float* temperature;
};

// The column of a target id, by bisection where the vocabulary is pruned (targets ascend); none: the width.
DEV u32 find_column(const MaskArgs& m, i32 id) {
    u32 limit = column_limit(m);
    if (id < 0 || id >= m.vocab_size) return m.width;
    if (!m.d2t) return id >= m.bit_offset && id - m.bit_offset < (i32)limit ? (u32)(id - m.bit_offset) : m.width;
    u32 low = 0, high = limit;
    while (low < high) {
        u32 mid = (low + high) / 2;
        if (target_of(m, mid) < id) low = mid + 1; else high = mid;
    }
    return low < limit && target_of(m, low) == id ? low : m.width;
}

DEV bool listed(const i32* start, const i32* ids, u32 row, i32 id, i32& at) {
    for (at = start[row]; at < start[row + 1]; ++at)
        if (ids[at] == id) return true;
    return false;
}

// One row: what does not depend on the column is read once. at(column): mask, bias, penalties and bans applied; -inf
// where banned (or NaN).
struct View {
    const Source& s;
    const Logit* base;
    const u32* bits;
    Penalty penalty;
    u32 row, limit;
    i32 status;
    bool plain;  // no overlay entry can touch it

    DEV View(const Source& source, u32 r) : s(source), penalty(source.overlay, r, source.mask.vocab_size), row(r) {
        const OverlayArgs& o = s.overlay;
        base = s.logits + r * s.stride;
        status = status_of(s.mask, r);
        bits = status == GUIDED ? words_of(s.mask, r) : nullptr;
        limit = (status == GUIDED && bits) || status == UNGUIDED ? column_limit(s.mask) : 0;
        plain = !penalty.on && !(o.ban_start && o.ban_start[r + 1] > o.ban_start[r]) &&
                !(o.bias_start && o.bias_start[r + 1] > o.bias_start[r]);
    }
    DEV float at(u32 column) const {
        if (column >= limit) return NEG_INF;
        i32 id = target_of(s.mask, column);
        if (s.mask.d2t && !in_vocabulary(s.mask, id)) return NEG_INF;
        if (bits && !(bits[id >> 5] >> (id & 31) & 1)) return NEG_INF;
        float x = to_float(base[column]);
        if (!plain) x = changed(x, id);
        return x > NEG_INF ? x : NEG_INF;
    }
    // Whole vectors of logits may be read, the mask bits taken by vectors: no table, no offset, nothing changed.
    DEV bool vectors() const { return plain && !s.mask.d2t && s.mask.bit_offset == 0 && ((u64)base & 15) == 0; }
    DEV u32 vector_bits(u32 vector) const {
        return (bits ? bits[vector * VEC >> 5] >> (vector * VEC & 31) : FULL) & ((1u << VEC) - 1);
    }
    DEV float changed(float x, i32 id) const {
        const OverlayArgs& o = s.overlay;
        i32 at;
        if (o.ban_start && listed(o.ban_start, o.ban_ids, row, id, at)) return NEG_INF;
        if (o.bias_start && listed(o.bias_start, o.bias_ids, row, id, at)) x = add_bias(x, o.bias_values[at]);
        return penalty.on ? penalty.apply(x, penalty.count(id), penalty.was_seen(id), FLT_MAX_) : x;
    }
};

// One row's distribution: weight(x, column) / total; total 0: dead or held.
struct Kept {
    Scale scale;
    float threshold;
    i32 tie;
    u64 total;
    bool one_hot;

    DEV Kept(const DescriptorArgs& d, u32 row) {
        float temperature = d.temperature[row];
        threshold = d.threshold[row]; tie = d.tie_column[row]; total = (u64)d.mass[row];
        one_hot = temperature == 0;
        scale = Scale::of(d.xmax[row], one_hot ? 1.0f : temperature);
    }
    DEV u64 weight(float x, u32 column) const {
        if (!total || !(x > threshold || (x == threshold && (i32)column <= tie))) return 0;
        return one_hot ? (u64)1 << 44 : scale.mass(x);
    }
};
