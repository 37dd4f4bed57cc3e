// What Python calls. Plain C, raw pointers; exec/native/library.py declares the same.

#include "check.h"
#include "decoder.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace paceline;

// Version of this interface: the Python side refuses a library left over from another.
EXPORT int32_t paceline_version() { return 1; }

EXPORT int32_t paceline_supported() {
#if defined(__x86_64__)
  __builtin_cpu_init();
#if defined(__AVX512BF16__)
  if (!__builtin_cpu_supports("avx512bf16")) return 0;
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
    run_together(own.team, threads, 1, [&](Team& team) {
      team.share(0, parts_of(*map, rows), [&](int part) {
        linear_part<Format>(*map, static_cast<const Activation*>(from), size_t(map->inputs), rows, part, take);
      });
    });
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
    Best* best = reinterpret_cast<Best*>(own.take(size_t(rows) * groups * sizeof(Best)));
    auto beats = [](float a, float b) { return !(a <= b) && b == b; };
    run_together(own.team, threads, 1, [&](Team& team) {
      team.share(0, parts_of(*map, rows), [&](int part) {
        linear_part<Format>(*map, static_cast<const Activation*>(from), size_t(map->inputs), rows, part,
                            [&](int row, int column, const float* piece) {
                              Best found{piece[0], column};
                              const int last = std::min(kGroupColumns, map->outputs - column);
                              for (int i = 1; i < last; ++i) {
                                if (beats(piece[i], found.value)) found = {piece[i], column + i};
                              }
                              best[size_t(row) * groups + column / kGroupColumns] = found;
                            });
      });
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
// activations -> output [tokens, heads, value_size] float32.
EXPORT void paceline_attend(int32_t format, const Cache* cache, const Places* places, const void* queries,
                            const void* keys, const void* values, int32_t heads, float scale, float softcap,
                            int64_t window, float* output, void* workspace, int32_t threads) {
  with_format(format, [&](auto f) {
    typedef decltype(f) Format;
    typedef typename Format::Stored Stored;
    typedef typename Format::Activation Activation;
    Workspace& own = *static_cast<Workspace*>(workspace);
    const int kv_heads = cache->kv_heads;
    const Units units(heads / kv_heads);
    const int count = kv_heads * units.splits;
    plan_tasks(own.tasks, *places, kv_heads, units.shared, cache->value_stride);
    const Scoring scoring{scale, softcap, window};
    const int writes = (places->tokens + kSomeTokens - 1) / kSomeTokens;
    run_together(own.team, threads, 2, [&](Team& team) {
      team.share(0, writes, [&](int part) {
        const int last = std::min(places->tokens, (part + 1) * kSomeTokens);
        for (int token = part * kSomeTokens; token < last; ++token) {
          for (int head = 0; head < kv_heads; ++head) {
            const size_t row = size_t(token) * kv_heads + head;
            Blocks<Format>::put_key(*cache, places->slots[token], head,
                                    static_cast<const Stored*>(keys) + row * cache->key_size);
            Blocks<Format>::put_value(*cache, places->slots[token], head,
                                      static_cast<const Stored*>(values) + row * cache->value_size);
          }
        }
      });
      team.share(1, int(own.tasks.list.size()) * count, [&](int part) {
        const Task& task = own.tasks.list[size_t(part / count)];
        attend<Format>(*cache, *places, own.tasks, task, units, part % count, scoring,
                       static_cast<const Activation*>(queries), size_t(heads) * cache->key_size,
                       [&](int token, int head, const float* from, float factor) {
                         float* to = output + (size_t(token) * heads + head) * cache->value_size;
                         for (int i = 0; i < cache->value_size; ++i) to[i] = from[i] * factor;
                       });
      });
    });
  });
}

EXPORT void paceline_forward(const Decoder* decoder, const Step* step, void* workspace) {
  with_format(decoder->format, [&](auto f) {
    Workspace& own = *static_cast<Workspace*>(workspace);
    Pass<decltype(f)> pass(*decoder, *step, own);
    run_together(own.team, step->threads, decoder->layers * kPhasesPerLayer + 2, [&](Team& team) { pass(team); });
  });
}

EXPORT int32_t paceline_check() { return self_check(); }
