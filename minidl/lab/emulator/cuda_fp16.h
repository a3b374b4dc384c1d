// Numbers of 16 bits as CUDA's header of this name has them: computed as float, and rounded to nearest, ties to even.
// What converts them is UNWATCHED, and calls the C library alone: its arithmetic and branches are not the kernel's.
struct alignas(2) half {
    unsigned short bits;

    half() = default;
    template <class T, class = std::enable_if_t<std::is_arithmetic<T>::value>> half(T x) : bits(rounded((double)x)) {}
    template <class T, class = std::enable_if_t<std::is_arithmetic<T>::value>> operator T() const { return (T)value(); }
    UNWATCHED static unsigned short rounded(double x) {
        const unsigned short sign = __builtin_signbit(x) ? 0x8000 : 0;
        if (x != x) return 0x7fff;
        x = __builtin_fabs(x);
        if (x >= 65520) return sign | 0x7c00;
        if (x == 0) return sign;
        int power;
        __builtin_frexp(x, &power);
        const double unit = __builtin_ldexp(1, (power < -13 ? -13 : power) - 11);
        const int digits = (int)__builtin_nearbyint(x / unit);                   // of 11 bits, or 2048 where it rounds up
        return sign | (power < -13 ? digits : ((power + 13) << 10) + digits);
    }
    float value() const { return of(bits); }
    UNWATCHED static float of(unsigned short bits) {
        const int power = bits >> 10 & 31, digits = bits & 1023;
        const float size = power == 31 ? (digits ? NAN : INFINITY)
                           : __builtin_ldexpf((float)(power ? digits + 1024 : digits), (power ? power : 1) - 25);
        return bits & 0x8000 ? -size : size;
    }
};
typedef half __half;
struct alignas(4) half2 {
    half x, y;

    half2() = default;
    half2(half x, half y) : x(x), y(y) {}
};
typedef half2 __half2;

#define ARITHMETIC(SIGN, NAME)                                                                      \
    static inline half operator SIGN(half a, half b) { return half(a.value() SIGN b.value()); }    \
    static inline half2 operator SIGN(half2 a, half2 b) { return {a.x SIGN b.x, a.y SIGN b.y}; }   \
    static inline half& operator SIGN##=(half& a, half b) { return a = a SIGN b; }                 \
    static inline half2& operator SIGN##=(half2& a, half2 b) { return a = a SIGN b; }              \
    static inline half NAME(half a, half b) { return a SIGN b; }                                   \
    static inline half2 NAME##2(half2 a, half2 b) { return a SIGN b; }                             \
    template <class T> static inline std::enable_if_t<std::is_arithmetic<T>::value, half> operator SIGN(half a, T b) { \
        return a SIGN half(b);                                                                      \
    }                                                                                               \
    template <class T> static inline std::enable_if_t<std::is_arithmetic<T>::value, half> operator SIGN(T a, half b) { \
        return half(a) SIGN b;                                                                      \
    }
ARITHMETIC(+, __hadd) ARITHMETIC(-, __hsub) ARITHMETIC(*, __hmul) ARITHMETIC(/, __hdiv)
static inline half2 __h2div(half2 a, half2 b) { return a / b; }
static inline half operator-(half a) { return half(-a.value()); }
static inline half2 operator-(half2 a) { return {-a.x, -a.y}; }
#define COMPARISON(SIGN, NAME)                                                              \
    static inline bool operator SIGN(half a, half b) { return a.value() SIGN b.value(); }  \
    static inline bool NAME(half a, half b) { return a SIGN b; }
COMPARISON(<, __hlt) COMPARISON(>, __hgt) COMPARISON(<=, __hle) COMPARISON(>=, __hge) COMPARISON(==, __heq)
COMPARISON(!=, __hne)

static inline half __hneg(half a) { return -a; }
static inline half __habs(half a) { return half(std::fabs(a.value())); }
static inline half __hfma(half a, half b, half c) { return half((double)a.value() * b.value() + c.value()); }
static inline half2 __hfma2(half2 a, half2 b, half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
static inline half __hmax(half a, half b) { return a < b ? b : a; }
static inline half __hmin(half a, half b) { return b < a ? b : a; }
static inline bool __hisnan(half a) { return a.value() != a.value(); }
static inline half hexp(half a) { return half(std::exp(a.value())); }
static inline half hlog(half a) { return half(std::log(a.value())); }
static inline half hsqrt(half a) { return half(std::sqrt(a.value())); }
static inline half hrcp(half a) { return half(1 / a.value()); }

static inline half __float2half(float x) { return half(x); }
static inline half __float2half_rn(float x) { return half(x); }
static inline half __double2half(double x) { return half(x); }
static inline half __int2half_rn(int x) { return half(x); }
static inline float __half2float(half x) { return x.value(); }
static inline int __half2int_rn(half x) { return (int)std::nearbyint(x.value()); }
static inline half __ushort_as_half(unsigned short bits) {
    half x;
    x.bits = bits;
    return x;
}
static inline unsigned short __half_as_ushort(half x) { return x.bits; }
static inline half2 __floats2half2_rn(float x, float y) { return {half(x), half(y)}; }
static inline half2 __float2half2_rn(float x) { return {half(x), half(x)}; }
static inline half2 __float22half2_rn(float2 x) { return {half(x.x), half(x.y)}; }
static inline float2 __half22float2(half2 x) { return {x.x.value(), x.y.value()}; }
static inline half2 __halves2half2(half x, half y) { return {x, y}; }
static inline half2 make_half2(half x, half y) { return {x, y}; }
static inline half2 __half2half2(half x) { return {x, x}; }
static inline half __low2half(half2 x) { return x.x; }
static inline half __high2half(half2 x) { return x.y; }
static inline float __low2float(half2 x) { return x.x.value(); }
static inline float __high2float(half2 x) { return x.y.value(); }
