// Attention over paged K/V, prefill and decode alike, chunk by chunk of keys (Dao et al. 2022).
#pragma once

#include "tasks.h"

namespace paceline {

constexpr int kRowStride = kMostSize + kPanel;  // of queries and of outputs; no power of two, whose rows share few sets of a cache

// The heads of one unit, for the tokens and keys of one task: rows [token][head] of queries against the chunks in turn.
template <class Format>
class Attention {
  typedef typename Traits<Format>::Products Products;
  typedef typename Products::Activation Activation;
  typedef typename Format::Stored Stored;
  typedef Blocks<Format> Where;
  static constexpr bool kScaled = Traits<Format>::kScaled;

 public:
  Attention(const Cache& cache, const Places& places, const Task& task, const Units& units, int unit, const Scoring& scoring)
      : cache_(cache), places_(places), task_(task), units_(units), scoring_(scoring), unit_(unit),
        size_(cache.key_size), width_(cache.value_stride), head_(unit / units.splits),
        first_head_(units.first(unit)), shared_(units.heads(unit)), length_(places.lengths[task.row]),
        begin_(places.query_starts[task.row]), start_(length_ - (places.query_starts[task.row + 1] - begin_)),
        rows_((task.last - task.first) * shared_), key_begin_(first_key(places, task, scoring)),
        key_end_(task.parts == 1 ? start_ + task.last : std::min(start_ + task.last, (task.part + 1) * kPartTokens)) {
    for (int r = 0; r < rows_; ++r) std::fill(output_ + size_t(r) * kRowStride, output_ + size_t(r) * kRowStride + width_, 0.0f);
    std::fill(maximum_, maximum_ + rows_, kLowest);
    std::fill(total_, total_ + size_t(rows_) * kLanes, 0.0f);
  }

  // Queries [token][heads * key_size] of the whole step, `stride` apart.
  void take(const typename Format::Activation* queries, size_t stride) {
    for (int token = task_.first; token < task_.last; ++token) {
      const auto* from = queries + size_t(begin_ + token) * stride + size_t(first_head_) * size_;
      const int row = (token - task_.first) * shared_;
      if constexpr (Traits<Format>::kWhole) {
        alignas(64) float wide[kMostSize + kLanes] = {};
        for (int r = 0; r < shared_; ++r) {
          for (int i = 0; i < size_; ++i) wide[i] = Format::number(from[size_t(r) * size_ + i]);
          query_factors_[row + r] = to_whole(wide, size_, query_ + size_t(row + r) * kRowStride);
        }
      } else {
        for (int r = 0; r < shared_; ++r) {
          std::memcpy(query_ + size_t(row + r) * kRowStride, from + size_t(r) * size_, size_t(size_) * sizeof(Activation));
        }
      }
    }
  }

  // `next`: what is fetched at the end.
  void run(const Begun& next) {
    const int height = even_block(rows_);
    for (int64_t chunk = key_begin_ / kBlockTokens * kBlockTokens; chunk < key_end_; chunk += kChunkTokens) {
      const char* wanted[kChunkBlocks] = {};
      find(chunk, next, wanted);
      for (int row = 0; row < rows_; row += height) {
        const int some = std::min(height, rows_ - row);
        score(row, some);
        if (kScaled && row == 0) take_value_scales(chunk);
        weigh_all(chunk, row, some);
        sum_up(row, some, wanted);
      }
    }
  }

  // `put(token, head, output[value_stride], factor)` for each row that is complete.
  template <class Put>
  void give(Tasks& tasks, Put put) {
    if (task_.parts > 1) return merge(tasks, put);
    for (int r = 0; r < rows_; ++r) {
      put(begin_ + task_.first + r / shared_, first_head_ + r % shared_, output_ + size_t(r) * kRowStride, 1.0f / sum_of(r));
    }
  }

 private:
  float sum_of(int row) const { return sum(load<Floats>(total_ + size_t(row) * kLanes)); }

