// A whole decoder, layer after layer, in one call and one parallel region: the fused form of exec/llama.py.
#pragma once

#include "attention.h"
#include "elementwise.h"
#include "product.h"
#include "read_ahead.h"

namespace paceline {

struct DecoderLayer {
  const float* input_norm;
  Linear qkv;
  const float* qk_norm;  // [heads + kv_heads, head_size] or null
  Linear output;
  const float* mlp_norm;
  Linear gate_up;  // panels of gate and up in turn
  Linear down;
  void* keys;
  void* values;
  int64_t window;  // 0: none
};

struct Decoder {
  int32_t format;
  int32_t layers;
  int32_t hidden;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_size;
  int32_t value_stride;
  int32_t kv_eight;  // whether K/V are in 8 bits
  int32_t intermediate;
  int32_t activation;
  int32_t embedding_packed;  // 0: plain rows; 1: panels, shared with the output projection; 2: QuantisedPanels
  float epsilon;
  float rope_scale;
  const float* frequencies;  // [head_size / 2]
  const void* embedding;
  const float* norm;
  const DecoderLayer* layer;
};

struct Step {
  Places places;
  const int64_t* token_ids;
  const int64_t* positions;
  void* hidden;  // [tokens, hidden] activations, out
  int32_t threads;
};

// Kept from step to step; grows to the largest step seen.
struct Workspace {
  Team team;
  Tasks tasks;
  ReadAhead read_ahead;
  std::vector<char> memory;

  char* take(size_t bytes) {
    if (memory.size() < bytes + 64) memory = std::vector<char>(bytes + 64);
    return memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  }
};

constexpr int kPhasesPerLayer = 10;
constexpr int kSomeTokens = 8;   // tokens of one part of the work between two products
constexpr int kMoreTokens = 32;  // where K/V are written, if there are many: neighbours share the lines of a block, which two
                                 // threads would take from each other

constexpr int kMostPlaces = 2048;  // of a part: 14,336 inputs and 96 rows take 1,792

inline size_t padded(int size) { return (size_t(size) + 31) / 32 * 32; }

// `KV`: what keys and values are in: Format, or Eight<Format>.
template <class Format, class KV>
class Pass {
  typedef typename Format::Activation Activation;
  typedef typename Format::Stored Stored;

 public:
  Pass(const Decoder& decoder, const Step& step, Workspace& workspace)
      : d_(decoder), step_(step), tasks_(workspace.tasks), read_ahead_(workspace.read_ahead),
        tokens_(step.places.tokens) {
    const size_t tokens = size_t(tokens_);
    queries_ = size_t(d_.heads) * d_.head_size;
    qkv_width_ = padded(int(queries_) + 2 * d_.kv_heads * d_.head_size);
    hidden_width_ = padded(d_.hidden);
    inner_width_ = padded(d_.intermediate);
    query_width_ = padded(int(queries_));
    // What is rounded to 8 bits before it is multiplied is kept as float32 until then.
    const size_t widest = std::max({hidden_width_, inner_width_, query_width_});
    const size_t floats = tokens * (2 * hidden_width_ + qkv_width_ + size_t(d_.head_size) + inner_width_ + query_width_);
    const size_t rounded = tokens * (widest / kBlock) * sizeof(Rounded);
    char* memory = workspace.take(floats * sizeof(float) + tokens * query_width_ * sizeof(Activation) + rounded);
    residual_ = reinterpret_cast<float*>(memory);
    qkv_ = residual_ + tokens * hidden_width_;
    angles_ = qkv_ + tokens * qkv_width_;
    normed_ = angles_ + tokens * d_.head_size;
    inner_ = normed_ + tokens * hidden_width_;
    attended_ = inner_ + tokens * inner_width_;
    query_ = reinterpret_cast<Activation*>(attended_ + tokens * query_width_);
    rounded_ = reinterpret_cast<Rounded*>(query_ + tokens * query_width_);
    plan_tasks(tasks_, step.places, d_.kv_heads, d_.heads / d_.kv_heads, d_.value_stride);
    // K/V of a layer are read ahead during gate_up, down and qkv, unless these wait for memory themselves.
    const DecoderLayer& layer = d_.layer[0];
    const size_t all = tokens_ > 2 * kRows ? places_of(layer.gate_up) + places_of(layer.down) + places_of(layer.qkv) : 0;
    read_ahead_.plan<KV>(cache_of(layer), step.places, tasks_, all);
  }

