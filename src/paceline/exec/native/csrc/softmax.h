// One chunk of keys: from scores to weights, and the sum of values they weigh, with an online softmax (Milakov and Gimelshein
// 2018).
#pragma once

#include "kv_blocks.h"

namespace paceline {

constexpr float kLowest = -1e30f;  // below any score, and finite: differences stay numbers
constexpr float kLog2OfE = 1.44269504088896341f;
constexpr float kSlack = 8.0f;  // the maximum that scores are taken from follows the true one only once that is so many powers
                                // of two above it: what was summed is seldom scaled anew (as in FlashAttention 4)

// o[r] = o[r] * shrink[r] + p[r] times the values of `count` blocks, for PANELS panels of their columns. Of `ahead`, as many
// blocks are fetched meanwhile, `ahead_bytes` of each; null: nothing. `factors`: of sums of whole numbers.
template <class Format, int ROWS, int PANELS, class StrideP, class StrideO>
inline void gather(const typename Format::Activation* p, StrideP p_stride, const typename Format::Stored* const* blocks,
                   int count, size_t column, size_t stride, const float* shrink, const float* factors,
                   float* o, StrideO o_stride, const char* const* ahead, size_t ahead_bytes) {
  constexpr int kAcross = PANELS * kVectors, kPer = kLanes * Format::kStep;
  constexpr bool kFloats = std::is_same_v<typename Format::Sum, Floats>;
  typename Format::Sum sums[ROWS][kAcross] = {};
  if constexpr (kFloats) {
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < kAcross; ++j) sums[r][j] = load<Floats>(o + r * o_stride + j * kLanes) * shrink[r];
    }
  }
  // Nothing here may be a call: all sums would go through memory.
  constexpr int kTurns = kBlockTokens / Format::kStep;
  const size_t each = ahead_bytes / PANELS, pace = std::min(kLine, (each + kTurns - 1) / kTurns);
  for (int block = 0; block < count; ++block) {
    const typename Format::Stored* from = blocks[block] + column * Format::kStep;
    const char* fetched = ahead == nullptr ? nullptr : ahead[block];
    const size_t turn = fetched == nullptr ? 0 : pace, apart = fetched == nullptr ? 0 : each;
    if (fetched == nullptr) fetched = kNothing;
    for (int t = 0; t < kBlockTokens; t += Format::kStep, p += Format::kStep, from += stride, fetched += turn) {
      typename Format::Raw raw[kAcross];
#pragma GCC unroll 8
      for (int j = 0; j < kAcross; ++j) raw[j] = Format::raw(from + j * kPer);
#pragma GCC unroll 8
      for (int i = 0; i < PANELS; ++i) __builtin_prefetch(fetched + i * apart, 0, 2);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) {
        const typename Format::Spread spread = Format::spread(p + r * p_stride);
#pragma GCC unroll 8
        for (int j = 0; j < kAcross; ++j) sums[r][j] = Format::multiply_add(sums[r][j], spread, raw[j]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kAcross; ++j) {
      float* to = o + r * o_stride + j * kLanes;
      if constexpr (kFloats) store(to, sums[r][j]);
      else store(to, load<Floats>(to) * shrink[r] + __builtin_convertvector(sums[r][j], Floats) * factors[r]);
    }
  }
}

template <class Format, int PANELS, int ROWS = kRows, class StrideP, class StrideO>
inline void gather_rows(int rows, const typename Format::Activation* p, StrideP p_stride,
                        const typename Format::Stored* const* blocks, int count, size_t column, size_t stride,
                        const float* shrink, const float* factors, float* o, StrideO o_stride,
                        const char* const* ahead, size_t ahead_bytes) {
  if constexpr (ROWS > 1) {
    if (rows < ROWS) {
      return gather_rows<Format, PANELS, ROWS - 1>(rows, p, p_stride, blocks, count, column, stride, shrink,
                                                   factors, o, o_stride, ahead, ahead_bytes);
    }
  }
  gather<Format, ROWS, PANELS>(p, p_stride, blocks, count, column, stride, shrink, factors, o, o_stride, ahead,
                               ahead_bytes);
}

struct Scoring {
  float scale;
  float softcap;   // 0: none
  int64_t window;  // 0: none
};

// To 16 bits, what is largest to 32,767; `count` is rounded up to whole vectors. Returns what turns them back, NaN where a
// number is not finite.
inline float to_whole(const float* from, int count, int16_t* to) {
  float probe;
  const float top = largest_magnitude(from, count, probe), inverse = top > 0 ? 32767.0f / top : 0.0f;
  for (int i = 0; i < count; i += kLanes) {
    const Floats whole = load<Floats>(from + i) * inverse + 12582912.0f;  // 1.5 * 2^23, see narrow_row
    store(to + i, __builtin_convertvector(as_ints(whole), Shorts));
  }
  return top / 32767.0f + probe;
}

// Scores of one row and `count` keys into weights, keys outside [low, high) of the chunk excluded. Returns the factor
// on what was summed before. `maximum`: in powers of two, see kSlack; `total`: the sum of weights, lane by lane.
// `key_scales`, `value_scales`: of the keys and values of the chunk, in 8 bits only. `query_factor` and, out,
// `weights_factor`: of whole numbers.
template <class Format>
inline float weigh(float* scores, int count, int64_t low, int64_t high, const Scoring& scoring, const float* key_scales,
                   const float* value_scales, float& maximum, float* total,
                   typename Traits<Format>::Products::Activation* weights, float query_factor,
                   float& weights_factor) {
  constexpr bool kScaled = Traits<Format>::kScaled, kWhole = Traits<Format>::kWhole;
  const float cap = scoring.softcap, scale = kWhole ? scoring.scale * query_factor : scoring.scale;
  const bool whole = low <= 0 && high >= count, plain = !kScaled && whole && !(cap > 0);
  Floats most = splat(-INFINITY);
  for (int i = 0; i < count && plain; i += kLanes) most = larger(load<Floats>(scores + i), most);
  for (int i = 0; i < count && !plain; i += kLanes) {
    Floats score;
    if constexpr (kWhole) score = __builtin_convertvector(load<Ints>(scores + i), Floats) * scale;
    else score = load<Floats>(scores + i) * scale;
    if constexpr (kScaled) score *= load<Floats>(key_scales + i);
    if (cap > 0) score = cap * hyperbolic_tangent(score / cap);
    if (!whole) {
      const Ints key = iota() + i;
      score = ((key >= int32_t(low)) & (key < int32_t(high))) ? score : splat(-INFINITY);
    }
    store(scores + i, score);
    most = larger(score, most);
  }
  const float factor = plain ? scale * kLog2OfE : kLog2OfE;
  float shrink = 1.0f;
  if (any_above(most * factor, maximum + kSlack)) {
    const float now = largest(most) * factor;
    shrink = power_of_two<true>(splat(maximum - now))[0];
    maximum = now;
  }
  Floats sums = load<Floats>(total) * shrink;
  for (int i = 0; i < count; i += kLanes) {
    Floats weight = power_of_two<!Format::kRounds>(load<Floats>(scores + i) * factor - maximum);
    sums += weight;
    if constexpr (kScaled) weight *= load<Floats>(value_scales + i);
    if constexpr (kWhole) store(scores + i, weight);
    else Format::activations(weights + i, weight);
  }
  if constexpr (kWhole) weights_factor = to_whole(scores, count, weights);
  store(total, sums);
  return shrink;
}

}  // namespace paceline
