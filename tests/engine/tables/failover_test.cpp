// Servers and clients that are killed or frozen while rows are pushed. Each push adds a known
// vector to known rows, so the sums tell which pushes were applied, and how often:
//
//   acknowledged <= applied <= acknowledged + unknown, each push at most once.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>

#include "paceline/engine/store/file_store.h"
#include "paceline/engine/tables/servers/row_server.h"
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
    options.lease = lease_;
    return rpc::join(name, options);
  }
  // The server joins at its turn.
  std::unique_ptr<Process> start_server(const std::string& name, const std::string& backup,
                                        int turn = 0) {
    return std::make_unique<Process>([this, name, backup, turn] {
      while (turn_ < turn) std::this_thread::sleep_for(1ms);
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

  std::vector<std::unique_ptr<rpc::Workers>> join_clients();
  void kill_a_server();

  bool hosts_ = false;  // every worker is a host of its own: calls go over TCP
  std::chrono::nanoseconds lease_ = 2s;
  const FreshDirectory folder_;
  const std::string path_ = folder_.file("store");
  const Secret secret_ = Secret::generate();
  std::atomic<int>& ready_ = shared_with_children<std::atomic<int>>();
  std::atomic<int>& turn_ = shared_with_children<std::atomic<int>>();
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

// Clients that push in threads of their own as long as the object exists.
class Pushers {
 public:
  Pushers(std::vector<std::unique_ptr<rpc::Workers>> workers, const TableOptions& options)
      : joined_(std::move(workers)), counts_(joined_.size()) {
    for (const auto& worker : joined_)
      clients_.push_back(Tables(*worker).open_rows("t", adding_rows(kWidth), options));
    for (std::size_t client = 0; client < clients_.size(); ++client)
      threads_.emplace_back([this, client] { push(client); });
  }
  void stop() {
    stops_ = true;
    threads_.clear();
  }
  std::uint64_t num_pushes() const {
    std::uint64_t sum = 0;
    for (const Counts& counts : counts_) sum += counts.acknowledged;
    return sum;
  }
  double longest_ms() const { return static_cast<double>(longest_us_) / 1000; }
  // Requires: stop().
  void expect_each_once() {
    std::vector<std::uint64_t> acknowledged, unknown;
    for (const Counts& counts : counts_) {
      EXPECT_GT(counts.acknowledged, 0U);
      acknowledged.push_back(counts.acknowledged);
      unknown.push_back(counts.unknown);
    }
    failover_tests::expect_each_once(*clients_[0], acknowledged, unknown);
    std::printf("longest push %.1f ms, %lu acknowledged, %lu unknown\n", longest_ms(), num_pushes(),
                std::accumulate(unknown.begin(), unknown.end(), std::uint64_t{0}));
  }

 private:
  struct Counts {
    std::atomic<std::uint64_t> acknowledged = 0, unknown = 0;
  };
  void push(std::size_t client) {
    const auto ids = hundred_ids();
    std::vector<float> gradients(ids.size() * kWidth);
    for (std::size_t i = 0; i < ids.size(); ++i) gradients[i * kWidth + client] = 1;
    while (!stops_) {
      const auto begin = Clock::now();
      try {
        clients_[client]->push(ids, gradients);
        ++counts_[client].acknowledged;
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
        ++counts_[client].unknown;
        return;
      }
      const auto us =
          std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count();
      for (std::int64_t seen = longest_us_; seen < us;)
        if (longest_us_.compare_exchange_weak(seen, us)) break;
    }
  }

  std::vector<std::unique_ptr<rpc::Workers>> joined_;
  std::vector<std::unique_ptr<Rows>> clients_;
  std::vector<Counts> counts_;
  std::atomic<bool> stops_ = false;
  std::atomic<std::int64_t> longest_us_ = 0;
  std::vector<std::jthread> threads_;
};

std::vector<std::unique_ptr<rpc::Workers>> FailOver::join_clients() {
  std::vector<std::unique_ptr<rpc::Workers>> joined;
  for (int i = 0; i < 3; ++i) joined.push_back(join("client" + std::to_string(i)));
  return joined;
}

void FailOver::kill_a_server() {
  const auto first = start_server("server0", "server1");
  const auto second = start_server("server1", "server0");
  wait_until_ready(2);
  Pushers pushers(join_clients(), {.servers = {"server0", "server1"}});
  std::mt19937 random(harness::random_seed());
  std::this_thread::sleep_for(std::chrono::milliseconds(100 + random() % 200));
  first->end();  // SIGKILL, in the middle of whatever it does
  std::this_thread::sleep_for(1s);
  pushers.stop();
  pushers.expect_each_once();
}

TEST_F(FailOver, EachPushIsAppliedOnceWhenServersAreKilled) { kill_a_server(); }

// The port of the dead server refuses its callers, so they do not wait for its lease.
TEST_F(FailOver, EachPushIsAppliedOnceWhenServersOfOtherHostsAreKilled) {
  hosts_ = true;
  lease_ = 60s;
  kill_a_server();
}

// Servers are killed in turns and started again. PACELINE_KILL_SECONDS=15 kills one every 15 s for
// 3 minutes, and measures the goodput.
TEST_F(FailOver, ServersAreKilledAgainAndAgain) {
  const char* const seconds = std::getenv("PACELINE_KILL_SECONDS");
  const auto pause = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(seconds == nullptr ? 0.7 : std::stod(seconds)));
  const int kills = seconds == nullptr ? 4 : 12;
  hosts_ = true;
  lease_ = 60s;
  const std::array<std::string, 2> names = {"server0", "server1"};
  std::array<std::unique_ptr<Process>, 2> servers = {start_server(names[0], names[1]),
                                                     start_server(names[1], names[0])};
  std::vector<std::unique_ptr<Process>> next;
  for (int kill = 0; kill < kills; ++kill)
    next.push_back(start_server(names[kill % 2], names[1 - kill % 2], kill + 1));
  wait_until_ready(2);

  Pushers pushers(join_clients(), {.servers = {names[0], names[1]}});
  std::vector<double> rates;  // pushes in each tenth of a second
  std::uint64_t before = 0;
  const auto push_for = [&](std::chrono::milliseconds time) {
    for (const auto end = Clock::now() + time; Clock::now() < end;) {
      std::this_thread::sleep_for(100ms);
      const std::uint64_t now = pushers.num_pushes();
      rates.push_back(static_cast<double>(now - std::exchange(before, now)));
    }
  };
  push_for(pause);
  for (int kill = 0; kill < kills; ++kill) {
    servers[kill % 2]->end();
    push_for(300ms);  // until the server is started again
    servers[kill % 2] = std::move(next[kill]);
    ++turn_;
    wait_until_ready(2 + kill + 1);
    push_for(pause - 300ms);
  }
  pushers.stop();
  pushers.expect_each_once();
  const double mean =
      std::accumulate(rates.begin(), rates.end(), 0.0) / static_cast<double>(rates.size());
  std::nth_element(rates.begin(), rates.begin() + rates.size() / 2, rates.end());
  const double goodput = mean / rates[rates.size() / 2];
  std::printf("%d kills, goodput %.3f of the median tenth of a second\n", kills, goodput);
  if (seconds == nullptr) return;  // too short, and other tests run at the same time
  EXPECT_GE(goodput, 0.9);
  EXPECT_LE(pushers.longest_ms(), 1000);
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
        rows->push(ids, gradients, push);
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
