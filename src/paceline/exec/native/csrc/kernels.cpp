// What Python calls. Plain C, raw pointers; exec/native/library.py declares the same.

#include "check.h"
#include "decoder.h"
#include "quantise.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace paceline;

// Version of this interface: the Python side refuses a library left over from another.
EXPORT int32_t paceline_version() { return 2; }

EXPORT int32_t paceline_supported() {
#if defined(__x86_64__)
  __builtin_cpu_init();
#if defined(__AVX512BF16__)
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vnni")) return 0;
#endif
#if defined(__AVX512F__)
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return 0;
  }
#endif
#if defined(__AVX2__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
#endif
#endif
  return 1;
}

EXPORT void paceline_use_runtime(void* parallel) {
  parallel_function() = reinterpret_cast<ParallelFunction>(parallel);
}

EXPORT void* paceline_workspace() { return new Workspace(); }

EXPORT void paceline_free_workspace(void* workspace) { delete static_cast<Workspace*>(workspace); }

namespace {

template <class Format>
size_t rounded_bytes(const Linear& map, int rows) {
  return rounds<Format>(map) ? size_t(map.inputs / kBlock) * size_t(rows) * sizeof(Rounded) : 0;
}

// All of [rows, inputs] activations times the map. `rounded`: room for rounded_bytes.
template <class Format, class Take>
void multiply_all(Workspace& own, const Linear& map, const typename Format::Activation* from, int rows, int threads,
                  char* rounded, Take take) {
  Rounded* blocks = reinterpret_cast<Rounded*>(rounded);
  const Left<Format> left{from, size_t(map.inputs), blocks, rows};
  run_together(own.team, threads, 2, [&](Team& team) {
    if (rounds<Format>(map)) {
      team.share(0, rows, [&](int row) {
        round_activations<Format>(from + size_t(row) * map.inputs, map.inputs, blocks + row, size_t(rows));
      });
    }
    team.share(1, parts_of(map, rows), [&](int part) {
      linear_part<Format>(map, left, part, {after<Format>(map, rows, part, threads, nullptr)}, take);
    });
  });
}

// Whether `a` counts as larger than `b`: NaN is largest.
inline bool beats(float a, float b) { return !(a <= b) && b == b; }

// Of the largest of `count` numbers, the first of equals; the first NaN, if there is one.
inline int place_of_largest(const float* from, int count) {
  static_assert(kGroupColumns % kLanes == 0, "whole vectors");
  if (count == kGroupColumns) {
    Floats most = load<Floats>(from), probe = most * 0.0f;
    for (int i = kLanes; i < kGroupColumns; i += kLanes) {
      const Floats next = load<Floats>(from + i);
      most = larger(most, next);
      probe += next * 0.0f;
    }
    if (sum(probe) == 0) {  // neither NaN nor infinite
      const float value = largest(most);
      for (int i = 0; i < kGroupColumns; i += kLanes) {
        const uint32_t equal = lanes_equal(load<Floats>(from + i), value);
        if (equal != 0) return i + __builtin_ctz(equal);
      }
    }
  }
  int place = 0;
  for (int i = 1; i < count; ++i) {
    if (beats(from[i], from[place])) place = i;
  }
  return place;
}

template <class Format>
void widen_row(const typename Format::Stored* from, int size, float* to) {
  for (int i = 0; i < size; ++i) to[i] = Format::widen(from[i]);
}

template <class Format, class KV>
void attend_all(const Cache& cache, const Places& places, const void* queries, const void* keys, const void* values,
                int heads, const Scoring& scoring, float* output, Workspace& own, int threads) {
  typedef typename Format::Stored Stored;
  const int kv_heads = cache.kv_heads, size = cache.key_size, width = cache.value_size;
  const Units units(heads / kv_heads);
  const int count = kv_heads * units.splits;
  plan_tasks(own.tasks, places, kv_heads, units.shared, cache.value_stride);
  run_together(own.team, threads, 2, [&](Team& team) {
    team.share(0, places.tokens, [&](int token) {
      alignas(64) float wide[kMostSize];
      for (int head = 0; head < kv_heads; ++head) {
        const size_t row = size_t(token) * kv_heads + head;
        widen_row<Format>(static_cast<const Stored*>(keys) + row * size, size, wide);
        Blocks<KV>::put_key(cache, places.slots[token], head, wide);
        widen_row<Format>(static_cast<const Stored*>(values) + row * width, width, wide);
        Blocks<KV>::put_value(cache, places.slots[token], head, wide);
      }
    });
    team.share(1, int(own.tasks.list.size()) * count, [&](int part) {
      const Task& task = own.tasks.list[size_t(part / count)];
      attend<KV>(cache, places, own.tasks, task, units, part % count, scoring,
                 static_cast<const typename Format::Activation*>(queries), size_t(heads) * size, Begun(),
                 [&](int token, int head, const float* from, float factor) {
                   float* to = output + (size_t(token) * heads + head) * width;
                   for (int i = 0; i < width; ++i) to[i] = from[i] * factor;
                 });
    });
  });
}

}  // namespace

