// Workers that join, leave, die and freeze, in virtual time, with clocks that run up to 10% too
// fast or too slow: the library's Directory over a store in memory. While a worker is frozen and
// counts as lost, another process may take its name.
//
// PACELINE_SIMULATION_SEEDS sets how many seeds are tried, as in references_simulation_test.cpp.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/rpc/directory.h"
#include "paceline/engine/store/memory_store.h"

namespace paceline::rpc::membership {
namespace {

using namespace std::chrono_literals;

using Time = std::chrono::nanoseconds;  // virtual time of the simulation
constexpr int kNames = 8;
// If one worker dies after another, each loss takes one lease to find.
constexpr Time kLease = 10s, kQuietFrom = 200s, kEnd = kQuietFrom + (kNames + 6) * kLease;

struct Worker {
  WorkerEntry entry;
  std::unique_ptr<Directory> directory;
  double rate = 1;  // speed of the worker's clock
  Time next_look{0};
  bool was_stopped = false;
  std::map<std::string, WorkerEntry> seen{};  // the worker's knowledge of the others
};

class World {
 public:
  explicit World(unsigned seed) : random_(seed) {}

  void run() {
    for (now_ = 0s; now_ < kEnd && !testing::Test::HasFailure(); now_ += 100ms) {
      if (now_ < kQuietFrom && chance(20)) change_something();
      for (auto& worker : workers_) look(*worker);
      check_those_that_never_stopped();
    }
    check_end();
  }
  int num_joined = 0, num_lost = 0;

 private:
  bool chance(unsigned one_in) { return random_() % one_in == 0; }
  Time pick(Time least, Time most) {
    return Time(std::uniform_int_distribution(least.count(), most.count())(random_));
  }

  void change_something() {
    if (workers_.size() < 3 || chance(3)) return join();
    const std::size_t chosen = random_() % workers_.size();
    Worker& worker = *workers_[chosen];
    switch (random_() % 3) {
      case 0:  // the worker dies
        break;
      case 1:
        worker.directory->change(worker.entry, WorkerInfo::State::kLeft);
        break;
      default:  // the worker freezes
        worker.next_look = now_ + pick(1s, 4 * kLease);
        worker.was_stopped = true;
        return;
    }
    workers_.erase(workers_.begin() + static_cast<std::ptrdiff_t>(chosen));
  }
  void join() {
    auto worker = std::make_unique<Worker>();
    worker->entry.name = "worker" + std::to_string(random_() % kNames);
    worker->entry.incarnation = std::to_string(++num_joined);
    worker->entry.host = "elsewhere";  // so that no worker can check whether its process lives
    worker->directory = std::make_unique<Directory>(store_, kLease);
    worker->rate = std::uniform_real_distribution(0.9, 1.1)(random_);
    worker->next_look = now_;
    try {
      worker->directory->enter(worker->entry);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalid);
      EXPECT_EQ(state_of(worker->entry.name).state, WorkerInfo::State::kPresent);
      return;
    }
    workers_.push_back(std::move(worker));
  }
  void look(Worker& worker) {
    if (now_ < worker.next_look) return;
    worker.next_look = now_ + pick(900ms, 1300ms);
    const auto clock = std::chrono::duration_cast<Time>(now_ * worker.rate) + 1h;
    try {
      for (const auto& entry : worker.directory->look_around(worker.entry, clock)) {
        worker.seen[entry.name] = entry;
        if (entry.state == WorkerInfo::State::kLost) ++num_lost;
      }
    } catch (const Error& error) {  // the name now belongs to another process
      EXPECT_TRUE(worker.was_stopped) << error.what();
    }
  }
  WorkerEntry state_of(const std::string& name) {
    return Directory(store_, kLease)
        .find(name)
        .value_or(WorkerEntry{.state = WorkerInfo::State::kLeft});
  }
  void check_those_that_never_stopped() {
    for (const auto& worker : workers_) {
      if (worker->was_stopped) continue;
      const auto there = state_of(worker->entry.name);
      EXPECT_EQ(there.incarnation, worker->entry.incarnation);
      EXPECT_EQ(there.state, WorkerInfo::State::kPresent)
          << worker->entry.name << " was taken for lost at " << now_ / 1ms << " ms";
    }
  }
  // Some leases after the last change every worker knows the true states.
  void check_end() {
    if (testing::Test::HasFailure()) return;
    std::map<std::string, std::string> present;  // names and incarnations
    for (const auto& worker : workers_) {
      const auto there = state_of(worker->entry.name);
      if (there.incarnation == worker->entry.incarnation) {
        EXPECT_EQ(there.state, WorkerInfo::State::kPresent) << there.name << " lives";
        present[there.name] = there.incarnation;
      }
    }
    if (workers_.empty()) return;  // no worker is left to see the end
    const auto all = Directory(store_, kLease).all();
    for (const auto& entry : all) {
      const auto found = present.find(entry.name);
      const bool lives = found != present.end() && found->second == entry.incarnation;
      EXPECT_EQ(entry.state == WorkerInfo::State::kPresent, lives) << entry.name;
      for (const auto& worker : workers_) {
        const auto seen = worker->seen.find(entry.name);
        ASSERT_NE(seen, worker->seen.end()) << worker->entry.name << " misses " << entry.name;
        EXPECT_EQ(seen->second, entry) << "as " << worker->entry.name << " sees it";
      }
    }
  }

  std::mt19937 random_;
  std::shared_ptr<Store> store_ = std::make_shared<MemoryStore>();
  std::vector<std::unique_ptr<Worker>> workers_;
  Time now_{0};
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kSeeds = 100;
#else
constexpr int kSeeds = 200;  // about 25 ms each
#endif

TEST(MembershipSimulation, everybody_learns_who_is_there_and_nobody_who_looks_is_lost) {
  const char* const text = std::getenv("PACELINE_SIMULATION_SEEDS");
  const int seeds = text == nullptr ? kSeeds : std::atoi(text);
  long joined = 0, lost = 0;
  for (int seed = 0; seed < seeds && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(static_cast<unsigned>(seed));
    world.run();
    joined += world.num_joined;
    lost += world.num_lost;
  }
  std::printf("%d seeds: %ld processes, %ld times one was seen to be lost\n", seeds, joined, lost);
  EXPECT_GT(lost, seeds);
}

}  // namespace
}  // namespace paceline::rpc::membership
