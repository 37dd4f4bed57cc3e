// A small product and a small attention in every format, against plain loops: run in a process of its own before a
// library is trusted, since some machines advertise instructions that fault or are emulated wrongly.
#pragma once

#include "attention.h"
#include "product.h"

namespace paceline {

struct Numbers {
  uint32_t state = 12345;
  float next() {
    state = state * 1664525u + 1013904223u;
    return float(int32_t(state >> 8) - (1 << 23)) / float(1 << 23);
  }
};

template <class Format>
inline bool product_is_right(double tolerance) {
  typedef typename Format::Stored Stored;
  typedef typename Format::Activation Activation;
  const int rows = 2 * kRows + 1, inputs = 94, outputs = 96;
  Numbers numbers;
  std::vector<Stored> matrix(size_t(outputs) * inputs), panels(matrix.size());
  std::vector<Activation> left(size_t(rows) * inputs);
  std::vector<float> plain(left.size());
  for (Stored& value : matrix) value = Format::narrow(numbers.next());
  for (size_t i = 0; i < left.size(); ++i) {
    plain[i] = Format::widen(Format::narrow(numbers.next()));
    left[i] = Format::activation(plain[i]);
  }
  pack<Format>(matrix.data(), outputs, inputs, panels.data(), 1);
  const Linear map{panels.data(), nullptr, inputs, outputs, nullptr};
  bool right = true;
  for (int part = 0; part < parts_of(map, rows); ++part) {
    linear_part<Format>(map, Left<Format>{left.data(), inputs, nullptr, rows}, part, {}, [&](int row, int column, const float* piece) {
      for (int i = 0; i < kGroupColumns; ++i) {
        double expected = 0;
        for (int k = 0; k < inputs; ++k) {
          expected += double(plain[size_t(row) * inputs + k]) * Format::widen(matrix[size_t(column + i) * inputs + k]);
        }
        right = right && std::fabs(piece[i] - expected) <= tolerance;
      }
    });
  }
  return right;
}

// A product with quantised weights of random bits, against the same weights widened one by one.
template <class Quant, class Format>
inline bool quantised_is_right(double tolerance) {
  const int rows = 3, inputs = 512, outputs = kGroupColumns;
  Numbers numbers;
  std::vector<uint8_t> matrix(size_t(outputs) * inputs / Quant::kInputs * Quant::kFileBytes);
  std::vector<uint8_t> panels(size_t(kGroup) * inputs / Quant::kInputs * Quant::kBytes);
  for (uint8_t& value : matrix) value = uint8_t(int(numbers.next() * 128) & 0x3f);  // so that no scale is large or NaN
  pack_quantised<Quant>(matrix.data(), outputs, inputs, panels.data());
  QuantisedPanel table[kGroup];
  for (int p = 0; p < kGroup; ++p) table[p] = {panels.data() + size_t(p) * panels.size() / kGroup, Quant::kNumber};
  const Linear map{nullptr, nullptr, inputs, outputs, table};
  std::vector<typename Format::Activation> left(size_t(rows) * inputs);
  std::vector<float> plain(left.size()), row(inputs);
  for (size_t i = 0; i < left.size(); ++i) plain[i] = Format::number(left[i] = Format::activation(numbers.next()));
  std::vector<Rounded> rounded(size_t(rows) * inputs / kBlock);
  for (int r = 0; r < rows; ++r) {
    round_activations<Format>(left.data() + size_t(r) * inputs, inputs, rounded.data() + r, size_t(rows));
  }
  double error = 0, size = 0;
  linear_part<Format>(map, Left<Format>{left.data(), inputs, rounded.data(), rows}, 0, {},
                      [&](int r, int column, const float* piece) {
    for (int i = 0; i < kGroupColumns; ++i) {
      widen_row(table, column + i, inputs, row.data());
      double expected = 0;
      for (int k = 0; k < inputs; ++k) expected += double(plain[size_t(r) * inputs + k]) * row[size_t(k)];
      error += (piece[i] - expected) * (piece[i] - expected);
      size += expected * expected;
    }
  });
  return error <= tolerance * tolerance * size;
}

template <class Quant>
inline bool quantised_is_right() {
  return quantised_is_right<Quant, Float32>(1e-5) && quantised_is_right<Quant, BFloat16>(2e-2);
}

template <class Format, class KV>
inline bool attention_is_right(double tolerance) {
  typedef typename KV::Stored Stored;
  typedef typename Format::Activation Activation;
  const int size = 64, heads = 3, length = 41, blocks = 3;
  std::vector<Stored> keys(size_t(blocks) * (size * kBlockTokens + Blocks<KV>::kScales)), values(keys.size());
  std::vector<float> plain_keys(size_t(length) * size), plain_values(plain_keys.size());
  std::vector<Activation> query(size_t(heads) * size);
  std::vector<float> plain_query(query.size());
  const Cache cache{keys.data(), values.data(), 1, size, size, size, Traits<KV>::kScaled};
  const int32_t table[blocks] = {2, 0, 1}, starts[2] = {0, 1}, lengths[1] = {length};
  const Places places{1, 1, kBlockTokens, blocks, nullptr, starts, lengths, table};
  Numbers numbers;
  for (int token = 0; token < length; ++token) {
    const int64_t slot = table[token / kBlockTokens] * kBlockTokens + token % kBlockTokens;
    for (std::vector<float>* plain : {&plain_keys, &plain_values}) {
      float* row = plain->data() + size_t(token) * size;
      for (int i = 0; i < size; ++i) row[i] = Format::widen(Format::narrow(numbers.next()));
      if (plain == &plain_keys) Blocks<KV>::put_key(cache, slot, 0, row);
      else Blocks<KV>::put_value(cache, slot, 0, row);
    }
  }
  for (size_t i = 0; i < query.size(); ++i) {
    plain_query[i] = Format::widen(Format::narrow(numbers.next()));
    query[i] = Format::activation(plain_query[i]);
  }
  Tasks tasks;
  plan_tasks(tasks, places, 1, heads, size);
  bool right = true;
  attend<KV>(cache, places, tasks, tasks.list[0], Units(heads), 0, Scoring{0.3f, 0, 0}, query.data(), size_t(heads) * size, Begun(),
                 [&](int, int head, const float* output, float factor) {
    std::vector<double> weights(length);
    double total = 0;
    for (int token = 0; token < length; ++token) {
      double score = 0;
      for (int i = 0; i < size; ++i) score += plain_query[head * size + i] * plain_keys[size_t(token) * size + i];
      total += weights[token] = std::exp(score * 0.3);
    }
    for (int i = 0; i < size; ++i) {
      double expected = 0;
      for (int token = 0; token < length; ++token) expected += weights[token] / total * plain_values[size_t(token) * size + i];
      right = right && std::fabs(output[i] * factor - expected) <= tolerance;
    }
  });
  return right;
}

// 0 when everything is right, else a number that says what is not.
inline int32_t self_check() {
  if (!product_is_right<Float32>(1e-4)) return 1;
  if (!product_is_right<Float16>(1e-4)) return 2;
  if (!product_is_right<BFloat16>(1e-3)) return 3;
  if (!attention_is_right<Float32, Float32>(1e-5)) return 4;
  if (!attention_is_right<Float16, Float16>(1e-5)) return 5;
  if (!attention_is_right<BFloat16, BFloat16>(5e-3)) return 6;
  if (!quantised_is_right<Q4_0>()) return 7;
  if (!quantised_is_right<Q4_1>()) return 8;
  if (!quantised_is_right<Q8_0>()) return 9;
  if (!quantised_is_right<Q4_K>()) return 10;
  if (!quantised_is_right<Q6_K>()) return 11;
  if (!attention_is_right<Float32, Eight<Float32>>(5e-3)) return 12;
  if (!attention_is_right<Float16, Eight<Float16>>(5e-3)) return 13;
  if (!attention_is_right<BFloat16, Eight<BFloat16>>(1e-2)) return 14;
  return 0;
}

}  // namespace paceline
