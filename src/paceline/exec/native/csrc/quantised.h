// Weights held in the few bits that GGUF files store them in, and products with them.
//
// A panel holds 16 columns, one to a lane, and lies block by block: 32 inputs (or 256, for the formats named K) with their
// scales. Four consecutive inputs of a column are the four bytes of its lane, as dot-product instructions want them; where
// a number has four bits, a byte holds one of quad i below one of quad i + 4.
//
// Two products. Exact: numbers are widened to float32, without rounding beyond the format's own, tile by tile into the
// cache, and multiplied as any float32 panel. Rounded: the left side is brought to 8 bits for every 32 numbers, the products
// are sums of integers, and only scales are floating point. In both, a row's result does not depend on the other rows.
#pragma once

#include <algorithm>
#include <cstddef>

#include "formats.h"

namespace paceline {

constexpr int kBlock = 32;                // inputs that are multiplied before a scale applies
constexpr int kQuads = kBlock / 4;
constexpr int kNibbles = kBlock * kPanel / 2;  // bytes of a block of four bits

enum QuantNumber { kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 8, kQ4_K = 12, kQ6_K = 14 };  // as GGUF numbers them

struct QuantisedPanel {
  const uint8_t* data;  // null: zeros
  int64_t kind;         // QuantNumber
};

// A block of a panel, ready to multiply. A weight is (number - kOffset) * scale + least.
struct Opened {
  Ints quads[kQuads][kVectors];
  Floats scale[2][kVectors];  // of the first and the last 16 inputs
  Floats least[kVectors];
};

// 32 numbers of a row of the left side: `numbers` times `scale`.
struct Rounded {
  int8_t numbers[kBlock];
  float scale;
  float scaled_sum;  // of the numbers, times scale
  int32_t sums[2];   // of the first and the last 16
};

// Adds the products of the four unsigned bytes of each lane of `w` with the signed ones of `a`. `kMost`: largest of `w`.
template <int kMost>
inline Ints dot4(Ints total, Ints w, Ints a) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)total, (__m512i)w, (__m512i)a);
#elif defined(__AVX512BW__) || defined(__AVX2__)
#if defined(__AVX512BW__)
  const auto pairs = [](Ints x, Ints y) { return _mm512_maddubs_epi16((__m512i)x, (__m512i)y); };
  const auto join = [](__m512i x, int y) { return (Ints)_mm512_madd_epi16(x, _mm512_set1_epi16(short(y))); };
#else
  const auto pairs = [](Ints x, Ints y) { return _mm256_maddubs_epi16((__m256i)x, (__m256i)y); };
  const auto join = [](__m256i x, int y) { return (Ints)_mm256_madd_epi16(x, _mm256_set1_epi16(short(y))); };
#endif
  if constexpr (kMost <= 127) return total + join(pairs(w, a), 1);  // two products fit into 16 bits
  const Ints low = w & 0x7f7f7f7f, high = (w >> 7) & 0x01010101;
  return total + join(pairs(low, a), 1) + join(pairs(high, a), 128);
#else
  for (int shift = 0; shift < 32; shift += 8) total += ((w >> shift) & 255) * ((a << (24 - shift)) >> 24);
  return total;
#endif
}

inline Floats halves_at(const uint8_t* from, int v) { return widen_fp16(load<Halves>(from + v * kLanes * 2)); }

inline Floats bytes_at(const uint8_t* from, int v, bool sign) {
  Ints wide;
#if defined(__AVX512F__)
  const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  wide = sign ? (Ints)_mm512_cvtepi8_epi32(narrow) : (Ints)_mm512_cvtepu8_epi32(narrow);
#else
  for (int i = 0; i < kLanes; ++i) {
    const uint8_t value = from[v * kLanes + i];
    wide[i] = sign ? int8_t(value) : value;
  }
#endif
  return __builtin_convertvector(wide, Floats);
}

inline Ints quad_at(const uint8_t* from, int quad, int v) { return load<Ints>(from + (quad * kVectors + v) * sizeof(Ints)); }

inline void open_nibbles(const uint8_t* from, Opened& to) {
  for (int quad = 0; quad < kQuads / 2; ++quad) {
    for (int v = 0; v < kVectors; ++v) {
      const Ints both = quad_at(from, quad, v);
      to.quads[quad][v] = both & 0x0f0f0f0f;
      to.quads[quad + kQuads / 2][v] = (both >> 4) & 0x0f0f0f0f;
    }
  }
}

