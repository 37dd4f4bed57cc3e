// Threads that go through a step together: parts of a phase are claimed one by one, so that a thread the system
// takes off its core delays nobody for more than one part; barriers between phases spin briefly, then yield.
//
// The threads are those of the OpenMP runtime torch has loaded (its GOMP_parallel is handed over at start): a second pool
// would fight with it for the cores.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#endif

namespace paceline {

typedef void (*ParallelFunction)(void (*)(void*), void*, unsigned, unsigned);
typedef int (*TeamSizeFunction)();

struct Runtime {
  ParallelFunction parallel = nullptr;
  TeamSizeFunction team_size = nullptr;
};

inline Runtime& runtime() {
  static Runtime instance;
  return instance;
}

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline void yield_core() {
#if defined(__unix__) || defined(__APPLE__)
  sched_yield();
#endif
}

constexpr int kMostPhases = 4096;  // most phases of one step

class Team {
 public:
  int size = 1;

  // Every thread of the team calls this with the same arguments, in the same order. `work(i)` for all i < parts.
  template <class Work>
  void share(int phase, int parts, Work work) {
    std::atomic<int>& next = counters_[phase];
    for (int part = next.fetch_add(1, std::memory_order_relaxed); part < parts;
         part = next.fetch_add(1, std::memory_order_relaxed)) {
      work(part);
    }
  }

  // Waits for all; the last to arrive runs `alone` before anyone goes on.
  template <class Alone>
  void meet(Alone alone) {
    if (size == 1) {
      alone();
      return;
    }
    const int round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
      alone();
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
      if (spins < kSpins) pause_briefly();
      else yield_core();
    }
  }

  void meet() {
    meet([] {});
  }

  void reset(int phases) {
    for (int i = 0; i < phases; ++i) counters_[i].store(0, std::memory_order_relaxed);
    arrived_.store(0);
    round_.store(0);
  }

 private:
  static constexpr int kSpins = 2000;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> round_{0};
  alignas(64) std::atomic<int> counters_[kMostPhases] = {};
};

// Runs `work(team)` on `threads` threads at once. `phases`: how many different phases it shares out.
template <class Work>
void run_together(Team& team, int threads, int phases, Work work) {
  team.reset(phases);
  if (threads <= 1) {
    team.size = 1;
    work(team);
    return;
  }
  if (runtime().parallel == nullptr) {
    team.size = threads;
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back([&] { work(team); });
    work(team);
    for (std::thread& other : others) other.join();
    return;
  }
  struct Call {
    Team* team;
    Work* work;
  } call{&team, &work};
  runtime().parallel(
      [](void* data) {
        Call& mine = *static_cast<Call*>(data);
        // All write the same number; it is the size the runtime really gave.
        __atomic_store_n(&mine.team->size, runtime().team_size(), __ATOMIC_RELAXED);
        (*mine.work)(*mine.team);
      },
      &call, unsigned(threads), 0);
}

}  // namespace paceline
