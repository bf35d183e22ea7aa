// What a sampling launch is given and what it writes.

struct Args {
    const Logit* logits;
    i64 stride;
    MaskArgs mask;
    RowArgs rows;
    OverlayArgs overlay;
    i32* token; i32* status; float* xmax; float* threshold; i32* tie_column; i64* mass; float* temperature;
    i32* column;  // of the token, for launches that follow
    i32 keep_ties, pad;
};

struct Output {
    const Args& a;
    u32 row;

    DEV void descriptor(float xmax, float threshold, i32 tie, u64 mass, float temperature) const {
        if (!a.xmax) return;
        a.xmax[row] = xmax; a.threshold[row] = threshold; a.tie_column[row] = tie;
        a.mass[row] = (i64)mass; a.temperature[row] = temperature;
    }
    DEV void token(i32 column, i32 status) const {
        a.token[row] = column < 0 ? -1 : target_of(a.mask, column);
        a.status[row] = status;
        if (a.column) a.column[row] = column;
    }
    DEV void nothing(i32 status) const {
        token(-1, status);
        descriptor(NEG_INF, POS_INF, -1, 0, 0.0f);
    }
    DEV void one_hot(u32 column, float x, i32 status) const {
        token((i32)column, status);
        descriptor(x, x, (i32)column, (u64)1 << 44, 0.0f);
    }
    DEV void drawn(u32 column, Cut cut, float xmax, u64 mass, float temperature, i32 status) const {
        token((i32)column, status);
        descriptor(xmax, cut.value, cut.cols > 0x7fffffffu ? 0x7fffffff : (i32)cut.cols - 1, mass, temperature);
    }
};

struct Filters {
    float temperature, top_p, min_p;
    i32 top_k;
    u64 bits;
    bool greedy, keep_ties;

    DEV Filters(const Args& a, u32 row) {
        temperature = a.rows.temperature[row];
        top_k = a.rows.top_k[row]; top_p = a.rows.top_p[row]; min_p = a.rows.min_p[row];
        greedy = !(temperature > 0) || top_k == 1 || top_p <= 0;
        keep_ties = a.keep_ties;
        if (top_k < 0) top_k = 0;
        bits = GREEDY_ONLY ? 0 : random_bits((u64)a.rows.seed[row], (u64)a.rows.offset[row], (u32)a.rows.purpose[row]);
    }
    DEV bool nucleus() const { return top_p < 1; }
    DEV float floor(float xmax) const { return min_p > 0 ? below(min_p_threshold(xmax, temperature, min_p)) : NEG_INF; }
};
