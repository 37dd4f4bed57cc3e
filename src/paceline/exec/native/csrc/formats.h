// Number formats of weights and K/V. All sums are float32.
//
// A panel holds 16 columns of a matrix [K, N] for multiplication from the left: rows of 16 columns, kStep consecutive k of
// a column side by side. So one bfloat16 row is 16 pairs, as dot-product instructions want them.
//
// Activation is what a product's left side is held in: pairs of bfloat16 where the machine multiplies those, else float32.
#pragma once

#include "simd.h"

namespace paceline {

struct Float32 {
  typedef float Stored;
  typedef float Activation;
  typedef Floats Raw;
  typedef Floats Spread;
  static constexpr int kStep = 1;
  static Raw raw(const Stored* panel) { return load<Floats>(panel); }
  static Spread spread(const Activation* value) { return splat(*value); }
  static Floats multiply_add(Floats sum, Spread a, Raw b) { return sum + a * b; }
  static float widen(Stored value) { return value; }
  static Stored narrow(float value) { return value; }
  static Activation activation(float value) { return value; }
  static void activations(Activation* to, Floats values) { store(to, values); }
  static void narrow(Stored* to, Floats values) { store(to, values); }
};

struct Float16 {
  typedef uint16_t Stored;
  typedef float Activation;
  typedef Floats Raw;
  typedef Floats Spread;
  static constexpr int kStep = 1;
  static Raw raw(const Stored* panel) { return widen_fp16(load<Halves>(panel)); }
  static Spread spread(const Activation* value) { return splat(*value); }
  static Floats multiply_add(Floats sum, Spread a, Raw b) { return sum + a * b; }
  static float widen(Stored value) { return widen_fp16(Halves{} + value)[0]; }
  static Stored narrow(float value) { return narrow_fp16(splat(value))[0]; }
  static Activation activation(float value) { return value; }
  static void activations(Activation* to, Floats values) { store(to, values); }
  static void narrow(Stored* to, Floats values) { store(to, narrow_fp16(values)); }
};

#if defined(__AVX512BF16__)
struct BFloat16 {
  typedef uint16_t Stored;
  typedef uint16_t Activation;
  typedef __m512i Raw;
  typedef __m512i Spread;
  static constexpr int kStep = 2;
  static Raw raw(const Stored* panel) { return _mm512_loadu_si512(panel); }
  static Spread spread(const Activation* pair) { return _mm512_set1_epi32(load<int32_t>(pair)); }
  static Floats multiply_add(Floats sum, Spread a, Raw b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
  static float widen(Stored value) { return widen_bf16(value); }
  static Stored narrow(float value) { return narrow_bf16(value); }
  static Activation activation(float value) { return narrow_bf16(value); }
  static void activations(Activation* to, Floats values) { store(to, narrow_bf16(values)); }
  static void narrow(Stored* to, Floats values) { store(to, narrow_bf16(values)); }
};
#else
struct BFloat16 {
  typedef uint16_t Stored;
  typedef float Activation;
  struct Raw { Floats even, odd; };
  struct Spread { Floats even, odd; };
  static constexpr int kStep = 2;
  static Raw raw(const Stored* panel) {
    const Ints pairs = load<Ints>(panel);
    return {as_floats(pairs << 16), as_floats(pairs & int32_t(0xffff0000u))};
  }
  static Spread spread(const Activation* pair) { return {splat(pair[0]), splat(pair[1])}; }
  static Floats multiply_add(Floats sum, const Spread& a, const Raw& b) {
    return sum + a.even * b.even + a.odd * b.odd;
  }
  static float widen(Stored value) { return widen_bf16(value); }
  static Stored narrow(float value) { return narrow_bf16(value); }
  static Activation activation(float value) { return value; }
  static void activations(Activation* to, Floats values) { store(to, values); }
  static void narrow(Stored* to, Floats values) { store(to, narrow_bf16(values)); }
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
