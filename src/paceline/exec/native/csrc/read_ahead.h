// K/V on their way into the third-level cache during the products before their attention: these leave memory idle where they
// have many rows, and attention, which waits for memory, then finds there what its first tasks want.
#pragma once

#include "tasks.h"

namespace paceline {

constexpr size_t kPieceBytes = kPieceLines * kLine;
constexpr size_t kMostPieces = (size_t(8) << 20) / kPieceBytes;  // of a layer: what such a cache holds beside the weights

class ReadAhead {
 public:
  // What the tasks of rows that decode will read of any layer, in their order. `places`: during how many pieces' time.
  template <class Format>
  void plan(const Cache& cache, const Places& at, const Tasks& tasks, size_t places) {
    pieces_.clear();
    places_ = places;
    const size_t keys = Blocks<Format>::key_elements(cache) * cache.kv_heads * sizeof(typename Format::Stored);
    const size_t values = Blocks<Format>::value_elements(cache) * cache.kv_heads * sizeof(typename Format::Stored);
    for (const Task& task : tasks.list) {
      if (task.last - task.first > 1) continue;
      const int end = std::min(at.lengths[task.row], (task.part + 1) * kPartTokens);
      for (int token = task.part * kPartTokens; token < end; token += kBlockTokens) {
        const size_t block = block_of(at, task.row, token / kBlockTokens);
        for (size_t i = 0; i < keys; i += kPieceBytes) pieces_.push_back({block * keys + i, false});
        for (size_t i = 0; i < values; i += kPieceBytes) pieces_.push_back({block * values + i, true});
        if (pieces_.size() >= std::min(kMostPieces, places)) return pieces_.resize(std::min(kMostPieces, places));
      }
    }
  }

  // Of the layer in `cache`, what is fetched at `count` places from `first` on; null: nothing. They are spread evenly.
  void fill(const Cache& cache, size_t first, int count, const char** to) const {
    size_t next = first * pieces_.size() / places_, rest = first * pieces_.size() % places_;
    for (int i = 0; i < count; ++i) {
      to[i] = nullptr;
      rest += pieces_.size();
      if (rest < places_) continue;
      rest -= places_;
      const Piece& piece = pieces_[next++];
      to[i] = static_cast<const char*>(piece.value ? cache.values : cache.keys) + piece.offset;
    }
  }

  bool empty() const { return pieces_.empty(); }

 private:
  struct Piece {
    size_t offset;  // from the beginning of the layer's keys, or values
    bool value;
  };
  std::vector<Piece> pieces_;
  size_t places_ = 1;
};

}  // namespace paceline
