// Vectors of the machine's own width, and the functions on them that the kernels share.
//
// Written with the vector extensions of GCC and Clang, so that one source serves every instruction set; intrinsics
// only where an instruction has no such spelling.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace paceline {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
constexpr int kPanel = 16;                  // columns of a weight panel, keys of a K/V block
constexpr int kVectors = kPanel / kLanes;   // vectors across a panel

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));
typedef int16_t Shorts __attribute__((vector_size(kLanes * 2)));
typedef int8_t Bytes __attribute__((vector_size(kLanes)));

template <class Vector>
inline Vector load(const void* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

template <class Vector>
inline void store(void* to, Vector vector) {
  std::memcpy(to, &vector, sizeof vector);
}

inline Floats splat(float value) { return Floats{} + value; }
inline Ints splat(int32_t value) { return Ints{} + value; }
inline Floats as_floats(Ints bits) { return (Floats)bits; }
inline Ints as_ints(Floats bits) { return (Ints)bits; }
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

inline Ints iota() {
  Ints lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  return lanes;
}

inline float sum(Floats vector) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)vector);
#else
  float total = 0;
  for (int i = 0; i < kLanes; ++i) total += vector[i];
  return total;
#endif
}

// A bit for each lane that equals `value`.
inline uint32_t lanes_equal(Floats vector, float value) {
#if defined(__AVX512F__)
  return _mm512_cmpeq_ps_mask((__m512)vector, _mm512_set1_ps(value));
#else
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= uint32_t(vector[i] == value) << i;
  return bits;
#endif
}

inline float largest(Floats vector) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)vector);
#else
  float found = vector[0];
  for (int i = 1; i < kLanes; ++i) found = std::max(found, vector[i]);
  return found;
#endif
}

// The largest magnitude of `count` numbers, whole vectors of them. `probe`: 0, NaN where one of them is not finite.
inline float largest_magnitude(const float* from, int count, float& probe) {
  Floats most{}, probes{};
  for (int i = 0; i < count; i += kLanes) {
    const Floats value = load<Floats>(from + i);
    most = larger(most, larger(value, -value));
    probes += value * 0.0f;
  }
  probe = sum(probes);
  return largest(most);
}

// e^x to about 1e-7; 0 below -87.3, which includes -inf. NaN stays NaN.
__attribute__((always_inline)) inline Floats exponential(Floats x) {
  const Floats high = splat(88.0f), low = splat(-87.3f), magic = splat(12582912.0f);
  const Ints tiny = x < low;
  x = x > high ? high : x;
  x = x < low ? low : x;
  const Floats n = (x * 1.44269504088896341f + magic) - magic;
  const Floats r = x - n * 0.693359375f - n * -2.12194440e-4f;
  Floats p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Ints exponent = (__builtin_convertvector(n, Ints) + 127) << 23;
  p = p * as_floats(exponent);
  return tiny ? Floats{} : p;
}

// 2^x of x < 128, to about 1e-7, or 1e-4 unless EXACT; 0 where x is -inf or far below -126. NaN stays NaN.
template <bool EXACT>
__attribute__((always_inline)) inline Floats power_of_two(Floats x) {
  // x = n + r with a whole n and |r| <= 1/2; 2^r by the polynomial of least relative error.
#if defined(__AVX512F__)
  const Floats n = (Floats)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT);
  const Floats r = x - n;
#else
  x = x < splat(-126.0f) ? splat(-127.0f) : x;
  const Floats magic = splat(12582912.0f + 127.0f), shifted = x + magic;  // 1.5 * 2^23: the lowest bits are n + 127
  const Floats r = x - (shifted - magic);
#endif
  Floats p;
  if constexpr (EXACT) {
    p = splat(1.5345812e-4f);
    p = p * r + 1.3399931e-3f;
    p = p * r + 9.6184890e-3f;
    p = p * r + 5.5503288e-2f;
    p = p * r + 2.4022647e-1f;
    p = p * r + 6.9314721e-1f;
    p = p * r + 1.0f;
  } else {
    p = splat(5.5171669e-2f);
    p = p * r + 2.4261112e-1f;
    p = p * r + 6.9326099e-1f;
    p = p * r + 9.9992807e-1f;
  }
#if defined(__AVX512F__)
  return (Floats)_mm512_scalef_ps((__m512)p, (__m512)n);  // 0 where n is -inf, although r and p are NaN then
#else
  return p * as_floats(as_ints(shifted) << 23);
#endif
}

// Whether any lane is above `bound`; NaN is not.
inline bool any_above(Floats vector, float bound) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)vector, _mm512_set1_ps(bound), _CMP_GT_OQ) != 0;
#else
  return largest(vector) > bound;
#endif
}

inline Floats hyperbolic_tangent(Floats x) {
  // 1 - 2 / (e^2x + 1), with small arguments by their series, where that would cancel.
  const Floats square = x * x;
  const Floats series = x * (1.0f + square * (-1.0f / 3.0f + square * (2.0f / 15.0f)));
  const Floats general = 1.0f - 2.0f / (exponential(x + x) + 1.0f);
  return square < splat(0.0025f) ? series : general;
}

// bfloat16 --------------------------------------------------------------------------------------------------------

inline Floats widen_bf16(Halves bits) { return as_floats(__builtin_convertvector(bits, Ints) << 16); }

inline float widen_bf16(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

// To nearest, ties to even.
inline uint16_t narrow_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

inline Halves narrow_bf16(Floats values) {
#if defined(__AVX512BF16__)
  return (Halves)_mm512_cvtneps_pbh((__m512)values);
#else
  const Ints bits = as_ints(values);
  const Ints rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Ints nan = (bits >> 16) | 0x40;
  return __builtin_convertvector((values == values) ? rounded : nan, Halves);
#endif
}

// float16 ---------------------------------------------------------------------------------------------------------

inline Floats widen_fp16(Halves bits) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps((__m256i)bits);
#elif defined(__F16C__) && defined(__AVX2__)
  return (Floats)_mm256_cvtph_ps((__m128i)bits);
#else
  const Ints wide = __builtin_convertvector(bits, Ints);
  const Ints sign = (wide & 0x8000) << 16, rest = wide & 0x7fff;
  const Floats scaled = as_floats(rest << 13) * 0x1p112f;  // right for normal and denormal numbers
  const Ints special = (rest << 13) | 0x7f800000;
  return as_floats(sign | (rest >= 0x7c00 ? special : as_ints(scaled)));
#endif
}

inline Halves narrow_fp16(Floats values) {
#if defined(__AVX512F__)
  return (Halves)_mm512_cvtps_ph((__m512)values, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__) && defined(__AVX2__)
  return (Halves)_mm256_cvtps_ph((__m256)values, _MM_FROUND_TO_NEAREST_INT);
#else
  const Ints bits = as_ints(values), sign = (bits >> 16) & 0x8000, rest = bits & 0x7fffffff;
  const Ints normal = (rest - (112 << 23) + 0xfff + ((rest >> 13) & 1)) >> 13;
  const Ints small = as_ints(as_floats(rest) + 0.5f) - 0x3f000000;  // adding 0.5 rounds to multiples of 2^-24
  Ints result = rest < (113 << 23) ? small : normal;
  result = rest >= 0x477ff000 ? splat(int32_t(0x7c00)) : result;  // past the largest: infinity
  result = rest > 0x7f800000 ? splat(int32_t(0x7e00)) : result;
  return __builtin_convertvector(result | sign, Halves);
#endif
}

}  // namespace paceline