// Input i (of 32) of column `lane`: the byte it lies in, and whether in its upper half.
inline int byte_of(int i, int lane) { return (i / 4 % (kQuads / 2)) * 64 + lane * 4 + i % 4; }
inline void put_nibble(uint8_t* nibbles, int i, int lane, int value) {
  nibbles[byte_of(i, lane)] |= uint8_t(value << (i < kBlock / 2 ? 0 : 4));
}

// Each format: inputs of a block in the file and its bytes there and in a panel; how a column's block goes into a
// panel's (all zero before) and how 32 inputs (the `part`-th of a block) come out of it.

struct Q4_0 {
  static constexpr int kNumber = kQ4_0;
  static constexpr int kInputs = 32, kFileBytes = 18, kBytes = 32 + kNibbles, kOffset = 8, kMost = 15;
  static constexpr bool kHalved = false, kLeast = false;
  static void put(const uint8_t* from, int lane, uint8_t* to) {
    std::memcpy(to + lane * 2, from, 2);
    for (int i = 0; i < kBlock; ++i) put_nibble(to + 32, i, lane, from[2 + i % 16] >> (i / 16 * 4) & 15);
  }
  static void open(const uint8_t* block, int, Opened& to) {
    open_nibbles(block + 32, to);
    for (int v = 0; v < kVectors; ++v) to.scale[0][v] = halves_at(block, v);
  }
};

struct Q4_1 {
  static constexpr int kNumber = kQ4_1;
  static constexpr int kInputs = 32, kFileBytes = 20, kBytes = 64 + kNibbles, kOffset = 0, kMost = 15;
  static constexpr bool kHalved = false, kLeast = true;
  static void put(const uint8_t* from, int lane, uint8_t* to) {
    std::memcpy(to + lane * 2, from, 2);
    std::memcpy(to + 32 + lane * 2, from + 2, 2);
    for (int i = 0; i < kBlock; ++i) put_nibble(to + 64, i, lane, from[4 + i % 16] >> (i / 16 * 4) & 15);
  }
  static void open(const uint8_t* block, int, Opened& to) {
    open_nibbles(block + 64, to);
    for (int v = 0; v < kVectors; ++v) {
      to.scale[0][v] = halves_at(block, v);
      to.least[v] = halves_at(block + 32, v);
    }
  }
};

struct Q8_0 {
  static constexpr int kNumber = kQ8_0;
  static constexpr int kInputs = 32, kFileBytes = 34, kBytes = 32 + kBlock * kPanel, kOffset = 128, kMost = 255;
  static constexpr bool kHalved = false, kLeast = false;
  static void put(const uint8_t* from, int lane, uint8_t* to) {
    std::memcpy(to + lane * 2, from, 2);
    for (int i = 0; i < kBlock; ++i) to[32 + i / 4 * 64 + lane * 4 + i % 4] = uint8_t(from[2 + i] ^ 0x80);
  }
  static void open(const uint8_t* block, int, Opened& to) {
    for (int v = 0; v < kVectors; ++v) {
      for (int quad = 0; quad < kQuads; ++quad) to.quads[quad][v] = quad_at(block + 32, quad, v);
      to.scale[0][v] = halves_at(block, v);
    }
  }
};

struct Q4_K {  // scales and minima of 6 bits for every 32 inputs, to be multiplied by two numbers for all 256
  static constexpr int kNumber = kQ4_K;
  static constexpr int kInputs = 256, kFileBytes = 144, kOffset = 0, kMost = 15;
  static constexpr int kPart = 32 + kNibbles, kBytes = 64 + 8 * kPart;
  static constexpr bool kHalved = false, kLeast = true;
  static void put(const uint8_t* from, int lane, uint8_t* to) {
    std::memcpy(to + lane * 2, from, 2);
    std::memcpy(to + 32 + lane * 2, from + 2, 2);
    const uint8_t *scales = from + 4, *numbers = from + 16;
    for (int part = 0; part < 8; ++part) {
      const int high = part - 4;
      const int scale = part < 4 ? scales[part] & 63 : (scales[part + 4] & 15) | (scales[high] >> 6 << 4);
      const int least = part < 4 ? scales[part + 4] & 63 : (scales[part + 4] >> 4) | (scales[part] >> 6 << 4);
      uint8_t* own = to + 64 + part * kPart;
      own[lane] = uint8_t(scale);
      own[kPanel + lane] = uint8_t(least);
      for (int i = 0; i < kBlock; ++i) {
        put_nibble(own + 32, i, lane, numbers[part / 2 * 32 + i] >> (part % 2 * 4) & 15);
      }
    }
  }
  static void open(const uint8_t* block, int part, Opened& to) {
    const uint8_t* own = block + 64 + part * kPart;
    open_nibbles(own + 32, to);
    for (int v = 0; v < kVectors; ++v) {
      to.scale[0][v] = halves_at(block, v) * bytes_at(own, v, false);
      to.least[v] = -(halves_at(block + 32, v) * bytes_at(own + kPanel, v, false));
    }
  }
};

