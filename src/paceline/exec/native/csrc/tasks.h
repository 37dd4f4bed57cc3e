// How the attention of a step is cut into tasks that threads can take one by one.
#pragma once

#include <atomic>
#include <vector>

#include "softmax.h"

namespace paceline {

constexpr int kChunkTokens = 128;  // keys whose scores are held at once
constexpr int kPartTokens = 256;   // keys of a decode row one thread takes; fixed, so results don't depend on the threads
constexpr int kTileRows = 48;      // query rows (tokens x heads that share K/V) of one part of a prefill
constexpr int kChunkBlocks = kChunkTokens / kBlockTokens;

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

// The first keys of a task, which are wanted as soon as it begins.
struct Begun {
  const char* keys[kChunkBlocks];
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
  found.count = int(std::min<int64_t>(blocks, kChunkBlocks));
  for (int i = 0; i < found.count; ++i) {
    found.keys[i] = reinterpret_cast<const char*>(
        Blocks<Format>::keys(cache, block_of(places, task.row, first + i), unit / units.splits));
  }
}

}  // namespace paceline
