// From float32 to GGUF's Q8_0 and Q4_1, for checkpoints that are not quantised.
#pragma once

#include "quantised.h"

namespace paceline {

inline void quantise_q8_0(const float* from, uint8_t* to) {
  float most = 0;
  for (int i = 0; i < kBlock; ++i) most = std::max(most, std::fabs(from[i]));
  const uint16_t half = narrow_fp16(splat(most / 127.0f))[0];
  const float scale = widen_fp16(Halves{} + half)[0], inverse = scale > 0 ? 1.0f / scale : 0.0f;
  std::memcpy(to, &half, 2);
  for (int i = 0; i < kBlock; ++i) {
    to[2 + i] = uint8_t(int8_t(std::max(-127.0f, std::min(127.0f, std::nearbyint(from[i] * inverse)))));
  }
}

// Scale and minimum by least squares: from several ranges somewhat inside the block's own, each rounded and fitted again
// to what it was rounded to; the one that leaves the smallest squared error.
inline void quantise_q4_1(const float* from, uint8_t* to) {
  float low = from[0], high = from[0], total = 0;
  for (int i = 0; i < kBlock; ++i) {
    low = std::min(low, from[i]);
    high = std::max(high, from[i]);
    total += from[i];
  }
  float best_error = INFINITY, best_scale = 0, best_least = low;
  for (int attempt = 0; attempt < 8; ++attempt) {
    const float cut = (high - low) * 0.02f * float(attempt);
    float scale = (high - low - 2 * cut) / 15.0f, least = low + cut;
    if (!(scale > 0)) break;
    for (int fit = 0; fit < 2; ++fit) {
      const float inverse = 1.0f / scale;
      float numbers = 0, squares = 0, products = 0;
      for (int i = 0; i < kBlock; ++i) {
        const float number = std::max(0.0f, std::min(15.0f, std::nearbyint((from[i] - least) * inverse)));
        numbers += number;
        squares += number * number;
        products += number * from[i];
      }
      const float spread = kBlock * squares - numbers * numbers;
      if (!(spread > 0)) break;
      scale = (kBlock * products - numbers * total) / spread;
      if (!(scale > 0)) break;
      least = (total - scale * numbers) / kBlock;
    }
    if (!(scale > 0)) continue;
    scale = widen_fp16(narrow_fp16(splat(scale)))[0];
    least = widen_fp16(narrow_fp16(splat(least)))[0];
    if (!(scale > 0)) continue;
    float error = 0;
    for (int i = 0; i < kBlock; ++i) {
      const float number = std::max(0.0f, std::min(15.0f, std::nearbyint((from[i] - least) / scale)));
      const float off = number * scale + least - from[i];
      error += off * off;
    }
    if (error < best_error) {
      best_error = error;
      best_scale = scale;
      best_least = least;
    }
  }
  const uint16_t scale = narrow_fp16(splat(best_scale))[0], least = narrow_fp16(splat(best_least))[0];
  best_least = widen_fp16(Halves{} + least)[0];
  std::memcpy(to, &scale, 2);
  std::memcpy(to + 2, &least, 2);
  uint8_t numbers[kBlock] = {};
  for (int i = 0; i < kBlock && best_scale > 0; ++i) {
    numbers[i] = uint8_t(std::max(0.0f, std::min(15.0f, std::nearbyint((from[i] - best_least) / best_scale))));
  }
  for (int i = 0; i < kBlock / 2; ++i) to[4 + i] = uint8_t(numbers[i] | numbers[i + kBlock / 2] << 4);
}

}  // namespace paceline