struct Q6_K {  // four bits of a number in one place, two in another; scales of 8 bits for every 16 inputs
  static constexpr int kNumber = kQ6_K;
  static constexpr int kInputs = 256, kFileBytes = 210, kOffset = 32, kMost = 63;
  static constexpr int kPart = 32 + kNibbles + kNibbles / 2, kBytes = 32 + 8 * kPart;
  static constexpr bool kHalved = true, kLeast = false;
  static void put(const uint8_t* from, int lane, uint8_t* to) {
    const uint8_t *low = from, *high = from + 128, *scales = from + 192;
    std::memcpy(to + lane * 2, from + 208, 2);
    for (int k = 0; k < kInputs; ++k) {
      const int half = k / 128, row = k % 128 / 32, i = k % 32;
      const int four = low[half * 64 + row % 2 * 32 + i] >> (row / 2 * 4) & 15;
      const int two = high[half * 32 + i] >> (row * 2) & 3;
      uint8_t* own = to + 32 + k / kBlock * kPart;
      put_nibble(own + 32, i, lane, four);
      // The two bits of quads i, i + 2, i + 4 and i + 6 share a byte.
      own[32 + kNibbles + i / 4 % 2 * 64 + lane * 4 + i % 4] |= uint8_t(two << (i / 8 * 2));
    }
    for (int i = 0; i < 16; ++i) to[32 + i / 2 * kPart + i % 2 * kPanel + lane] = scales[i];
  }
  static void open(const uint8_t* block, int part, Opened& to) {
    const uint8_t* own = block + 32 + part * kPart;
    open_nibbles(own + 32, to);
    for (int v = 0; v < kVectors; ++v) {
      for (int quad = 0; quad < kQuads; ++quad) {
        const Ints two = quad_at(own + 32 + kNibbles, quad % 2, v) >> (quad / 2 * 2);
        to.quads[quad][v] |= (two & 0x03030303) << 4;
      }
      for (int half = 0; half < 2; ++half) {
        to.scale[half][v] = halves_at(block, v) * bytes_at(own + half * kPanel, v, true);
      }
    }
  }
};

// Calls `work` with a value of the format's type. False for a format that is not here.
template <class Work>
inline bool with_quant(int64_t kind, Work work) {
  switch (kind) {
    case kQ4_0: work(Q4_0()); return true;
    case kQ4_1: work(Q4_1()); return true;
    case kQ8_0: work(Q8_0()); return true;
    case kQ4_K: work(Q4_K()); return true;
    case kQ6_K: work(Q6_K()); return true;
    default: return false;
  }
}

// Rows of a matrix as they lie in a file into panels, one after the other; the rest of the last is zero.
template <class Quant>
inline void pack_quantised(const uint8_t* matrix, int rows, int inputs, uint8_t* panels) {
  const size_t blocks = size_t(inputs / Quant::kInputs);
  for (int row = 0; row < rows; ++row) {
    uint8_t* panel = panels + size_t(row / kPanel) * blocks * Quant::kBytes;
    for (size_t block = 0; block < blocks; ++block) {
      Quant::put(matrix + (size_t(row) * blocks + block) * Quant::kFileBytes, row % kPanel, panel + block * Quant::kBytes);
    }
  }
}

// Inputs [first, first + count) of a panel as float32 [count, 16]. Both are multiples of 32.
inline void widen_panel(const QuantisedPanel& panel, int first, int count, float* to) {
  if (panel.data == nullptr) {
    std::fill(to, to + size_t(count) * kPanel, 0.0f);
    return;
  }
  with_quant(panel.kind, [&](auto quant) {
    typedef decltype(quant) Quant;
    for (int k = first; k < first + count; k += kBlock) {
      Opened opened;
      Quant::open(panel.data + size_t(k / Quant::kInputs) * Quant::kBytes, k % Quant::kInputs / kBlock, opened);
      for (int i = 0; i < kBlock; ++i) {
        for (int v = 0; v < kVectors; ++v, to += kLanes) {
          const Ints number = ((opened.quads[i / 4][v] >> (i % 4 * 8)) & 255) - Quant::kOffset;
          Floats value = __builtin_convertvector(number, Floats) * opened.scale[Quant::kHalved ? i / 16 : 0][v];
          if (Quant::kLeast) value = value + opened.least[v];
          store(to, value);
        }
      }
    }
  });
}

