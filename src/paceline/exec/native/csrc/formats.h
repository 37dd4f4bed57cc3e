// Number formats of weights and K/V. All sums are float32.
//
// A panel holds 16 columns of a matrix [K, N] for multiplication from the left: rows of 16 columns, kStep consecutive k of
// a column side by side. So one bfloat16 row is 16 pairs, as dot-product instructions want them.
//
// Activation is what a product's left side is held in: pairs of bfloat16 where the machine multiplies those, else float32.
// kRounds: results are rounded to few bits anyway, so the left side of products with quantised weights may be as well.
#pragma once

#include "simd.h"

namespace paceline {

struct Float32 {
  static constexpr bool kRounds = false;
  typedef float Stored;
  typedef float Activation;
  typedef Floats Raw;
  typedef Floats Spread;
  typedef Floats Sum;
  static constexpr int kStep = 1;
  static Raw raw(const Stored* panel) { return load<Floats>(panel); }
  static Spread spread(const Activation* value) { return splat(*value); }
  static Floats multiply_add(Floats sum, Spread a, Raw b) { return sum + a * b; }
  static float widen(Stored value) { return value; }
  static Stored narrow(float value) { return value; }
  static Activation activation(float value) { return value; }
  static float number(Activation value) { return value; }
  static void activations(Activation* to, Floats values) { store(to, values); }
  static void narrow(Stored* to, Floats values) { store(to, values); }
};

struct Float16 {
  static constexpr bool kRounds = false;
  typedef uint16_t Stored;
  typedef float Activation;
  typedef Floats Raw;
  typedef Floats Spread;
  typedef Floats Sum;
  static constexpr int kStep = 1;
  static Raw raw(const Stored* panel) { return widen_fp16(load<Halves>(panel)); }
  static Spread spread(const Activation* value) { return splat(*value); }
  static Floats multiply_add(Floats sum, Spread a, Raw b) { return sum + a * b; }
  static float widen(Stored value) { return widen_fp16(Halves{} + value)[0]; }
  static Stored narrow(float value) { return narrow_fp16(splat(value))[0]; }
  static Activation activation(float value) { return value; }
  static float number(Activation value) { return value; }
  static void activations(Activation* to, Floats values) { store(to, values); }
  static void narrow(Stored* to, Floats values) { store(to, narrow_fp16(values)); }
};

#if defined(__AVX512BF16__)
struct BFloat16 {
  static constexpr bool kRounds = true;
  typedef uint16_t Stored;
  typedef uint16_t Activation;
  typedef __m512i Raw;
  typedef __m512i Spread;
  typedef Floats Sum;
  static constexpr int kStep = 2;
  static Raw raw(const Stored* panel) { return _mm512_loadu_si512(panel); }
  static Spread spread(const Activation* pair) { return _mm512_set1_epi32(load<int32_t>(pair)); }
  static Floats multiply_add(Floats sum, Spread a, Raw b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
  static float widen(Stored value) { return widen_bf16(value); }
  static Stored narrow(float value) { return narrow_bf16(value); }
  static Activation activation(float value) { return narrow_bf16(value); }
  static float number(Activation value) { return widen_bf16(value); }
  static void activations(Activation* to, Floats values) { store(to, narrow_bf16(values)); }
  static void narrow(Stored* to, Floats values) { store(to, narrow_bf16(values)); }
};
#else
struct BFloat16 {
  static constexpr bool kRounds = true;
  typedef uint16_t Stored;
  typedef float Activation;
  struct Raw { Floats even, odd; };
  struct Spread { Floats even, odd; };
  typedef Floats Sum;
  static constexpr int kStep = 2;
  static Raw raw(const Stored* panel) {
    const Ints pairs = load<Ints>(panel);
    return {as_floats(pairs << 16), as_floats(pairs & int32_t(0xffff0000u))};
  }
  static Raw raw_of(const int8_t* from) {
    const Ints pairs = __builtin_convertvector(load<Halves>(from), Ints);
    return {__builtin_convertvector((pairs << 24) >> 24, Floats), __builtin_convertvector((pairs << 16) >> 24, Floats)};
  }
  static Spread spread(const Activation* pair) { return {splat(pair[0]), splat(pair[1])}; }
  static Floats multiply_add(Floats sum, const Spread& a, const Raw& b) {
    return sum + a.even * b.even + a.odd * b.odd;
  }
  static float widen(Stored value) { return widen_bf16(value); }
  static Stored narrow(float value) { return narrow_bf16(value); }
  static Activation activation(float value) { return value; }
  static float number(Activation value) { return value; }
  static void activations(Activation* to, Floats values) { store(to, values); }
  static void narrow(Stored* to, Floats values) { store(to, narrow_bf16(values)); }
};
#endif

// K/V in 8 bits: whole numbers that a scale by token and head turns into keys and values. Otherwise as Format.
template <class Format>
struct Eight : Format {
  typedef int8_t Stored;
  typedef typename Format::Raw Raw;
  static Raw raw(const Stored* from) {
    if constexpr (Format::kStep == 1) return __builtin_convertvector(load<Bytes>(from), Floats);
    else return Format::raw_of(from);
  }
};

// How products with K/V are done. kScaled: they have scales. kWhole: in whole numbers, as queries and attention weights,
// brought to 16 bits, are then too. Products: the numbers that are multiplied.
template <class Format>
struct Traits {
  static constexpr bool kScaled = false, kWhole = false;
  typedef Format Products;
};

template <class Format>
struct Traits<Eight<Format>> {
  static constexpr bool kScaled = true, kWhole = false;
  typedef Eight<Format> Products;
};

#if defined(__AVX512BF16__)
// Whole numbers of 16 bits on the left, of 8 on the right: to widen these to bfloat16 takes longer than to multiply them.
struct Whole {
  typedef int8_t Stored;
  typedef int16_t Activation;
  typedef __m512i Raw;
  typedef __m512i Spread;
  typedef Ints Sum;
  static constexpr int kStep = 2;
  static Raw raw(const Stored* from) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static Spread spread(const Activation* pair) { return _mm512_set1_epi32(paceline::load<int32_t>(pair)); }
  static Ints multiply_add(Ints sum, Spread a, Raw b) { return (Ints)_mm512_dpwssd_epi32((__m512i)sum, a, b); }
};

template <>
struct Traits<Eight<BFloat16>> {
  static constexpr bool kScaled = true, kWhole = true;
  typedef Whole Products;
};
#endif

enum FormatNumber { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

// Calls `work` with a value of the format's type.
template <class Work>
inline void with_format(int number, Work work) {
  if (number == kFloat32) work(Float32());
  else if (number == kFloat16) work(Float16());
  else work(BFloat16());
}

}  // namespace paceline
