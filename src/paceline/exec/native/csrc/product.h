// The linear maps of a model: products with packed weights, part by part.
#pragma once

#include "multiply.h"
#include "quantised.h"
#include "team.h"

namespace paceline {

constexpr int kGroup = 2;            // panels of one part of a linear map
constexpr int kGroupColumns = kGroup * kPanel;
constexpr int kBlockRows = 96;       // rows of one part; with 1,536 inputs they stay in a second-level cache
constexpr int kTileInputs = 1024;    // inputs of a panel that are widened at once; two panels take 128 KiB

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

// What is fetched during one part of a map.
struct Wanted {
  Region weights = {nullptr, 0};
  const char* const* pieces = nullptr;  // pieces_of(map, rows) of them; see Ahead
};

// How many pieces can be fetched during one part of a map.
template <class Format>
inline int pieces_of(const Linear& map, int rows) {
  const int height = even_block(rows), calls = (rows + height - 1) / height * (kGroup / kPanels);
  return calls * ((map.inputs / Format::kStep + kPieceLines - 1) / kPieceLines);
}

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
                           const Wanted& wanted) {
  constexpr int kStride = kPanel * Format::kStep;
  const int steps = map.inputs / Format::kStep, height = even_block(count);
  const size_t panel = size_t(steps) * kStride;
  const int calls = (count + height - 1) / height * (kGroup / kPanels), pieces = pieces_of<Format>(map, count) / calls;
  const Region next{wanted.weights.at, wanted.weights.bytes / size_t(calls)};
  const typename Format::Stored* weights =
      static_cast<const typename Format::Stored*>(map.panels) + size_t(group) * kGroup * panel;
  for (int first = 0, call = 0; first < count; first += height) {
    for (int p = 0; p < kGroup; p += kPanels, ++call) {
      const typename Format::Stored* panels[kPanels];
      for (int i = 0; i < kPanels; ++i) panels[i] = weights + size_t(p + i) * panel;
      Ahead ahead = Ahead::region(next.at == nullptr ? nullptr : next.at + next.bytes * size_t(call), next.bytes, kPanels, steps);
      if (wanted.pieces != nullptr) ahead.pieces = wanted.pieces + call * pieces;
      multiply_rows<Format, kPanels>(std::min(height, count - first), left.numbers + size_t(row + first) * left.stride,
                                     left.stride, panels, Number<kStride>(), steps,
                                     sums + first * kGroupColumns + p * kPanel, Number<kGroupColumns>(), ahead);
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
        const Number<kPanel> stride;
        const Number<kGroupColumns> across;
        if (k == 0) multiply_rows<Float32, kPanels>(rows, a, left.stride, panels, stride, some, to, across);
        else multiply_rows<Float32, kPanels, true>(rows, a, left.stride, panels, stride, some, to, across);
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
// its bias; columns past `outputs` are zero. `wanted`: what is fetched meanwhile, of plain weights only.
template <class Format, class Take>
inline void linear_part(const Linear& map, const Left<Format>& left, int part, const Wanted& wanted, Take take) {
  const int groups = groups_of(map), group = part % groups, first = part / groups * kBlockRows;
  const int count = std::min(left.rows - first, kBlockRows), column = group * kGroupColumns;
  alignas(64) float sums[kBlockRows * kGroupColumns];
  if (map.quantised == nullptr) multiply_plain(map, left, first, count, group, sums, wanted);
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