// Row `row` of the matrix that was packed, as float32 [inputs].
inline void widen_row(const QuantisedPanel* panels, int64_t row, int inputs, float* to) {
  alignas(64) float tile[kBlock * kPanel];
  for (int k = 0; k < inputs; k += kBlock) {
    widen_panel(panels[row / kPanel], k, kBlock, tile);
    for (int i = 0; i < kBlock; ++i) to[k + i] = tile[i * kPanel + row % kPanel];
  }
}

// A row of the left side [inputs] to 8 bits: blocks `stride` apart. What is not finite makes its block NaN.
inline void round_row(const float* from, int inputs, Rounded* to, size_t stride) {
  for (int k = 0; k < inputs; k += kBlock, from += kBlock, to += stride) {
    float probe;
    const float top = largest_magnitude(from, kBlock, probe), inverse = top > 0 ? 127.0f / top : 0.0f;
    to->scale = top / 127.0f + probe;
    Ints sums[2] = {};
    for (int i = 0; i < kBlock; i += kLanes) {
      // Adding 1.5 * 2^23 rounds to a whole number, ties to even.
      const Floats whole = load<Floats>(from + i) * inverse + 12582912.0f;
      const Ints number = as_ints(whole) - 0x4b400000;
      sums[i / 16] += number;
#if defined(__AVX512F__)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to->numbers + i), _mm512_cvtepi32_epi8((__m512i)number));
#else
      for (int j = 0; j < kLanes; ++j) to->numbers[i + j] = int8_t(number[j]);
#endif
    }
    for (int half = 0; half < 2; ++half) {
      to->sums[half] = 0;
      for (int j = 0; j < kLanes; ++j) to->sums[half] += sums[half][j];
    }
    to->scaled_sum = to->scale * float(to->sums[0] + to->sums[1]);
  }
}

template <class Format>
inline void round_activations(const typename Format::Activation* from, int inputs, Rounded* to, size_t stride) {
  alignas(64) float wide[kBlock];
  for (int k = 0; k < inputs; k += kBlock, to += stride) {
    for (int i = 0; i < kBlock; ++i) wide[i] = Format::number(from[k + i]);
    round_row(wide, kBlock, to, 1);
  }
}

// c[r][0 .. 16) = a[r] times a panel, for `count` rows rounded by round_row, whose blocks are `stride` apart and whose
// rows lie side by side. Not inlined: one piece of code, however many rows there are.
template <class Quant>
__attribute__((noinline)) void multiply_rounded(const uint8_t* panel, int inputs, const Rounded* a, size_t stride,
                                                int count, float* c, size_t c_stride) {
  constexpr size_t kFetched = 4096;  // bytes ahead
  for (int k = 0; k < inputs; k += kBlock, a += stride) {
    const int part = k % Quant::kInputs / kBlock;
    const uint8_t* block = panel + size_t(k / Quant::kInputs) * Quant::kBytes;
    constexpr int kPer = Quant::kBytes / (Quant::kInputs / kBlock);
    for (int i = 0; i < kPer; i += 64) __builtin_prefetch(block + part * kPer + i + kFetched, 0, 2);
    Opened opened;
    Quant::open(block, part, opened);
    for (int r = 0; r < count; ++r) {
      const Rounded& row = a[r];
      constexpr int kHalves = Quant::kHalved ? 2 : 1;
      Ints dots[kHalves][kVectors];
      for (int half = 0; half < kHalves; ++half) {
        const int total = Quant::kHalved ? row.sums[half] : row.sums[0] + row.sums[1];
        for (int v = 0; v < kVectors; ++v) dots[half][v] = splat(Quant::kOffset * -total);
      }
#pragma GCC unroll 8
      for (int quad = 0; quad < kQuads; ++quad) {
        const Ints numbers = splat(load<int32_t>(row.numbers + quad * 4));
        Ints* own = dots[Quant::kHalved ? quad / (kQuads / 2) : 0];
        for (int v = 0; v < kVectors; ++v) own[v] = dot4<Quant::kMost>(own[v], opened.quads[quad][v], numbers);
      }
      float* to = c + r * c_stride;
      for (int v = 0; v < kVectors; ++v, to += kLanes) {
        Floats value = __builtin_convertvector(dots[0][v], Floats) * opened.scale[0][v];
        if constexpr (Quant::kHalved) value = value + __builtin_convertvector(dots[1][v], Floats) * opened.scale[1][v];
        Floats total = k == 0 ? Floats{} : load<Floats>(to);
        total = total + value * row.scale;
        if constexpr (Quant::kLeast) total = total + opened.least[v] * row.scaled_sum;
        store(to, total);
      }
    }
  }
}

}  // namespace paceline
