// Many workers, and many references.

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include <sys/mman.h>

#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/core/timing.h"
#include "paceline/engine/store/tcp_store.h"
#include "paceline/engine/store/tcp_store_server.h"

#include "tests/engine/rpc/counted_memory.h"
#include "tests/engine/rpc/job.h"
#include "tests/engine/rpc/worker_process.h"
#include "tests/harness/random_seed.h"

namespace paceline::rpc::scale {
namespace {

using namespace testing_job;

bool within_minutes(int minutes, const std::function<bool()>& condition) {
  return harness::wait_until(condition, Deadline::after(std::chrono::minutes(minutes)));
}

struct Shared {
  std::atomic<int> num_done, num_calls;
  std::atomic<bool> may_leave;
};
Shared& make_shared_memory() {
  void* const place =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) throw std::bad_alloc();
  return *new (place) Shared;
}

class Scale : public testing::Test {
 protected:
  JoinOptions options() const {
    const Endpoint endpoint{"127.0.0.1", port_};
    return {.role = "tester",
            .store = std::make_shared<TcpStore>(endpoint, secret_, std::chrono::minutes(2)),
            .secret = secret_,
            .address = "127.0.0.1",
            .deadline = 120s};
  }
  void start_store() { server_.emplace(std::move(listener_), secret_); }

  const Secret secret_ = Secret::generate();
  Shared& shared_ = make_shared_memory();

 private:
  Fd listener_ = listen_tcp({"127.0.0.1", 0});
  const std::uint16_t port_ = local_port(listener_);
  std::optional<TcpStoreServer> server_;
};

TEST_F(Scale, two_hundred_workers_on_one_host_call_each_other) {
  constexpr int kWorkers = 200, kCalls = 30;
  const auto name = [](int i) { return "worker" + std::to_string(i); };
  const unsigned seed = harness::random_seed();
  const auto begun = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<Process>> workers;
  for (int i = 0; i < kWorkers; ++i) {
    workers.push_back(std::make_unique<Process>([&, i] {
      std::mt19937 random(seed + static_cast<unsigned>(i));
      auto mine = options();
      mine.num_threads = 1;
      const auto self = rpc::join(name(i), mine);
      self->serve<Add>([](const Add::Request& r, Context&) { return Add::Reply{r.a + r.b}; });
      for (int call = 0; call < kCalls; ++call) {
        // All call the same worker first, so that it meets 199 new peers at once.
        const int other = call == 0 ? 0 : static_cast<int>(random() % kWorkers);
        const bool was_answered = within_minutes(2, [&] {
          try {
            return self->call<Add>(name(other), {i, call}).get().sum == i + call;
          } catch (const CallError& error) {  // it has joined, but does not serve the method yet
            if (error.executed() != CallError::Executed::kNo) throw;
            return false;
          }
        });
        if (!was_answered) return false;
        ++shared_.num_calls;
      }
      ++shared_.num_done;
      return within_minutes(4, [&] { return shared_.may_leave.load(); });
    }));
  }
  start_store();
  EXPECT_TRUE(within_minutes(4, [&] { return shared_.num_done == kWorkers; }))
      << shared_.num_done << " workers are done, " << shared_.num_calls << " calls";
  std::printf("%d workers, %d calls: %.1f s\n", kWorkers, shared_.num_calls.load(),
              seconds_since(begun));
  const auto left = std::chrono::steady_clock::now();
  shared_.may_leave = true;
  for (auto& worker : workers) EXPECT_TRUE(worker->succeeds());
  std::printf("all left within %.1f s\n", seconds_since(left));
}

// ---- references ----

std::atomic<int> num_things{0};
class Thing {
 public:
  static constexpr std::string_view kName = "thing";
  Thing() { ++num_things; }
  ~Thing() { --num_things; }
  Nothing touch(const Nothing& /*nothing*/) { return {}; }
  static auto methods() { return std::tuple(method<&Thing::touch>("touch")); }
};

TEST_F(Scale, a_million_references_cost_little_and_are_freed_with_their_holder) {
  constexpr int kThings = 1'000'000;
  constexpr auto kLease = 3s;
  constexpr double kMaxBytes = 200;  // bytes at the owner for each reference
  Process holder([&] {
    const auto self = rpc::join("holder", options());
    std::vector<RemoteRef<Thing>> things;
    if (!within_minutes(1, [&] {
          try {
            things.assign(1, self->create<Thing>("owner"));
            things.back().call<&Thing::touch>().get();
            return true;
          } catch (const Error&) {  // the worker has not joined yet
            return false;
          }
        })) {
      return false;
    }
    while (things.size() < kThings) things.push_back(self->create<Thing>("owner"));
    things.back().call<&Thing::touch>().get();
    ++shared_.num_done;
    return serve_for_ever();
  });
  start_store();
  auto mine = options();
  mine.lease = kLease;
  const auto owner = rpc::join("owner", mine);
  const std::ptrdiff_t before = num_allocated_bytes;
  const auto begun = std::chrono::steady_clock::now();
  owner->serve<Thing>();
  ASSERT_TRUE(within_minutes(4, [&] { return num_things == kThings && shared_.num_done == 1; }))
      << num_things << " objects";
  // The object and its control block belong to the program, not to the library.
  const std::ptrdiff_t of_objects = [] {
    const std::ptrdiff_t none = num_allocated_bytes;
    const auto one = std::make_shared<Thing>();
    return num_allocated_bytes - none;
  }();
  const double each =
      static_cast<double>(num_allocated_bytes - before) / kThings - static_cast<double>(of_objects);
  std::printf("%d references in %.1f s: %.0f bytes each at the owner, and %d of the object\n",
              kThings, seconds_since(begun), each, static_cast<int>(of_objects));
  EXPECT_LE(each, kMaxBytes);
  holder.end();
  const auto killed = std::chrono::steady_clock::now();
  EXPECT_TRUE(within_minutes(1, [] { return num_things == 0; })) << num_things << " are left";
  std::printf("freed %.2f s after their holder was killed; the lease is %d s\n",
              seconds_since(killed), static_cast<int>(kLease / 1s));
  // The tables do not shrink.
  EXPECT_LT(num_allocated_bytes - before, 32 * std::ptrdiff_t{kThings}) << "bytes are left";
}

}  // namespace
}  // namespace paceline::rpc::scale