  void operator()(Team& team) {
    int phase = 0;
    between(team, phase, [&](int token) {
      embed(token);
      turn(token);
    });
    for (int index = 0; index < d_.layers; ++index) {
      const DecoderLayer& layer = d_.layer[index];
      const DecoderLayer* later = index + 1 < d_.layers ? &layer + 1 : nullptr;
      const Cache cache = cache_of(layer);
      const size_t during_down = places_of(layer.gate_up), during_qkv = during_down + places_of(layer.down);
      norm_all(team, phase, layer.input_norm, layer.qkv);
      project(team, phase, layer.qkv, normed_, hidden_width_, nullptr, [&](int token, int column, const float* piece) {
        copy(qkv_ + token * qkv_width_ + column, piece);
      }, &layer, during_qkv);
      rotate_all(team, phase, layer, cache);
      attend_all(team, phase, layer, cache);
      round_all(team, phase, layer.output, attended_, query_width_);
      project(team, phase, layer.output, attended_, query_width_, &layer.gate_up, [&](int token, int column, const float* piece) {
        add(residual_ + token * hidden_width_ + column, piece);
      });
      norm_all(team, phase, layer.mlp_norm, layer.gate_up);
      const bool wide = rounds<Format>(layer.down);
      project(team, phase, layer.gate_up, normed_, hidden_width_, &layer.down, [&](int token, int column, const float* piece) {
        for (int i = 0; i < kPanel; i += kLanes) {
          const Floats gate = activate(d_.activation, load<Floats>(piece + i));
          put(inner_, token * inner_width_ + column / 2 + i, gate * load<Floats>(piece + kPanel + i), wide);
        }
      }, later, 0);
      round_all(team, phase, layer.down, inner_, inner_width_);
      const Linear* next = later == nullptr ? nullptr : &later->qkv;
      project(team, phase, layer.down, inner_, inner_width_, next, [&](int token, int column, const float* piece) {
        add(residual_ + token * hidden_width_ + column, piece);
      }, later, during_down);
    }
    between(team, phase, [&](int token) {
      norm_activations<Format>(residual_ + token * hidden_width_, d_.norm, d_.hidden, d_.epsilon,
                               static_cast<Activation*>(step_.hidden) + size_t(token) * d_.hidden);
    });
  }

 private:
  // `work(token)` for all tokens, `some` at a time.
  template <class Work>
  void between(Team& team, int& phase, Work work, int some = kSomeTokens) {
    team.share(phase++, (tokens_ + some - 1) / some, [&](int part) {
      const int last = std::min(tokens_, (part + 1) * some);
      for (int token = part * some; token < last; ++token) work(token);
    });
  }

  // Normed, as `map` wants its left side, into normed_ or rounded_.
  void norm_all(Team& team, int& phase, const float* weight, const Linear& map) {
    const bool wide = rounds<Format>(map);
    between(team, phase, [&](int token) {
      const float* from = residual_ + token * hidden_width_;
      float* to = normed_ + token * hidden_width_;
      if (wide) {
        norm_row(from, weight, d_.hidden, d_.epsilon, [&](int i, Floats values) { store(to + i, values); });
        round_row(to, d_.hidden, rounded_ + token, size_t(tokens_));
      } else {
        norm_activations<Format>(from, weight, d_.hidden, d_.epsilon, reinterpret_cast<Activation*>(normed_) + token * hidden_width_);
      }
    });
  }

  // `from` into rounded_, if that is how `map` wants its left side.
  void round_all(Team& team, int& phase, const Linear& map, const float* from, size_t width) {
    if (!rounds<Format>(map)) return;
    between(team, phase, [&](int token) { round_row(from + token * width, map.inputs, rounded_ + token, size_t(tokens_)); });
  }

  Cache cache_of(const DecoderLayer& layer) const {
    return {layer.keys, layer.values, d_.kv_heads, d_.head_size, d_.head_size, d_.value_stride, d_.kv_eight};
  }

  // During how many pieces' time a map is multiplied: one part of it, and the whole.
  int places_of_part(const Linear& map) const { return pieces_of<Format>(map, std::min(tokens_, kBlockRows)); }
  size_t places_of(const Linear& map) const { return size_t(places_of_part(map)) * parts_of(map, tokens_); }

  // `next`: the map whose weights are wanted after this one's, or null. `later`: the layer whose K/V are read ahead, or null,
  // those at `place` and after it.
  template <class Take>
  void project(Team& team, int& phase, const Linear& map, const float* from, size_t width, const Linear* next,
               Take take, const DecoderLayer* later = nullptr, size_t place = 0) {
    const Left<Format> left{reinterpret_cast<const Activation*>(from), width, rounded_, tokens_};
    const int places = later == nullptr || read_ahead_.empty() ? 0 : places_of_part(map);
    team.share(phase++, parts_of(map, tokens_), [&](int part) {
      Wanted wanted{after<Format>(map, tokens_, part, team.threads(), next)};
      const char* pieces[kMostPlaces];
      if (places > 0 && places <= kMostPlaces) {
        read_ahead_.fill(cache_of(*later), place + size_t(part) * places, places, pieces);
        wanted.pieces = pieces;
      }
      linear_part<Format>(map, left, part, wanted, take);
    });
  }

  static void put(float* to, size_t index, Floats values, bool wide) {
    if (wide) store(to + index, values);
    else Format::activations(reinterpret_cast<Activation*>(to) + index, values);
  }

  static void copy(float* to, const float* piece) { std::memcpy(to, piece, kGroupColumns * sizeof(float)); }

