// Products of activations with panels, and the linear maps of a model built on them.
//
// Every output is summed over k in one chain from the first to the last, whatever the number of rows: a row's result
// does not depend on which other rows share its step.
#pragma once

#include <algorithm>
#include <cstddef>

#include "formats.h"
#include "quantised.h"
#include "team.h"

namespace paceline {

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
constexpr int kGroup = 2;            // panels of one part of a linear map
constexpr int kGroupColumns = kGroup * kPanel;
constexpr int kBlockRows = 96;       // rows of one part; with 1,536 inputs they stay in a second-level cache
constexpr int kTileInputs = 1024;    // inputs of a panel that are widened at once; two panels take 128 KiB

constexpr size_t kLine = 64;         // bytes

// Memory that is wanted next, fetched in step with a product, a little at a time, so that the product need not wait.
struct Ahead {
  const char* at[kMorePanels];  // each panel's turn fetches at its own place
  size_t pace = 0;              // bytes from step to step

  Ahead() {
    alignas(64) static const char nothing[kLine] = {};  // an address that leads nowhere would be looked up in vain
    std::fill(at, at + kMorePanels, nothing);
  }

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
// to what is there.
template <class Format, int ROWS, int PANELS, bool kMore = false>
inline void multiply(const typename Format::Activation* a, size_t a_stride, const typename Format::Stored* const* b,
                     size_t stride, int steps, float* c, size_t c_stride, const Ahead& ahead = {}) {
  constexpr int kAcross = PANELS * kVectors, kPer = kLanes * Format::kStep;
  typedef typename Format::Sum Sum;
  Sum sums[ROWS][kAcross] = {};
  if constexpr (kMore) {
    for (int r = 0; r < ROWS; ++r) {
      for (int j = 0; j < kAcross; ++j) sums[r][j] = load<Sum>(c + r * c_stride + j * kLanes);
    }
  }
  const typename Format::Stored* at[PANELS];
  for (int p = 0; p < PANELS; ++p) at[p] = b[p];
  size_t fetched = 0;
  for (int step = 0; step < steps; ++step, a += Format::kStep, fetched += ahead.pace) {
    typename Format::Raw raw[kAcross];
#pragma GCC unroll 8
    for (int p = 0; p < PANELS; ++p) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) raw[p * kVectors + v] = Format::raw(at[p] + v * kPer);
      __builtin_prefetch(ahead.at[p] + fetched, 0, 2);
      at[p] += stride;
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const typename Format::Spread spread = Format::spread(a + r * a_stride);
#pragma GCC unroll 8
      for (int j = 0; j < kAcross; ++j) sums[r][j] = Format::multiply_add(sums[r][j], spread, raw[j]);
    }
  }
  for (int r = 0; r < ROWS; ++r) {
    for (int j = 0; j < kAcross; ++j) store(c + r * c_stride + j * kLanes, sums[r][j]);
  }
}

