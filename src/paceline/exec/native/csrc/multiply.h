// Products of activations with panels, in blocks of rows and panels whose sums stay in registers.
//
// Every output is summed over k in one chain from the first to the last, whatever the number of rows: a row's result
// does not depend on which other rows share its step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "formats.h"

namespace paceline {

template <int value>
using Number = std::integral_constant<int, value>;

// Rows and panels of one register block.
#if defined(__AVX512F__)
constexpr int kRows = 12, kPanels = 2;
constexpr int kFewRows = 5, kMorePanels = 4;  // few rows take more panels: a weight that is loaded once per row costs as much
                                              // as its product
#elif defined(__AVX2__) || defined(__aarch64__)
constexpr int kRows = 6, kPanels = 1;
constexpr int kFewRows = 3, kMorePanels = 2;
#else
constexpr int kRows = 3, kPanels = 1;
constexpr int kFewRows = 3, kMorePanels = 1;
#endif

constexpr size_t kLine = 64;         // bytes

// Fetched in place of nothing: an address that leads nowhere would be looked up in vain.
alignas(kLine) constexpr char kNothing[kLine] = {};

constexpr int kPieceLines = 32;      // lines of memory that are fetched as one, during as many steps

// Memory that is wanted next, fetched in step with a product, a little at a time, so that the product need not wait.
struct Ahead {
  const char* at[kMorePanels];  // each panel's turn fetches at its own place
  size_t pace = 0;              // bytes from step to step
  const char* const* pieces = nullptr;  // of kPieceLines lines, one for as many steps each, or null; the whole: none

  Ahead() { std::fill(at, at + kMorePanels, kNothing); }

  // `bytes` from `from` on, during so many steps of so many panels. What is more than a line a turn is left out.
  static Ahead region(const char* from, size_t bytes, int panels, int steps) {
    Ahead ahead;
    if (from == nullptr) return ahead;
    const size_t each = bytes / size_t(panels);
    for (int p = 0; p < panels; ++p) ahead.at[p] = from + size_t(p) * each;
    ahead.pace = std::min(kLine, (each + size_t(steps) - 1) / size_t(steps));
    return ahead;
  }
};

// c[r][p * 16 ..] = sum over steps of a[r] times panel b[p]; `stride` is the distance of a panel's rows. kMore: added
// to what is there. Strides are size_t, or Number, which takes no registers: a short product is slower without.
template <class Format, int ROWS, int PANELS, bool kMore = false, class StrideA, class StrideB, class StrideC>
inline void multiply(const typename Format::Activation* a, StrideA a_stride, const typename Format::Stored* const* b,
                     StrideB stride, int steps, float* c, StrideC c_stride, const Ahead& ahead = {}) {
  constexpr int kAcross = PANELS * kVectors, kPer = kLanes * Format::kStep;
  typedef typename Format::Sum Sum;
  Sum sums[ROWS][kAcross] = {};  // kept in registers only if all loops over them are unrolled
  if constexpr (kMore) {
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < kAcross; ++j) sums[r][j] = load<Sum>(c + r * c_stride + j * kLanes);
    }
  }
  const typename Format::Stored* at[PANELS];
  for (int p = 0; p < PANELS; ++p) at[p] = b[p];
  // Of rows whose stride is not known every third has an address of its own: twelve would not fit into registers.
  constexpr bool kKnown = !std::is_same_v<StrideA, size_t>;
  const typename Format::Activation* rows[(ROWS + 2) / 3];
  for (int i = 0; i < (ROWS + 2) / 3; ++i) rows[i] = a + size_t(3 * i) * a_stride;
  size_t fetched = 0;
  for (int begun = 0; begun < steps; begun += kPieceLines) {
    const char* piece = ahead.pieces == nullptr ? nullptr : ahead.pieces[begun / kPieceLines];
    const size_t line = piece == nullptr ? 0 : kLine;
    if (piece == nullptr) piece = kNothing;
    for (int step = begun; step < std::min(steps, begun + kPieceLines); ++step) {
      typename Format::Raw raw[kAcross];
#pragma GCC unroll 8
      for (int p = 0; p < PANELS; ++p) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) raw[p * kVectors + v] = Format::raw(at[p] + v * kPer);
        __builtin_prefetch(ahead.at[p] + fetched, 0, 2);
        at[p] += stride;
      }
      __builtin_prefetch(piece, 0, 2);
      size_t apart = a_stride;
      if constexpr (!kKnown) asm("" : "+r"(apart));  // or the compiler makes addresses of its own
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) {
        const auto* value = kKnown ? a + r * a_stride : rows[r / 3] + size_t(r % 3) * apart;
        const typename Format::Spread spread = Format::spread(value);
#pragma GCC unroll 8
        for (int j = 0; j < kAcross; ++j) sums[r][j] = Format::multiply_add(sums[r][j], spread, raw[j]);
      }
      a += Format::kStep;
#pragma GCC unroll 8
      for (int i = 0; i < (ROWS + 2) / 3; ++i) rows[i] += Format::kStep;
      fetched += ahead.pace;
      piece += line;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kAcross; ++j) store(c + r * c_stride + j * kLanes, sums[r][j]);
  }
}

// The same for 1 <= rows <= kRows known at run time.
template <class Format, int PANELS, bool kMore = false, int ROWS = kRows, class StrideA, class StrideB, class StrideC>
inline void multiply_rows(int rows, const typename Format::Activation* a, StrideA a_stride,
                          const typename Format::Stored* const* b, StrideB stride, int steps, float* c,
                          StrideC c_stride, const Ahead& ahead = {}) {
  if constexpr (ROWS > 1) {
    if (rows < ROWS) {
      return multiply_rows<Format, PANELS, kMore, ROWS - 1>(rows, a, a_stride, b, stride, steps, c, c_stride, ahead);
    }
  }
  multiply<Format, ROWS, PANELS, kMore>(a, a_stride, b, stride, steps, c, c_stride, ahead);
}

// Splits `rows` into blocks of at most kRows, as even as can be: a block of few rows wastes the machine's latency.
inline int even_block(int rows) {
  const int blocks = (rows + kRows - 1) / kRows;
  return (rows + blocks - 1) / blocks;
}

}  // namespace paceline
