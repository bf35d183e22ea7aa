// Exact weights: w = 2^exponent(x) in fp32, its value in units of 2^-44 as an integer (kernels/plain/weights.py).

DEV float pow2(float e) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(e)); return r; }

struct Scale {
    float c, b, s;  // exponent(x) = fma(x - s, c, b)
    bool far;

    DEV static Scale of(float xmax, float temperature) {
        Scale k;
        k.c = fminf(__fdiv_rn(1.4426950408889634f, temperature), FLT_MAX_);
        k.b = -__fmul_rn(xmax, k.c);
        k.far = !(fabsf(k.b) < 1048576.0f);
        k.s = k.far ? xmax : 0.0f;
        if (k.far) k.b = 0.0f;
        return k;
    }
    template <bool FAR> DEV float exponent(float x) const {
        return FAR ? __fmul_rn(__fadd_rn(x, -s), c) : __fmaf_rn(x, c, b);
    }
    DEV u64 mass(float x) const {
        float e = far ? exponent<true>(x) : exponent<false>(x);
        u32 high = 0, low = 0;
        split(pow2(e), high, low);
        return join(high, low, 1);
    }
    // Adds the bit patterns of w + 2 and of its rest + 3: four additions, no shift, no conversion.
    DEV static void split(float w, u32& high, u32& low) {
        float a = __fadd_rn(w, 2.0f);
        float rest = __fadd_rn(w, -__fadd_rn(a, -2.0f));
        high += __float_as_uint(a);
        low += __float_as_uint(__fmaf_rn(rest, 4194304.0f, 3.0f));
    }
    DEV static u64 join(u32 high, u32 low, u32 n) {
        return ((u64)(high - n * 0x40000000u) << 22) + (u64)(i64)(i32)(low - n * 0x40400000u);
    }
};

DEV u64 high64(u64 bits, u64 mass) { return __umul64hi(bits, mass); }

// ceil(p * mass) for the exact value of p in (0, 1).
DEV u64 share(float p, u64 mass) {
    u32 b = __float_as_uint(p), field = b >> 23;
    u64 m = field ? (b & 0x7fffffu) | 0x800000u : b & 0x7fffffu;
    i32 shift = 150 - (i32)(field ? field : 1);  // p = m * 2^-shift, shift >= 24
    u64 low = m * mass, high = __umul64hi(m, mass);
    if (shift >= 128) return low | high ? 1 : 0;
    u64 whole, rest;
    if (shift >= 64) {
        whole = shift == 64 ? high : high >> (shift - 64);
        rest = low | (shift == 64 ? 0 : high << (128 - shift));
    } else {
        whole = low >> shift | high << (64 - shift);
        rest = low << (64 - shift);
    }
    return whole + (rest != 0);
}

DEV float min_p_threshold(float xmax, float temperature, float min_p) {
    return fminf(__fmaf_rn(temperature, (float)log((double)min_p), xmax), xmax);
}

struct Cut {  // kept: above value, or equal to it in a column below cols
    float value;
    u32 cols;
    DEV bool keeps(float x, u32 column) const { return x > value || (x == value && column < cols); }
};

// The next lower float of the total order: x >= v is x > below(v).
DEV float below(float v) {
    u32 k = ordered(v) - 1;
    return unordered(k == 0x7fffffffu ? k - 1 : k);
}