// The same for 1 <= rows <= kRows known at run time.
template <class Format, int PANELS, bool kMore = false, int ROWS = kRows>
inline void multiply_rows(int rows, const typename Format::Activation* a, size_t a_stride,
                          const typename Format::Stored* const* b, size_t stride, int steps, float* c,
                          size_t c_stride, const Ahead& ahead = {}) {
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

struct Linear {
  const void* panels;  // [outputs / 16][inputs / step][16][step]; outputs padded to 32
  const float* bias;   // [outputs, padded] or null
  int32_t inputs;
  int32_t outputs;
  const QuantisedPanel* quantised;  // [outputs / 16], padded to 32 outputs; null: `panels` holds the weights
};

// Whether the left side of a map is rounded to 8 bits first: of quantised ones, where the format rounds anyway.
template <class Format>
inline bool rounds(const Linear& map) {
  return Format::kRounds && map.quantised != nullptr;
}

// What a map is applied to: rows of activations, or the same rounded by round_row.
template <class Format>
struct Left {
  const typename Format::Activation* numbers;
  size_t stride;           // of numbers
  const Rounded* rounded;  // [inputs / 32][rows]
  int rows;
};

inline int groups_of(const Linear& map) { return (map.outputs + kGroupColumns - 1) / kGroupColumns; }

inline int parts_of(const Linear& map, int rows) {
  return groups_of(map) * ((rows + kBlockRows - 1) / kBlockRows);
}

struct Region {
  const char* at;  // null: nothing
  size_t bytes;
};

// The weights of a part of a map.
template <class Format>
inline Region weights_of(const Linear& map, int part) {
  const size_t group = size_t(kGroupColumns) * map.inputs * sizeof(typename Format::Stored);
  if (map.panels == nullptr || map.quantised != nullptr) return {nullptr, 0};
  return {static_cast<const char*>(map.panels) + size_t(part % groups_of(map)) * group, group};
}

// `count` rows from `row` on times the panels of a group: sums [count, 32].
template <class Format>
inline void multiply_plain(const Linear& map, const Left<Format>& left, int row, int count, int group, float* sums,
                           Region ahead) {
  constexpr size_t kStride = kPanel * Format::kStep;
  const int steps = map.inputs / Format::kStep, height = even_block(count);
  const size_t panel = size_t(steps) * kStride;
  const int calls = (count + height - 1) / height * (kGroup / kPanels);
  const typename Format::Stored* weights =
      static_cast<const typename Format::Stored*>(map.panels) + size_t(group) * kGroup * panel;
  for (int first = 0, call = 0; first < count; first += height) {
    for (int p = 0; p < kGroup; p += kPanels, ++call) {
      const typename Format::Stored* panels[kPanels];
      for (int i = 0; i < kPanels; ++i) panels[i] = weights + size_t(p + i) * panel;
      multiply_rows<Format, kPanels>(std::min(height, count - first), left.numbers + size_t(row + first) * left.stride,
                                     left.stride, panels, kStride, steps,
                                     sums + first * kGroupColumns + p * kPanel, kGroupColumns,
                                     Ahead::region(ahead.at == nullptr ? nullptr : ahead.at + ahead.bytes / calls * call,
                                                   ahead.bytes / calls, kPanels, steps));
    }
  }
}

// The same with quantised panels, exactly: widened tile by tile.
template <class Format>
inline void multiply_widened(const Linear& map, const Left<Format>& left, int row, int count, int group, float* sums) {
  static_assert(sizeof(typename Format::Activation) == sizeof(float), "exact products are float32");
  alignas(64) static thread_local float tiles[kGroup][kTileInputs * kPanel];
  const int height = even_block(count);
  for (int k = 0; k < map.inputs; k += kTileInputs) {
    const int some = std::min(kTileInputs, map.inputs - k);
    for (int p = 0; p < kGroup; ++p) widen_panel(map.quantised[group * kGroup + p], k, some, tiles[p]);
    for (int first = 0; first < count; first += height) {
      const float* a = left.numbers + size_t(row + first) * left.stride + k;
      const int rows = std::min(height, count - first);
      for (int p = 0; p < kGroup; p += kPanels) {
        const float* panels[kPanels];
        for (int i = 0; i < kPanels; ++i) panels[i] = tiles[p + i];
        float* to = sums + first * kGroupColumns + p * kPanel;
        if (k == 0) multiply_rows<Float32, kPanels>(rows, a, left.stride, panels, kPanel, some, to, kGroupColumns);
        else multiply_rows<Float32, kPanels, true>(rows, a, left.stride, panels, kPanel, some, to, kGroupColumns);
      }
    }
  }
}

// The same with quantised panels and a rounded left side.
template <class Format>
inline void multiply_in_8_bits(const Linear& map, const Left<Format>& left, int row, int count, int group, float* sums) {
  for (int p = 0; p < kGroup; ++p) {
    const QuantisedPanel& panel = map.quantised[group * kGroup + p];
    float* to = sums + p * kPanel;
    const bool there = panel.data != nullptr && with_quant(panel.kind, [&](auto quant) {
      multiply_rounded<decltype(quant)>(panel.data, map.inputs, left.rounded + row, size_t(left.rows), count, to,
                                        kGroupColumns);
    });
    for (int r = 0; r < count && !there; ++r) std::fill(to + r * kGroupColumns, to + r * kGroupColumns + kPanel, 0.0f);
  }
}

// One part of the left side times the map. `take(row, column, float[32])` gets each finished piece of a row, with
// its bias; columns past `outputs` are zero. `ahead`: what this thread will want next.
template <class Format, class Take>
inline void linear_part(const Linear& map, const Left<Format>& left, int part, Region ahead, Take take) {
  const int groups = groups_of(map), group = part % groups, first = part / groups * kBlockRows;
  const int count = std::min(left.rows - first, kBlockRows), column = group * kGroupColumns;
  alignas(64) float sums[kBlockRows * kGroupColumns];
  if (map.quantised == nullptr) multiply_plain(map, left, first, count, group, sums, ahead);
  else if constexpr (Format::kRounds) multiply_in_8_bits(map, left, first, count, group, sums);
  else multiply_widened(map, left, first, count, group, sums);
  for (int r = 0; r < count; ++r) {
    float* piece = sums + r * kGroupColumns;
    if (map.bias != nullptr) {
      for (int i = 0; i < kGroupColumns; ++i) piece[i] += map.bias[column + i];
    }
    take(first + r, column, piece);
  }
}

// What comes after a part, most likely: the threads go through the parts side by side. `next`: the map that is multiplied
// after this one, or null.
template <class Format>
inline Region after(const Linear& map, int rows, int part, int threads, const Linear* next) {
  const int parts = parts_of(map, rows), other = part + threads;
  if (other < parts) return weights_of<Format>(map, other);
  return next == nullptr ? Region{nullptr, 0} : weights_of<Format>(*next, other - parts);
}

// Rows [rows, inputs] of a plain matrix into every `spacing`-th panel from `panels` on; the rest of the last is zero.
template <class Format>
inline void pack(const typename Format::Stored* matrix, int rows, int inputs, typename Format::Stored* panels,
                 int spacing) {
  const size_t panel = size_t(inputs) * kPanel;
  for (int first = 0; first < rows; first += kPanel, panels += panel * spacing) {
    for (int k = 0; k < inputs; k += Format::kStep) {
      typename Format::Stored* to = panels + size_t(k) * kPanel;
      for (int c = 0; c < kPanel; ++c) {
        for (int s = 0; s < Format::kStep; ++s) {
          *to++ = first + c < rows ? matrix[size_t(first + c) * inputs + k + s] : typename Format::Stored(0);
        }
      }
    }
  }
}

// Row `row` of a packed matrix as float32.
template <class Format>
inline void unpack_row(const typename Format::Stored* panels, int row, int inputs, float* to) {
  const typename Format::Stored* panel = panels + size_t(row / kPanel) * inputs * kPanel;
  for (int k = 0; k < inputs; k += Format::kStep) {
    const typename Format::Stored* from = panel + size_t(k) * kPanel + row % kPanel * Format::kStep;
    for (int s = 0; s < Format::kStep; ++s) to[k + s] = Format::widen(from[s]);
  }
}

}  // namespace paceline