  // The blocks of a chunk, and `wanted`, what is fetched while values are multiplied: the keys of the chunk after it.
  void find(int64_t chunk, const Begun& next, const char** wanted) {
    count_ = int((std::min<int64_t>(kChunkTokens, key_end_ - chunk) + kBlockTokens - 1) / kBlockTokens);
    for (int i = 0; i < count_; ++i) {
      const size_t block = block_of(places_, task_.row, chunk / kBlockTokens + i);
      keys_[i] = Where::keys(cache_, block, head_);
      values_[i] = Where::values(cache_, block, head_);
      const int64_t later = chunk + kChunkTokens + i * kBlockTokens;
      if (later < key_end_) {
        wanted[i] = reinterpret_cast<const char*>(
            Where::keys(cache_, block_of(places_, task_.row, later / kBlockTokens), head_));
      } else if (chunk + kChunkTokens >= key_end_ && i < next.count) {
        wanted[i] = next.keys[i];
      }
    }
    keys_[count_] = keys_[count_ - 1];  // products take several blocks at once
    if constexpr (kScaled) {
      for (int i = 0; i < count_; ++i) {
        std::memcpy(key_scales_ + i * kBlockTokens, keys_[i] + size_t(size_) * kBlockTokens, kBlockTokens * sizeof(float));
        __builtin_prefetch(values_[i] + size_t(width_) * kBlockTokens, 0, 2);
      }
    } else if (chunk + int64_t(count_) * kBlockTokens > length_) {
      // What lies past a sequence's end may be anything, NaN included, and must not be multiplied even by zero.
      std::memcpy(tail_, values_[count_ - 1], Where::value_elements(cache_) * sizeof(Stored));
      for (int offset = int(length_ - chunk) % kBlockTokens; offset < kBlockTokens; ++offset) {
        for (int i = 0; i < width_; ++i) tail_[Where::value_index(cache_, offset, i)] = Stored(0);
      }
      values_[count_ - 1] = tail_;
    }
  }

  // Rows [row, row + some) of queries times the keys of the chunk; the values are on their way meanwhile.
  void score(int row, int some) {
    const size_t value_bytes = Where::value_elements(cache_) * sizeof(Stored);
    const auto multiply_blocks = [&](auto panels, int i, auto most) {
      constexpr int kAtOnce = decltype(panels)::value;
      Ahead values;
      for (int j = 0; j < kAtOnce && row == 0; ++j) {
        values.at[j] = reinterpret_cast<const char*>(values_[std::min(i + j, count_ - 1)]);
      }
      if (row == 0) values.pace = std::min(kLine, value_bytes / size_t(size_ / Format::kStep));
      multiply_rows<Products, kAtOnce, false, decltype(most)::value>(
          some, query_ + size_t(row) * kRowStride, Number<kRowStride>(), keys_ + i, Number<kPanel * Format::kStep>(),
          size_ / Format::kStep, scores_ + size_t(row) * kChunkTokens + i * kPanel, Number<kChunkTokens>(), values);
    };
    int i = 0;
    if (some <= kFewRows) {
      for (; i + kMorePanels <= count_; i += kMorePanels) multiply_blocks(Number<kMorePanels>(), i, Number<kFewRows>());
    }
    for (; i < count_; i += kPanels) multiply_blocks(Number<kPanels>(), i, Number<kRows>());
  }

  void take_value_scales(int64_t chunk) {
    for (int i = 0; i < count_; ++i) {
      std::memcpy(value_scales_ + i * kBlockTokens, values_[i] + size_t(width_) * kBlockTokens, kBlockTokens * sizeof(float));
    }
    // What lies past a sequence's end may be any number.
    for (int64_t i = std::max<int64_t>(0, length_ - chunk); i < count_ * kBlockTokens; ++i) value_scales_[i] = 0.0f;
  }

  void weigh_all(int64_t chunk, int row, int some) {
    for (int r = row; r < row + some; ++r) {
      const int64_t position = start_ + task_.first + r / shared_;
      const int64_t low = scoring_.window > 0 ? position - scoring_.window + 1 : 0;
      shrink_[r] = weigh<Format>(scores_ + size_t(r) * kChunkTokens, count_ * kBlockTokens,
                                 std::max<int64_t>(low, key_begin_) - chunk, std::min<int64_t>(position + 1, key_end_) - chunk,
                                 scoring_, key_scales_, value_scales_, maximum_[r], total_ + size_t(r) * kLanes,
                                 weights_ + size_t(r) * kChunkTokens, query_factors_[r], weight_factors_[r]);
    }
  }

