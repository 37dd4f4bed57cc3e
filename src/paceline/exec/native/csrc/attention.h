// Attention over paged K/V, prefill and decode alike, chunk by chunk of keys (Dao et al. 2022).
#pragma once

#include <atomic>
#include <vector>

#include "softmax.h"

namespace paceline {

constexpr int kChunkTokens = 128;  // keys between two looks at the running maximum
constexpr int kPartTokens = 256;   // keys of a decode row one thread takes; fixed, so results don't depend on the threads
constexpr int kTileRows = 48;      // query rows (tokens x heads that share K/V) of one part of a prefill

struct Task {
  int32_t row, first, last;  // tokens of the row, counted within the step
  int32_t part, parts;       // of the keys; only rows of one token have several
  int32_t partial;           // where the row's partial results begin
};

struct Tasks {
  std::vector<Task> list;
  std::vector<float> partials;             // [part][head][value_stride + 2]
  std::vector<std::atomic<int>> finished;  // [row, unit] parts that are done
};

// The query heads of one K/V head that are computed together: all, unless they are very many.
struct Units {
  int shared;  // query heads of one K/V head
  int splits;  // units per K/V head

  explicit Units(int shared_heads) : shared(shared_heads), splits((shared_heads + kTileRows - 1) / kTileRows) {}
  int first(int unit) const { return unit / splits * shared + unit % splits * kTileRows; }
  int heads(int unit) const { return std::min(kTileRows, shared - unit % splits * kTileRows); }
};

inline void plan_tasks(Tasks& tasks, const Places& places, int kv_heads, int shared, int value_stride) {
  tasks.list.clear();
  const int tile = std::max(1, kTileRows / shared), units = kv_heads * Units(shared).splits;
  int partials = 0;
  for (int row = 0; row < places.rows; ++row) {
    const int count = places.query_starts[row + 1] - places.query_starts[row];
    if (count == 1) {
      const int parts = (places.lengths[row] + kPartTokens - 1) / kPartTokens;
      for (int part = 0; part < parts; ++part) tasks.list.push_back({row, 0, 1, part, parts, partials});
      if (parts > 1) partials += parts;
    } else {
      // The last tokens see the most keys: they go first, so that no thread is left with a long part at the end.
      for (int first = (count - 1) / tile * tile; first >= 0; first -= tile) {
        tasks.list.push_back({row, first, std::min(count, first + tile), 0, 1, 0});
      }
    }
  }
  const size_t needed = size_t(partials) * kv_heads * shared * (value_stride + 2);
  if (tasks.partials.size() < needed) tasks.partials.resize(needed);
  const size_t counters = size_t(places.rows) * units;
  if (tasks.finished.size() < counters) tasks.finished = std::vector<std::atomic<int>>(2 * counters);
}

template <int value>
using Number = std::integral_constant<int, value>;

// The first keys of a task, which are wanted as soon as it begins.
struct Begun {
  const char* keys[kChunkTokens / kBlockTokens];
  int count = 0;
};

// The first key that a task looks at.
inline int64_t first_key(const Places& places, const Task& task, const Scoring& scoring) {
  const int length = places.lengths[task.row];
  const int start = length - (places.query_starts[task.row + 1] - places.query_starts[task.row]);
  int64_t key = 0;
  if (scoring.window > 0) key = std::max<int64_t>(0, start + task.first - scoring.window + 1);
  if (task.parts > 1) key = std::max<int64_t>(key, int64_t(task.part) * kPartTokens);
  return key;
}

template <class Format>
inline void begin(const Cache& cache, const Places& places, const Task& task, const Units& units, int unit,
                  const Scoring& scoring, Begun& found) {
  const int64_t first = first_key(places, task, scoring) / kBlockTokens;
  const int64_t blocks = (places.lengths[task.row] + kBlockTokens - 1) / kBlockTokens - first;
  found.count = int(std::min<int64_t>(blocks, kChunkTokens / kBlockTokens));
  for (int i = 0; i < found.count; ++i) {
    found.keys[i] = reinterpret_cast<const char*>(
        Blocks<Format>::keys(cache, block_of(places, task.row, first + i), unit / units.splits));
  }
}

// The heads of one unit, for the tokens and keys of one task. Queries [token][heads * key_size].
template <class Format, class Put>
inline void attend(const Cache& cache, const Places& places, Tasks& tasks, const Task& task, const Units& units,
                   int unit, const Scoring& scoring, const typename Format::Activation* queries, size_t query_stride,
                   const Begun& next, Put put) {
  typedef typename Traits<Format>::Products Products;
  typedef typename Products::Activation Activation;
  typedef typename Format::Stored Stored;
  constexpr bool kScaled = Traits<Format>::kScaled;
  const int size = cache.key_size, width = cache.value_stride, head = unit / units.splits;
  const int first_head = units.first(unit), shared = units.heads(unit), heads = units.shared * cache.kv_heads;
  const int length = places.lengths[task.row], begin = places.query_starts[task.row];
  const int start = length - (places.query_starts[task.row + 1] - begin);
  const int rows = (task.last - task.first) * shared;
  alignas(64) Activation query[kTileRows * kMostSize + kLanes];
  alignas(64) float scores[kTileRows * kChunkTokens];
  alignas(64) Activation weights[kTileRows * kChunkTokens];
  alignas(64) float output[kTileRows * kMostSize];
  alignas(64) Stored tail[kScaled ? 1 : kBlockTokens * kMostSize];
  alignas(64) float key_scales[kChunkTokens], value_scales[kChunkTokens];
  float maximum[kTileRows], total[kTileRows], shrink[kTileRows];
  float query_factors[kTileRows] = {}, weight_factors[kTileRows] = {};  // of whole numbers
  for (int token = task.first; token < task.last; ++token) {
    const auto* from = queries + size_t(begin + token) * query_stride + size_t(first_head) * size;
    const int row = (token - task.first) * shared;
    if constexpr (Traits<Format>::kWhole) {
      alignas(64) float wide[kMostSize + kLanes] = {};
      for (int r = 0; r < shared; ++r) {
        for (int i = 0; i < size; ++i) wide[i] = Format::number(from[size_t(r) * size + i]);
        query_factors[row + r] = to_whole(wide, size, query + size_t(row + r) * size);
      }
    } else {
      std::memcpy(query + size_t(row) * size, from, size_t(shared) * size * sizeof(Activation));
    }
  }
  std::fill(output, output + size_t(rows) * width, 0.0f);
  std::fill(maximum, maximum + rows, kLowest);
  std::fill(total, total + rows, 0.0f);
  const int64_t key_begin = first_key(places, task, scoring);
  int64_t key_end = start + task.last;
  if (task.parts > 1) key_end = std::min<int64_t>(key_end, int64_t(task.part + 1) * kPartTokens);
  const int height = even_block(rows);
  const size_t key_bytes = Blocks<Format>::key_elements(cache) * sizeof(Stored);
  const size_t value_bytes = Blocks<Format>::value_elements(cache) * sizeof(Stored);
  for (int64_t chunk = key_begin / kBlockTokens * kBlockTokens; chunk < key_end; chunk += kChunkTokens) {
    const int keys = int(std::min<int64_t>(kChunkTokens, key_end - chunk));
    const int count = (keys + kBlockTokens - 1) / kBlockTokens;
    const Stored* key_blocks[kChunkTokens / kBlockTokens + 1];
    const Stored* value_blocks[kChunkTokens / kBlockTokens];
    for (int i = 0; i < count; ++i) {
      const size_t block = block_of(places, task.row, chunk / kBlockTokens + i);
      key_blocks[i] = Blocks<Format>::keys(cache, block, head);
      value_blocks[i] = Blocks<Format>::values(cache, block, head);
    }
    key_blocks[count] = key_blocks[count - 1];
    // While keys are multiplied, their values are on their way; while values are, the keys of the next chunk.
    const char* wanted[kChunkTokens / kBlockTokens] = {};
    for (int i = 0; i < count; ++i) {
      const int64_t later = chunk + kChunkTokens + i * kBlockTokens;
      if (later < key_end) {
        wanted[i] = reinterpret_cast<const char*>(
            Blocks<Format>::keys(cache, block_of(places, task.row, later / kBlockTokens), head));
      } else if (chunk + kChunkTokens >= key_end && i < next.count) {
        wanted[i] = next.keys[i];
      }
    }
    if constexpr (kScaled) {
      for (int i = 0; i < count; ++i) {
        std::memcpy(key_scales + i * kBlockTokens, key_blocks[i] + size_t(size) * kBlockTokens, kBlockTokens * sizeof(float));
        __builtin_prefetch(value_blocks[i] + size_t(width) * kBlockTokens, 0, 2);
      }
    }
    if (!kScaled && chunk + int64_t(count) * kBlockTokens > length) {
      // What lies past a sequence's end may be anything, NaN included, and must not be multiplied even by zero.
      std::memcpy(tail, value_blocks[count - 1], Blocks<Format>::value_elements(cache) * sizeof(Stored));
      for (int offset = int(length - chunk) % kBlockTokens; offset < kBlockTokens; ++offset) {
        for (int i = 0; i < width; ++i) tail[Blocks<Format>::value_index(cache, offset, i)] = Stored(0);
      }
      value_blocks[count - 1] = tail;
    }
    for (int row = 0; row < rows; row += height) {
      const int some = std::min(height, rows - row);
      const auto score = [&](auto panels, int i, auto most) {
        constexpr int kAtOnce = decltype(panels)::value;
        Ahead values;
        for (int j = 0; j < kAtOnce && row == 0; ++j) {
          values.at[j] = reinterpret_cast<const char*>(value_blocks[std::min(i + j, count - 1)]);
        }
        if (row == 0) values.pace = std::min(kLine, value_bytes / size_t(size / Format::kStep));
        multiply_rows<Products, kAtOnce, false, decltype(most)::value>(
            some, query + size_t(row) * size, size, key_blocks + i, kPanel * Format::kStep, size / Format::kStep,
            scores + size_t(row) * kChunkTokens + i * kPanel, kChunkTokens, values);
      };
      int i = 0;
      if (some <= kFewRows) {
        for (; i + kMorePanels <= count; i += kMorePanels) score(Number<kMorePanels>(), i, Number<kFewRows>());
      }
      for (; i < count; i += kPanels) score(Number<kPanels>(), i, Number<kRows>());
      if constexpr (kScaled) {
        for (int i = 0; i < count && row == 0; ++i) {
          std::memcpy(value_scales + i * kBlockTokens, value_blocks[i] + size_t(width) * kBlockTokens, kBlockTokens * sizeof(float));
        }
        // What lies past a sequence's end may be any number.
        for (int64_t i = std::max<int64_t>(0, length - chunk); i < count * kBlockTokens; ++i) value_scales[i] = 0.0f;
      }
      for (int r = row; r < row + some; ++r) {
        const int64_t position = start + task.first + r / shared;
        const int64_t low = scoring.window > 0 ? position - scoring.window + 1 : 0;
        shrink[r] = weigh<Format>(scores + size_t(r) * kChunkTokens, count * kBlockTokens,
                                  std::max(low, key_begin) - chunk, std::min(position + 1, key_end) - chunk, scoring,
                                  key_scales, value_scales, maximum[r], total[r], weights + size_t(r) * kChunkTokens,
                                  query_factors[r], weight_factors[r]);
      }
      const auto sum_up = [&](auto panels, int column, auto most) {
        constexpr int kAtOnce = decltype(panels)::value;
        const size_t from = key_bytes * size_t(column) / size_t(width), bytes = key_bytes * kAtOnce * kPanel / size_t(width);
        const char* slices[kChunkTokens / kBlockTokens];
        for (int i = 0; i < count; ++i) slices[i] = wanted[i] == nullptr ? nullptr : wanted[i] + from;
        gather_rows<Products, kAtOnce, decltype(most)::value>(
            some, weights + size_t(row) * kChunkTokens, kChunkTokens, value_blocks, count, column,
            size_t(width) * Format::kStep, shrink + row, weight_factors + row, output + size_t(row) * width + column,
            width, row == 0 ? slices : nullptr, bytes);
      };
      int column = 0;
      if (some <= kFewRows) {
        for (; column + kMorePanels * kPanel <= width; column += kMorePanels * kPanel) {
          sum_up(Number<kMorePanels>(), column, Number<kFewRows>());
        }
      }
      for (; column + kPanels * kPanel <= width; column += kPanels * kPanel) sum_up(Number<kPanels>(), column, Number<kRows>());
      for (; column < width; column += kPanel) sum_up(Number<1>(), column, Number<kRows>());
    }
  }
  if (task.parts == 1) {
    for (int r = 0; r < rows; ++r) {
      put(begin + task.first + r / shared, first_head + r % shared, output + size_t(r) * width, 1.0f / total[r]);
    }
    return;
  }
  const size_t entry = size_t(width) + 2, part_stride = size_t(heads) * entry;
  float* mine = tasks.partials.data() + size_t(task.partial) * part_stride + size_t(first_head) * entry;
  for (int r = 0; r < shared; ++r) {
    float* to = mine + task.part * part_stride + r * entry;
    to[0] = maximum[r];
    to[1] = total[r];
    std::memcpy(to + 2, output + size_t(r) * width, size_t(width) * sizeof(float));
  }
  std::atomic<int>& finished = tasks.finished[size_t(task.row) * cache.kv_heads * units.splits + unit];
  if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 < task.parts) return;
  finished.store(0, std::memory_order_relaxed);
  // The last to finish merges the parts, in their order: by their maxima and sums they are one softmax.
  for (int r = 0; r < shared; ++r) {
    float most = kLowest, all = 0;
    for (int part = 0; part < task.parts; ++part) most = std::max(most, mine[part * part_stride + r * entry]);
    float* merged = output + size_t(r) * width;
    std::fill(merged, merged + width, 0.0f);
    for (int part = 0; part < task.parts; ++part) {
      const float* from = mine + part * part_stride + r * entry;
      const float factor = exponential(splat(from[0] - most))[0];
      all += from[1] * factor;
      for (int i = 0; i < width; ++i) merged[i] += from[2 + i] * factor;
    }
    put(begin, first_head + r, merged, 1.0f / all);
  }
}

}  // namespace paceline
