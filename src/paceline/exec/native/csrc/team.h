// Threads that go through a step together. Parts of a phase are claimed one by one, and a phase is over when its parts are
// done, not when all threads have come to its end: a thread the system takes off its core delays the others by the part
// it had in hand at most, and skips what was done without it. Waiting spins briefly, then yields.
//
// The threads are those of the OpenMP runtime torch has loaded (its GOMP_parallel is handed over at start): a second pool
// would fight with it for the cores.
#pragma once

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#endif

namespace paceline {

typedef void (*ParallelFunction)(void (*)(void*), void*, unsigned, unsigned);

inline ParallelFunction& parallel_function() {
  static ParallelFunction function = nullptr;  // none: threads are started for each step
  return function;
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

class Team {
 public:
  // Every thread of the team calls this with the same arguments, in the same order of phases. `work(i)` for all
  // i < parts; when it returns, all of them are done, whoever did them.
  template <class Work>
  void share(int phase, int parts, Work work) {
    Phase& mine = phases_[size_t(phase)];
    for (int part = mine.next.fetch_add(1, std::memory_order_relaxed); part < parts;
         part = mine.next.fetch_add(1, std::memory_order_relaxed)) {
      work(part);
      mine.done.fetch_add(1, std::memory_order_acq_rel);
    }
    for (int spins = 0; mine.done.load(std::memory_order_acquire) < parts; ++spins) {
      if (spins < kSpins) pause_briefly();
      else yield_core();
    }
  }

  int threads() const { return threads_; }

  void reset(int phases, int threads) {
    threads_ = threads;
    if (phases_.size() < size_t(phases)) phases_ = std::vector<Phase>(size_t(phases));
    for (int i = 0; i < phases; ++i) {
      phases_[size_t(i)].next.store(0, std::memory_order_relaxed);
      phases_[size_t(i)].done.store(0, std::memory_order_relaxed);
    }
  }

 private:
  struct alignas(64) Phase {
    std::atomic<int> next{0};
    std::atomic<int> done{0};
  };
  static constexpr int kSpins = 2000;
  std::vector<Phase> phases_;
  int threads_ = 1;
};

// Runs `work(team)` on `threads` threads at once. `phases`: how many different phases it shares out.
template <class Work>
void run_together(Team& team, int threads, int phases, Work work) {
  team.reset(phases, std::max(threads, 1));
  if (threads <= 1) {
    work(team);
    return;
  }
  if (parallel_function() == nullptr) {
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
  parallel_function()(
      [](void* data) {
        Call& mine = *static_cast<Call*>(data);
        (*mine.work)(*mine.team);
      },
      &call, unsigned(threads), 0);
}

}  // namespace paceline