  // Weights of rows [row, row + some) times the values of the chunk, added to the output.
  void sum_up(int row, int some, const char* const* wanted) {
    const size_t key_bytes = Where::key_elements(cache_) * sizeof(Stored);
    const auto gather_columns = [&](auto panels, int column, auto most) {
      constexpr int kAtOnce = decltype(panels)::value;
      const size_t from = key_bytes * size_t(column) / size_t(width_);
      const size_t bytes = key_bytes * kAtOnce * kPanel / size_t(width_);
      const char* slices[kChunkBlocks];
      for (int i = 0; i < count_ && row == 0; ++i) slices[i] = wanted[i] == nullptr ? nullptr : wanted[i] + from;
      gather_rows<Products, kAtOnce, decltype(most)::value>(
          some, weights_ + size_t(row) * kChunkTokens, Number<kChunkTokens>(), values_, count_, column,
          size_t(width_) * Format::kStep, shrink_ + row, weight_factors_ + row, output_ + size_t(row) * kRowStride + column,
          Number<kRowStride>(), row == 0 ? slices : nullptr, bytes);
    };
    int column = 0;
    if (some <= kFewRows) {
      for (; column + kMorePanels * kPanel <= width_; column += kMorePanels * kPanel) {
        gather_columns(Number<kMorePanels>(), column, Number<kFewRows>());
      }
    }
    for (; column + kPanels * kPanel <= width_; column += kPanels * kPanel) {
      gather_columns(Number<kPanels>(), column, Number<kRows>());
    }
    for (; column < width_; column += kPanel) gather_columns(Number<1>(), column, Number<kRows>());
  }

  // Leaves this part with the others of the row. The last to finish merges them, in their order: by their maxima and sums
  // they are one softmax.
  template <class Put>
  void merge(Tasks& tasks, Put put) {
    const size_t entry = size_t(width_) + 2, part_stride = size_t(units_.shared * cache_.kv_heads) * entry;
    float* mine = tasks.partials.data() + size_t(task_.partial) * part_stride + size_t(first_head_) * entry;
    for (int r = 0; r < shared_; ++r) {
      float* to = mine + task_.part * part_stride + r * entry;
      to[0] = maximum_[r];
      to[1] = sum_of(r);
      std::memcpy(to + 2, output_ + size_t(r) * kRowStride, size_t(width_) * sizeof(float));
    }
    std::atomic<int>& finished = tasks.finished[size_t(task_.row) * cache_.kv_heads * units_.splits + unit_];
    if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 < task_.parts) return;
    finished.store(0, std::memory_order_relaxed);
    for (int r = 0; r < shared_; ++r) {
      float most = kLowest, all = 0;
      for (int part = 0; part < task_.parts; ++part) most = std::max(most, mine[part * part_stride + r * entry]);
      float* merged = output_ + size_t(r) * kRowStride;
      std::fill(merged, merged + width_, 0.0f);
      for (int part = 0; part < task_.parts; ++part) {
        const float* from = mine + part * part_stride + r * entry;
        const float factor = power_of_two<true>(splat(from[0] - most))[0];
        all += from[1] * factor;
        for (int i = 0; i < width_; ++i) merged[i] += from[2 + i] * factor;
      }
      put(begin_, first_head_ + r, merged, 1.0f / all);
    }
  }

  const Cache& cache_;
  const Places& places_;
  const Task& task_;
  const Units& units_;
  const Scoring& scoring_;
  const int unit_, size_, width_, head_, first_head_, shared_;
  const int length_, begin_, start_, rows_;  // of the row's tokens: all, the first within the step, those before it
  const int64_t key_begin_, key_end_;
  int count_ = 0;  // blocks of the chunk
  const Stored* keys_[kChunkBlocks + 1];
  const Stored* values_[kChunkBlocks];
  float maximum_[kTileRows], shrink_[kTileRows];
  float query_factors_[kTileRows] = {}, weight_factors_[kTileRows] = {};  // of whole numbers
  alignas(64) float total_[kTileRows * kLanes];
  alignas(64) Activation query_[kTileRows * kRowStride];
  alignas(64) float scores_[kTileRows * kChunkTokens];
  alignas(64) Activation weights_[kTileRows * kChunkTokens];
  alignas(64) float output_[kTileRows * kRowStride];
  alignas(64) Stored tail_[kScaled ? 1 : kBlockTokens * kMostSize];
  alignas(64) float key_scales_[kChunkTokens], value_scales_[kChunkTokens];
};

template <class Format, class Put>
inline void attend(const Cache& cache, const Places& places, Tasks& tasks, const Task& task, const Units& units,
                   int unit, const Scoring& scoring, const typename Format::Activation* queries, size_t query_stride,
                   const Begun& next, Put put) {
  Attention<Format> attention(cache, places, task, units, unit, scoring);
  attention.take(queries, query_stride);
  attention.run(next);
  attention.give(tasks, put);
}

}  // namespace paceline
