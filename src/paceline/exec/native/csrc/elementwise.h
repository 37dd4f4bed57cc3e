// What lies between the products of a decoder layer. float32 in, activations out.
#pragma once

#include "formats.h"

namespace paceline {

// `from` [size] / rms, times `weight`, into `to` (Zhang and Sennrich 2019). Sizes need not be multiples of a vector.
template <class Put>
inline void norm_row(const float* from, const float* weight, int size, float epsilon, Put put) {
  Floats squares{};
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Floats value = load<Floats>(from + i);
    squares += value * value;
  }
  float total = sum(squares);
  for (; i < size; ++i) total += from[i] * from[i];
  const float factor = 1.0f / std::sqrt(total / float(size) + epsilon);
  for (i = 0; i + kLanes <= size; i += kLanes) put(i, load<Floats>(from + i) * factor * load<Floats>(weight + i));
  if (i < size) {
    Floats rest{};
    for (int j = i; j < size; ++j) rest[j - i] = from[j] * factor * weight[j];
    put(i, rest);
  }
}

// Into activations, whose rows must have room for a whole last vector.
template <class Format>
inline void norm_activations(const float* from, const float* weight, int size, float epsilon,
                             typename Format::Activation* to) {
  norm_row(from, weight, size, epsilon, [&](int i, Floats values) {
    if (i + kLanes <= size) Format::activations(to + i, values);
    else for (int j = i; j < size; ++j) to[j] = Format::activation(values[j - i]);
  });
}

enum Activations { kSilu = 0, kGeluTanh = 1, kGelu = 2, kRelu = 3 };

inline Floats activate(int kind, Floats gate) {
  if (kind == kSilu) return gate / (1.0f + exponential(-gate));
  if (kind == kRelu) return gate < Floats{} ? Floats{} : gate;
  if (kind == kGeluTanh) {
    const Floats inner = 0.7978845608028654f * (gate + 0.044715f * gate * gate * gate);
    return 0.5f * gate * (1.0f + hyperbolic_tangent(inner));
  }
  Floats result;
  for (int i = 0; i < kLanes; ++i) result[i] = 0.5f * gate[i] * (1.0f + std::erf(gate[i] * 0.7071067811865476f));
  return result;
}

// Rotary embedding of one head in place, pairing i with i + size / 2 (Su et al. 2021). size / 2 may be any number.
inline void rotate_head(float* head, const float* cosine, const float* sine, int size) {
  const int half = size / 2;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Floats a = load<Floats>(head + i), b = load<Floats>(head + half + i);
    const Floats c = load<Floats>(cosine + i), s = load<Floats>(sine + i);
    store(head + i, a * c - b * s);
    store(head + half + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = head[i], b = head[half + i];
    head[i] = a * cosine[i] - b * sine[i];
    head[half + i] = b * cosine[i] + a * sine[i];
  }
}

}  // namespace paceline
