// Servers and clients that are killed or frozen while rows are pushed. Each push adds a known
// vector to known rows, so the sums tell which pushes were applied, and how often:
//
//   acknowledged <= applied <= acknowledged + unknown, each push at most once.

#include <random>
#include <thread>

#include "paceline/engine/store/file_store.h"
#include "paceline/engine/tables/row_server.h"
#include "paceline/engine/tables/tables.h"

#include "tests/engine/rpc/job.h"
#include "tests/engine/rpc/worker_process.h"
#include "tests/engine/tables/table_job.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/random_seed.h"

namespace paceline::tables::failover_tests {
namespace {

using namespace testing_job;
using Clock = std::chrono::steady_clock;
using Process = rpc::testing_job::Process;

constexpr std::uint32_t kWidth = 8;

// Servers in processes of their own, which are each other's backups, and clients in processes or
// threads of the test.
class FailOver : public testing::Test {
 protected:
  std::unique_ptr<rpc::Workers> join(const std::string& name,
                                     std::function<void(rpc::Workers&)> prepare = {}) {
    rpc::JoinOptions options{.prepare = std::move(prepare),
                             .store = std::make_shared<FileStore>(path_),
                             .secret = secret_,
                             .address = "127.0.0.1",
                             .host = hosts_ ? name : ""};
    options.deadline = 20s;
    options.lease = 2s;
    return rpc::join(name, options);
  }
  std::unique_ptr<Process> start_server(const std::string& name, const std::string& backup) {
    return std::make_unique<Process>([this, name, backup] {
      RowServer server;
      const auto workers =
          join(name, [&](rpc::Workers& self) { server.serve(self, {.backup = backup}); });
      ++ready_;
      return rpc::testing_job::serve_for_ever();
    });
  }
  void wait_until_ready(int count) {
    while (ready_ < count) std::this_thread::sleep_for(1ms);
  }

  void kill_a_server();

  bool hosts_ = false;  // every worker is a host of its own: calls go over TCP
  const FreshDirectory folder_;
  const std::string path_ = folder_.file("store");
  const Secret secret_ = Secret::generate();
  std::atomic<int>& ready_ = shared_with_children<std::atomic<int>>();
};

std::vector<Id> hundred_ids() {
  std::vector<Id> ids(100);
  for (Id i = 0; i < 100; ++i) ids[i] = i;
  return ids;
}

// The counted oracle: a client's push adds 1 to its own element of all rows.
void expect_each_once(Rows& rows, const std::vector<std::uint64_t>& acknowledged,
                      const std::vector<std::uint64_t>& unknown) {
  const auto ids = hundred_ids();
  const auto values = pull(rows, ids);
  for (std::size_t client = 0; client < acknowledged.size(); ++client) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto applied = static_cast<std::uint64_t>(values[i * kWidth + client]);
      EXPECT_GE(applied, acknowledged[client]) << "row " << i << ": a push was lost";
      EXPECT_LE(applied, acknowledged[client] + unknown[client])
          << "row " << i << ": a push was applied twice";
    }
  }
}

void FailOver::kill_a_server() {
  const auto first = start_server("server0", "server1");
  const auto second = start_server("server1", "server0");
  wait_until_ready(2);
  const auto workers = join("client");
  std::vector<std::uint64_t> acknowledged(3);
  std::vector<std::unique_ptr<Rows>> clients;
  std::vector<std::unique_ptr<rpc::Workers>> joined;
  for (std::size_t i = 0; i < acknowledged.size(); ++i) {
    joined.push_back(join("client" + std::to_string(i)));
    clients.push_back(
        Tables(*joined.back())
            .open_rows("t", adding_rows(kWidth), {.servers = {"server0", "server1"}}));
  }
  std::atomic<bool> stops = false;
  std::atomic<std::int64_t> longest_us = 0;
  {
    std::vector<std::jthread> threads;
    for (std::size_t client = 0; client < clients.size(); ++client) {
      threads.emplace_back([&, client] {
        const auto ids = hundred_ids();
        std::vector<float> gradients(ids.size() * kWidth);
        for (std::size_t i = 0; i < ids.size(); ++i) gradients[i * kWidth + client] = 1;
        while (!stops) {
          const auto begin = Clock::now();
          clients[client]->push(ids, gradients);
          ++acknowledged[client];
          const std::int64_t us =
              std::chrono::microseconds(
                  std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin))
                  .count();
          for (std::int64_t seen = longest_us; seen < us;)
            if (longest_us.compare_exchange_weak(seen, us)) break;
        }
      });
    }
    std::mt19937 random(harness::random_seed());
    std::this_thread::sleep_for(std::chrono::milliseconds(100 + random() % 200));
    first->end();  // SIGKILL, in the middle of whatever it does
    std::this_thread::sleep_for(hosts_ ? 3s : 1s);
    stops = true;
  }
  expect_each_once(*clients[0], acknowledged, std::vector<std::uint64_t>(3, 0));
  for (const std::uint64_t count : acknowledged) EXPECT_GT(count, 0U);
  RecordProperty("longest_push_ms", static_cast<int>(longest_us / 1000));
  std::printf("longest push %.1f ms, %lu + %lu + %lu pushes\n",
              static_cast<double>(longest_us) / 1000, acknowledged[0], acknowledged[1],
              acknowledged[2]);
}