// Bytes of one number of an activation.
EXPORT int32_t paceline_activation_bytes(int32_t format) {
  int32_t bytes = 0;
  with_format(format, [&](auto f) { bytes = sizeof(typename decltype(f)::Activation); });
  return bytes;
}

EXPORT void paceline_pack(int32_t format, const void* matrix, int32_t rows, int32_t inputs, void* panels,
                          int32_t spacing) {
  with_format(format, [&](auto f) {
    typedef typename decltype(f)::Stored Stored;
    pack<decltype(f)>(static_cast<const Stored*>(matrix), rows, inputs, static_cast<Stored*>(panels), spacing);
  });
}

// Bytes of a panel of a quantised matrix, and of a row in a file; 0: the format is not known here.
EXPORT int64_t paceline_panel_bytes(int32_t kind, int32_t inputs) {
  int64_t bytes = 0;
  with_quant(kind, [&](auto quant) { bytes = int64_t(inputs) / quant.kInputs * quant.kBytes; });
  return bytes;
}

EXPORT int64_t paceline_file_row_bytes(int32_t kind, int32_t inputs) {
  int64_t bytes = 0;
  with_quant(kind, [&](auto quant) { bytes = int64_t(inputs) / quant.kInputs * quant.kFileBytes; });
  return bytes;
}

EXPORT void paceline_pack_quantised(int32_t kind, const void* matrix, int32_t rows, int32_t inputs, void* panels) {
  with_quant(kind, [&](auto quant) {
    pack_quantised<decltype(quant)>(static_cast<const uint8_t*>(matrix), rows, inputs, static_cast<uint8_t*>(panels));
  });
}

// float32 [rows, inputs] to Q8_0 or Q4_1 as a file holds them; inputs: a multiple of 32.
EXPORT void paceline_quantise(int32_t kind, const float* matrix, int32_t rows, int32_t inputs, uint8_t* to,
                              void* workspace, int32_t threads) {
  const int blocks = inputs / kBlock;
  run_together(static_cast<Workspace*>(workspace)->team, threads, 1, [&](Team& team) {
    team.share(0, rows, [&](int row) {
      for (size_t block = size_t(row) * blocks; block < size_t(row + 1) * blocks; ++block) {
        if (kind == kQ8_0) quantise_q8_0(matrix + block * kBlock, to + block * Q8_0::kFileBytes);
        else quantise_q4_1(matrix + block * kBlock, to + block * Q4_1::kFileBytes);
      }
    });
  });
}

// Rows of a quantised matrix, as float32 [count, inputs].
EXPORT void paceline_quantised_rows(const QuantisedPanel* panels, const int64_t* rows, int32_t count, int32_t inputs,
                                    float* to) {
  for (int i = 0; i < count; ++i) widen_row(panels, rows[i], inputs, to + size_t(i) * inputs);
}

// [rows, inputs] activations -> [rows, outputs] float32. `paired`: panels of two maps in turn, unfolded side by side.
EXPORT void paceline_linear(int32_t format, const Linear* map, const void* from, int32_t rows, int32_t paired, float* to,
                            void* workspace, int32_t threads) {
  with_format(format, [&](auto f) {
    typedef decltype(f) Format;
    typedef typename Format::Activation Activation;
    const int half = map->outputs / 2;
    auto take = [&](int row, int column, const float* piece) {
      float* out = to + size_t(row) * map->outputs;
      if (paired) {
        std::memcpy(out + column / 2, piece, kPanel * sizeof(float));
        std::memcpy(out + half + column / 2, piece + kPanel, kPanel * sizeof(float));
      } else {
        std::memcpy(out + column, piece, size_t(std::min(kGroupColumns, map->outputs - column)) * sizeof(float));
      }
    };
    Workspace& own = *static_cast<Workspace*>(workspace);
    multiply_all<Format>(own, *map, static_cast<const Activation*>(from), rows, threads, own.take(rounded_bytes<Format>(*map, rows)), take);
  });
}

