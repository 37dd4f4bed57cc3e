// Where K/V lie, and how they get there.
//
// K/V of a layer lie in blocks of 16 tokens, [block][kv head]: keys as panels [key_size / step][16][step], one column per
// token, and values as [16 / step][value_size][step]. Both are the right side of a product as they lie, so neither is ever
// copied. A scheduler's block of more tokens is several of these.
//
// In 8 bits (Eight<Format>) a block of keys, or values, is followed by the 16 scales of its tokens, float32; see Traits.
#pragma once

#include "multiply.h"

namespace paceline {

constexpr int kBlockTokens = kPanel;
constexpr int kMostSize = 256;  // largest head

struct Cache {
  void* keys;
  void* values;
  int32_t kv_heads;
  int32_t key_size;
  int32_t value_size;    // as the model has it
  int32_t value_stride;  // as stored: a multiple of 16
  int32_t eight;         // whether K/V are in 8 bits
};

// Where the tokens of a step sit; see AttentionMetadata.
struct Places {
  int32_t tokens;
  int32_t rows;
  int32_t block_size;
  int32_t table_stride;
  const int64_t* slots;
  const int32_t* query_starts;
  const int32_t* lengths;
  const int32_t* block_table;
};

inline size_t block_of(const Places& places, int row, int64_t logical) {
  const int64_t within = places.block_size / kBlockTokens;
  return size_t(places.block_table[size_t(row) * places.table_stride + size_t(logical / within)] * within + logical % within);
}

template <class Format>
struct Blocks {
  typedef typename Format::Stored Stored;
  static constexpr bool kScaled = Traits<Format>::kScaled;
  static constexpr size_t kScales = kScaled ? kBlockTokens * sizeof(float) / sizeof(Stored) : 0;
  static size_t key_elements(const Cache& cache) { return size_t(cache.key_size) * kBlockTokens + kScales; }
  static size_t value_elements(const Cache& cache) { return size_t(cache.value_stride) * kBlockTokens + kScales; }
  static Stored* keys(const Cache& cache, size_t block, int head) {
    return static_cast<Stored*>(cache.keys) + (block * cache.kv_heads + head) * key_elements(cache);
  }
  static Stored* values(const Cache& cache, size_t block, int head) {
    return static_cast<Stored*>(cache.values) + (block * cache.kv_heads + head) * value_elements(cache);
  }
  static size_t value_index(const Cache& cache, int offset, int i) {
    return (size_t(offset / Format::kStep) * cache.value_stride + i) * Format::kStep + offset % Format::kStep;
  }
  // The scales of the tokens of a block of keys of `size`, or of values.
  static char* scales(Stored* block, int size) { return reinterpret_cast<char*>(block + size_t(size) * kBlockTokens); }
  static void put_key(const Cache& cache, int64_t slot, int head, const float* key) {
    alignas(64) Stored narrow[kMostSize + kLanes];
    const int offset = int(slot % kBlockTokens);
    Stored* block = keys(cache, size_t(slot / kBlockTokens), head);
    narrow_row(key, cache.key_size, narrow, scales(block, cache.key_size) + offset * sizeof(float));
    Stored* to = block + offset * Format::kStep;
    for (int i = 0; i < cache.key_size; i += Format::kStep, to += kBlockTokens * Format::kStep) {
      for (int s = 0; s < Format::kStep; ++s) to[s] = narrow[i + s];
    }
  }
  static void put_value(const Cache& cache, int64_t slot, int head, const float* value) {
    alignas(64) Stored narrow[kMostSize + kLanes];
    const int offset = int(slot % kBlockTokens);
    Stored* block = values(cache, size_t(slot / kBlockTokens), head);
    narrow_row(value, cache.value_size, narrow, scales(block, cache.value_stride) + offset * sizeof(float));
    Stored* to = block + value_index(cache, offset, 0);
    for (int i = 0; i < cache.value_size; ++i) to[i * Format::kStep] = narrow[i];
  }

 private:
  // To Stored; in 8 bits the scale goes to `scale`, and is NaN where a number is not finite.
  static void narrow_row(const float* from, int size, Stored* to, char* scale) {
    if constexpr (kScaled) {
      float most = 0, probe = 0;
      for (int i = 0; i < size; ++i) {
        most = std::max(most, std::fabs(from[i]));
        probe += from[i] * 0.0f;
      }
      const float inverse = most > 0 ? 127.0f / most : 0.0f, factor = most / 127.0f + probe;
      std::memcpy(scale, &factor, sizeof factor);
      // Adding 1.5 * 2^23 rounds to a whole number, which is then in the lowest bits.
      for (int i = 0; i < size; ++i) {
        const float whole = from[i] * inverse + 12582912.0f;
        int32_t bits;
        std::memcpy(&bits, &whole, sizeof bits);
        to[i] = int8_t(bits);
      }
    } else {
      int i = 0;
      for (; i + kLanes <= size; i += kLanes) Format::narrow(to + i, load<Floats>(from + i));
      for (; i < size; ++i) to[i] = Format::narrow(from[i]);
    }
  }
};

}  // namespace paceline