  static void add(float* to, const float* piece) {
    for (int i = 0; i < kGroupColumns; i += kLanes) store(to + i, load<Floats>(to + i) + load<Floats>(piece + i));
  }

  void embed(int token) {
    float* to = residual_ + token * hidden_width_;
    const int64_t id = step_.token_ids[token];
    const Stored* table = static_cast<const Stored*>(d_.embedding);
    if (d_.embedding_packed == 2) {
      widen_row(static_cast<const QuantisedPanel*>(d_.embedding), id, d_.hidden, to);
    } else if (d_.embedding_packed) {
      unpack_row<Format>(table, int(id), d_.hidden, to);
    } else {
      for (int i = 0; i < d_.hidden; ++i) to[i] = Format::widen(table[size_t(id) * d_.hidden + i]);
    }
    std::fill(to + d_.hidden, to + hidden_width_, 0.0f);
  }

  void turn(int token) {
    const int half = d_.head_size / 2;
    float* cosine = angles_ + size_t(token) * d_.head_size;
    for (int i = 0; i < half; ++i) {
      const float angle = float(step_.positions[token]) * d_.frequencies[i];
      cosine[i] = std::cos(angle) * d_.rope_scale;
      cosine[half + i] = std::sin(angle) * d_.rope_scale;
    }
  }

  void rotate_all(Team& team, int& phase, const DecoderLayer& layer, const Cache& cache) {
    const bool many = tokens_ >= 4 * kMoreTokens;
    between(team, phase, [&](int token) { rotate_and_write(token, layer, cache); }, many ? kMoreTokens : kSomeTokens);
  }

  void rotate_and_write(int token, const DecoderLayer& layer, const Cache& cache) {
    const int size = d_.head_size;
    float* heads = qkv_ + token * qkv_width_;
    const float* cosine = angles_ + size_t(token) * size;
    const int64_t slot = step_.places.slots[token];
    for (int head = 0; head < d_.heads + d_.kv_heads; ++head) {
      float* values = heads + size_t(head) * size;
      if (layer.qk_norm != nullptr) {
        norm_row(values, layer.qk_norm + size_t(head) * size, size, d_.epsilon, [&](int i, Floats normed) {
          std::memcpy(values + i, &normed, size_t(std::min(kLanes, size - i)) * sizeof(float));
        });
      }
      rotate_head(values, cosine, cosine + size / 2, size);
      if (head < d_.heads) {
        narrow_to<Format>(query_ + token * query_width_ + size_t(head) * size, values, size);
      } else {
        Blocks<KV>::put_key(cache, slot, head - d_.heads, values);
      }
    }
    for (int head = 0; head < d_.kv_heads; ++head) {
      Blocks<KV>::put_value(cache, slot, head, heads + (size_t(d_.heads) + d_.kv_heads + head) * size);
    }
  }

  template <class F>
  static void narrow_to(Activation* to, const float* from, int size) {
    int i = 0;
    for (; i + kLanes <= size; i += kLanes) F::activations(to + i, load<Floats>(from + i));
    for (; i < size; ++i) to[i] = F::activation(from[i]);
  }

  void attend_all(Team& team, int& phase, const DecoderLayer& layer, const Cache& cache) {
    const Scoring scoring{1.0f / std::sqrt(float(d_.head_size)), 0.0f, layer.window};
    const Units units(d_.heads / d_.kv_heads);
    const int count = d_.kv_heads * units.splits, size = d_.head_size;
    const bool wide = rounds<Format>(layer.output);
    team.share(phase++, int(tasks_.list.size()) * count, [&](int part) {
      const Task& task = tasks_.list[size_t(part / count)];
      Begun next;
      const int other = part + team.threads();
      if (other / count < int(tasks_.list.size())) {
        begin<KV>(cache, step_.places, tasks_.list[size_t(other / count)], units, other % count, scoring, next);
      }
      attend<KV>(cache, step_.places, tasks_, task, units, part % count, scoring, query_, query_width_, next,
                     [&](int token, int head, const float* output, float factor) {
                       const size_t to = size_t(token) * query_width_ + size_t(head) * size;
                       int i = 0;
                       for (; i + kLanes <= size; i += kLanes) {
                         put(attended_, to + i, load<Floats>(output + i) * factor, wide);
                       }
                       for (; i < size; ++i) {
                         if (wide) attended_[to + i] = output[i] * factor;
                         else reinterpret_cast<Activation*>(attended_)[to + i] = Format::activation(output[i] * factor);
                       }
                     });
    });
  }

  const Decoder& d_;
  const Step& step_;
  Tasks& tasks_;
  ReadAhead& read_ahead_;
  const int tokens_;
  size_t queries_, qkv_width_, hidden_width_, inner_width_, query_width_;
  float *residual_, *qkv_, *angles_;
  float *normed_, *inner_, *attended_;  // activations, unless they are to be rounded
  Activation* query_;
  Rounded* rounded_;
};

}  // namespace paceline