// The largest output of each row and its place, the lowest where several are largest; NaN counts as largest.
EXPORT void paceline_largest(int32_t format, const Linear* map, const void* from, int32_t rows, float* values,
                             int64_t* places, void* workspace, int32_t threads) {
  with_format(format, [&](auto f) {
    typedef decltype(f) Format;
    typedef typename Format::Activation Activation;
    Workspace& own = *static_cast<Workspace*>(workspace);
    // Each group of columns leaves its own best; they are few, and gone through in order at the end.
    const int groups = groups_of(*map);
    struct Best {
      float value;
      int32_t place;
    };
    char* memory = own.take(rounded_bytes<Format>(*map, rows) + size_t(rows) * groups * sizeof(Best));
    Best* best = reinterpret_cast<Best*>(memory + rounded_bytes<Format>(*map, rows));
    multiply_all<Format>(own, *map, static_cast<const Activation*>(from), rows, threads, memory,
                         [&](int row, int column, const float* piece) {
                           const int last = std::min(kGroupColumns, map->outputs - column);
                           const int place = place_of_largest(piece, last);
                           best[size_t(row) * groups + column / kGroupColumns] = {piece[place], column + place};
                         });
    for (int row = 0; row < rows; ++row) {
      Best found = best[size_t(row) * groups];
      for (int group = 1; group < groups; ++group) {
        const Best& other = best[size_t(row) * groups + group];
        if (beats(other.value, found.value)) found = other;
      }
      values[row] = found.value;
      places[row] = found.place;
    }
  });
}

// Rows of a packed matrix, as float32 [count, inputs].
EXPORT void paceline_rows(int32_t format, const void* panels, const int64_t* rows, int32_t count, int32_t inputs,
                          float* to) {
  with_format(format, [&](auto f) {
    typedef typename decltype(f)::Stored Stored;
    for (int i = 0; i < count; ++i) {
      unpack_row<decltype(f)>(static_cast<const Stored*>(panels), int(rows[i]), inputs, to + size_t(i) * inputs);
    }
  });
}

// Puts keys [tokens, kv_heads, key_size] and values into their slots, then attends: queries [tokens, heads, key_size]
// activations -> output [tokens, heads, value_size] float32. Keys and values are of the format, whatever K/V are in.
EXPORT void paceline_attend(int32_t format, const Cache* cache, const Places* places, const void* queries,
                            const void* keys, const void* values, int32_t heads, float scale, float softcap,
                            int64_t window, float* output, void* workspace, int32_t threads) {
  const Scoring scoring{scale, softcap, window};
  Workspace& own = *static_cast<Workspace*>(workspace);
  with_format(format, [&](auto f) {
    typedef decltype(f) Format;
    if (cache->eight) attend_all<Format, Eight<Format>>(*cache, *places, queries, keys, values, heads, scoring, output, own, threads);
    else attend_all<Format, Format>(*cache, *places, queries, keys, values, heads, scoring, output, own, threads);
  });
}

EXPORT void paceline_forward(const Decoder* decoder, const Step* step, void* workspace) {
  with_format(decoder->format, [&](auto f) {
    Workspace& own = *static_cast<Workspace*>(workspace);
    typedef decltype(f) Format;
    const int phases = decoder->layers * kPhasesPerLayer + 2;
    if (decoder->kv_eight) {
      Pass<Format, Eight<Format>> pass(*decoder, *step, own);
      run_together(own.team, step->threads, phases, [&](Team& team) { pass(team); });
    } else {
      Pass<Format, Format> pass(*decoder, *step, own);
      run_together(own.team, step->threads, phases, [&](Team& team) { pass(team); });
    }
  });
}

EXPORT int32_t paceline_check() { return self_check(); }