TEST_F(FailOver, EachPushIsAppliedOnceWhenServersAreKilled) { kill_a_server(); }

TEST_F(FailOver, EachPushIsAppliedOnceWhenServersOfOtherHostsAreKilled) {
  hosts_ = true;
  kill_a_server();
}

// A client dies at any moment of a push; another one repeats the push with its session and number.
TEST_F(FailOver, EachPushIsAppliedOnceWhenClientsAreKilled) {
  struct Progress {
    std::atomic<std::uint64_t> session, begun, acknowledged;
  };
  auto& progress = shared_with_children<Progress>();
  const auto server = start_server("server0", "");
  wait_until_ready(1);
  std::vector<std::unique_ptr<Process>> victims;
  std::mt19937 random(harness::random_seed());
  const auto ids = hundred_ids();
  std::vector<float> gradients(ids.size() * kWidth);
  for (std::size_t i = 0; i < ids.size(); ++i) gradients[i * kWidth] = 1;
  constexpr int kVictims = 6;
  for (int i = 0; i < kVictims; ++i) {
    victims.push_back(std::make_unique<Process>([&, i] {
      while (ready_ < 1 + i + 1) std::this_thread::sleep_for(1ms);
      const auto workers = join("victim" + std::to_string(i));
      TableOptions options{.servers = {"server0"}};
      if (i > 0) options.session = progress.session;
      const auto rows = [&] {
        // The lease of the former client must end before its session is free.
        for (const auto deadline = Deadline::after(15s);; std::this_thread::sleep_for(50ms)) {
          try {
            return Tables(*workers).open_rows("t", adding_rows(kWidth), options);
          } catch (const Error&) {
            if (deadline.expired()) throw;
          }
        }
      }();
      progress.session = rows->session();
      for (std::uint64_t push = std::max<std::uint64_t>(progress.begun, 1);; ++push) {
        progress.begun = push;
        rows->push(ids, gradients, {.sequence = push});
        progress.acknowledged = push;
      }
      return true;
    }));
  }
  std::uint64_t before = 0;
  for (int i = 0; i < kVictims; ++i) {
    ++ready_;
    while (progress.acknowledged < before + 3) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    victims[i]->end();
    before = progress.acknowledged;
  }
  const auto workers = join("reader");
  const auto rows = Tables(*workers).open_rows("t", adding_rows(kWidth), {.servers = {"server0"}});
  expect_each_once(*rows, {progress.acknowledged}, {progress.begun - progress.acknowledged});
}

// The frozen server goes on in the same memory, or is refused there, when it thaws.
TEST_F(FailOver, AFrozenServerIsReplacedAfterALease) {
  const auto first = start_server("server0", "server1");
  const auto second = start_server("server1", "server0");
  wait_until_ready(2);
  const auto workers = join("client");
  const auto rows =
      Tables(*workers).open_rows("t", adding_rows(kWidth), {.servers = {"server0", "server1"}});
  const auto ids = hundred_ids();
  std::vector<float> gradients(ids.size() * kWidth);
  for (std::size_t i = 0; i < ids.size(); ++i) gradients[i * kWidth] = 1;
  for (int i = 0; i < 5; ++i) rows->push(ids, gradients);
  first->freeze();
  for (int i = 0; i < 5; ++i) rows->push(ids, gradients);
  first->thaw();
  for (int i = 0; i < 5; ++i) rows->push(ids, gradients);
  expect_each_once(*rows, {15}, {0});
}

TEST_F(FailOver, WithoutABackupTheLossOfAServerIsAnError) {
  const auto first = start_server("server0", "");
  wait_until_ready(1);
  const auto workers = join("client");
  const auto rows = Tables(*workers).open_rows("t", adding_rows(1), {.servers = {"server0"}});
  rows->push(std::vector<Id>{1}, std::vector<float>{1});
  first->end();
  expect_error(ErrorCode::kPeerLost, {"server0"},
               [&] { rows->push(std::vector<Id>{1}, std::vector<float>{1}); });
}

}  // namespace
}  // namespace paceline::tables::failover_tests
