// What one thread keeps of its tiles in the first pass: maxima of two lanes, NaN, the best tile and the next best maximum.

    struct Peak {
        u32 word, word2, nan_word, tile;
        float best, second;  // maximum of the best tile, and of all others
        DEV Peak() : word(NEG_INF_WORD), word2(NEG_INF_WORD), nan_word(NEG_INF_WORD), tile(~0u), best(NEG_INF), second(NEG_INF) {}
        DEV void add(const Vec (&d)[4], u32 t) {
            u32 all = max_word(max_word(max_of(d[0]), max_of(d[1])), max_word(max_of(d[2]), max_of(d[3])));
            u32 check = max_nan_word(max_nan_word(max_nan_of(d[0]), max_nan_of(d[1])),
                                     max_nan_word(max_nan_of(d[2]), max_nan_of(d[3])));
            nan_word = max_nan_word(nan_word, check);
#if DTYPE == 2
            u32 m = NEG_INF_WORD;
#pragma unroll
            for (int j = 0; j < 4; ++j) m = max_word(m, max_word(d[j].w[0], d[j].w[1]));
            word2 = max_word(word2, m);
            u32 n = NEG_INF_WORD;
#pragma unroll
            for (int j = 0; j < 4; ++j) n = max_word(n, max_word(d[j].w[2], d[j].w[3]));
            word = max_word(word, n);
            float top = __uint_as_float(all);
#else
            word = max_word(word, all);
            float top = fmaxf(element(all, 0), element(all, 1));
#endif
            second = fmaxf(second, fminf(top, best));  // a NaN tile counts nowhere
            if (top > best) { best = top; tile = t; }
        }
        DEV float lane0() const { return DTYPE == 2 ? __uint_as_float(word2) : element(word, 0); }
        DEV float lane1() const { return DTYPE == 2 ? __uint_as_float(word) : element(word, PER_WORD - 1); }
    };
