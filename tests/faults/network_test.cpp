// Groups that span hosts on a network that fails. The hosts are network namespaces.

#include <csignal>
#include <thread>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <net/ethernet.h>
#include <sys/socket.h>

#include "paceline/engine/core/error_text.h"
#include "paceline/engine/transport/wire.h"

#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"
#include "tests/harness/shared_counter.h"
#include "tests/harness/ucx_ranks.h"

namespace paceline {
namespace {

using harness::NetworkHosts;
using harness::ProcessBody;
using harness::ProcessResult;
using harness::RanksOptions;
using harness::run_process_ranks;
using harness::Says;
using harness::SharedCounter;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Twice the longest time in which a test expects a loss to be noticed (25 s).
constexpr auto kGroupTimeout = 50s;
constexpr auto kWatchdog = 100s;
constexpr std::size_t kManyBlocks = 2'000'003;  // floats: enough for several streams

#define SKIP_WITHOUT_HOSTS() \
  if (const std::string reason = NetworkHosts::why_not(); !reason.empty()) GTEST_SKIP() << reason

RanksOptions on(const NetworkHosts& hosts, int ranks_per_host = 1) {
  RanksOptions options;
  options.group_timeout = kGroupTimeout;
  options.watchdog = kWatchdog;
  options.hosts = &hosts;
  options.ranks_per_host = ranks_per_host;
  return options;
}

void sum_up(ProcessGroup& group, std::vector<float>& data) {
  std::fill(data.begin(), data.end(), static_cast<float>(group.rank() + 1));
  group.all_reduce(std::span(data));
  const int world = group.world_size();
  const auto total = static_cast<float>(world * (world + 1) / 2);
  ASSERT_EQ(data, std::vector<float>(data.size(), total));
}

// All-reduces until something fails. The default count is too small for more than one stream.
ProcessBody sum_for_ever(SharedCounter& rounds, std::size_t count = 100'000) {
  return [&rounds, count](ProcessGroup& group) -> std::string {
    std::vector<float> data(count);
    for (;;) {
      sum_up(group, data);
      if (group.rank() == 0) rounds.add();
    }
  };
}

// Checks that every rank but `rank` lost that rank, at most `within` after `since`.
void expect_loss_of(int rank, const std::vector<ProcessResult>& results, Clock::time_point since,
                    std::chrono::milliseconds within) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto& result = results[i];
    if (static_cast<int>(i) == rank) continue;
    ASSERT_TRUE(result.threw) << i << ": " << result.report;
    EXPECT_EQ(result.code, ErrorCode::kPeerLost) << i << ": " << result.report;
    EXPECT_EQ(result.context.ranks, std::vector{rank}) << i << ": " << result.report;
    EXPECT_LT(result.ended - since, within) << i << ": " << result.report;
  }
}

TEST(Network, hosts_sum_over_ipv4_and_ipv6) {
  SKIP_WITHOUT_HOSTS();
  const NetworkHosts hosts(3);
  for (const bool over_ipv6 : {false, true}) {
    auto options = on(hosts, 2);
    options.over_ipv6 = over_ipv6;
    const auto results = run_process_ranks(
        6,
        [](ProcessGroup& group) {
          for (const std::size_t count : {1, 1000, 2'000'003}) {
            std::vector<float> data(count);
            sum_up(group, data);
          }
          return group.transport();
        },
        options);
    for (const auto& result : results) EXPECT_EQ(result.report, "shm+tcp");
  }
}

TEST(Network, a_rank_that_dies_on_another_host_is_named_at_once) {
  SKIP_WITHOUT_HOSTS();
  const NetworkHosts hosts(3);
  for (const int streams : {1, 3}) {
    SharedCounter rounds;
    Clock::time_point killed;
    auto options = on(hosts);
    options.tcp_streams = streams;
    const auto results = run_process_ranks(3, sum_for_ever(rounds, kManyBlocks), options,
                                           [&](const std::vector<pid_t>& pids) {
                                             rounds.wait_for(3, Deadline::after(30s));
                                             killed = Clock::now();
                                             ::kill(pids[1], SIGKILL);
                                           });
    expect_loss_of(1, results, killed, 1s);
  }
}

// Some networks limit the rate of each connection, not only of the link.
TEST(Network, hosts_sum_over_several_streams_of_a_limited_rate) {
  SKIP_WITHOUT_HOSTS();
  const NetworkHosts hosts(3, 4, 1);
  auto options = on(hosts);
  options.tcp_streams = 3;
  const auto results = run_process_ranks(
      3,
      [](ProcessGroup& group) -> std::string {
        for (const std::size_t count : {std::size_t(1), std::size_t(1000), kManyBlocks}) {
          std::vector<float> data(count);
          sum_up(group, data);
        }
        return "right";
      },
      options);
  for (const auto& result : results) EXPECT_EQ(result.report, "right");
}

// Ranks use shared memory within a host and UCX between hosts, where UCX has only the network.
TEST(Network, hosts_sum_over_ucx_and_a_rank_that_dies_is_named_at_once) {
  SKIP_WITHOUT_HOSTS();
  if (!harness::can_use_ucx()) GTEST_SKIP() << "UCX: " << ucx_info().text;
  const harness::UcxTransports transports("tcp");
  const NetworkHosts hosts(3);
  auto options = on(hosts, 2);
  options.transport = TransportKind::kUcx;
  SharedCounter rounds;
  Clock::time_point killed;
  const auto results = run_process_ranks(
      6,
      [&](ProcessGroup& group) {
        if (group.transport() != "shm+ucx") return group.transport();
        return sum_for_ever(rounds)(group);
      },
      options,
      [&](const std::vector<pid_t>& pids) {
        rounds.wait_for(3, Deadline::after(30s));
        killed = Clock::now();
        ::kill(pids[1], SIGKILL);
      });
  expect_loss_of(1, results, killed, 1s);
}

// The connections of the ranks when an interface goes down. Nothing closes them and nothing
// answers, so silence is the only sign.
struct Way {
  TransportKind transport;
  int tcp_streams;
};

std::vector<Way> ways() {
  std::vector<Way> all = {{TransportKind::kAuto, 3}};
  for (const auto transport : harness::and_ucx({TransportKind::kAuto})) {
    all.push_back({transport, 1});
  }
  return all;
}

class NetworkDown : public testing::TestWithParam<Way> {
  const harness::UcxTransports transports_{"tcp"};
};

TEST_P(NetworkDown, an_interface_that_goes_down_in_the_middle_is_a_lost_peer_on_every_rank) {
  SKIP_WITHOUT_HOSTS();
  const NetworkHosts hosts(3);
  auto options = on(hosts);
  options.transport = GetParam().transport;
  options.tcp_streams = GetParam().tcp_streams;
  SharedCounter rounds;
  Clock::time_point down;
  const auto results =
      run_process_ranks(3, sum_for_ever(rounds, options.tcp_streams > 1 ? kManyBlocks : 100'000),
                        options, [&](const std::vector<pid_t>&) {
                          rounds.wait_for(3, Deadline::after(30s));
                          down = Clock::now();
                          hosts.set_link(2, false);
                        });
  expect_loss_of(2, results, down, 25s);
  EXPECT_TRUE(results[2].threw);
  EXPECT_EQ(results[2].code, ErrorCode::kPeerLost) << results[2].report;
  EXPECT_LT(results[2].ended - down, 25s);
}

std::string name_of_way(const testing::TestParamInfo<Way>& info) {
  const auto [transport, streams] = info.param;
  return std::string(name_of(transport)) +
         (streams > 1 ? "_streams" + std::to_string(streams) : "");
}

INSTANTIATE_TEST_SUITE_P(Transports, NetworkDown, testing::ValuesIn(ways()), name_of_way);

// The loss is noticed even while ranks only wait, so that no rank sends anything on any connection.
TEST(Network, a_host_that_vanishes_is_noticed_by_the_ranks_that_wait_for_it) {
  SKIP_WITHOUT_HOSTS();
  const NetworkHosts hosts(2);
  SharedCounter rounds;
  Clock::time_point cut;
  const auto results = run_process_ranks(
      2,
      [&](ProcessGroup& group) -> std::string {
        std::vector<float> data(100);
        sum_up(group, data);
        if (group.rank() == 1) {
          rounds.add();
          std::this_thread::sleep_for(1h);
        }
        group.barrier();
        return "";
      },
      on(hosts),
      [&](const std::vector<pid_t>& pids) {
        rounds.wait_for(1, Deadline::after(30s));
        cut = Clock::now();
        hosts.cut(1);
        harness::wait_for_the_end_of(pids[0], Deadline::after(20s));
        ::kill(pids[1], SIGKILL);
      });
  expect_loss_of(1, results, cut, 20s);
  EXPECT_THAT(results[0].report, Says("loss.host_silent"));
}

// The other host no longer knows the connection, as after a crash and a quick restart.
class HalfOpen : public testing::TestWithParam<int> {};

TEST_P(HalfOpen, connection_is_a_lost_peer) {
  SKIP_WITHOUT_HOSTS();
  const NetworkHosts hosts(2);
  auto options = on(hosts);
  options.tcp_streams = GetParam();
  SharedCounter rounds;
  Clock::time_point back;
  const auto results = run_process_ranks(
      2,
      [&](ProcessGroup& group) -> std::string {
        std::vector<float> data(kManyBlocks);
        sum_up(group, data);
        rounds.add();
        if (group.rank() == 1) std::this_thread::sleep_for(1h);
        sum_up(group, data);
        return "";
      },
      options,
      [&](const std::vector<pid_t>& pids) {
        rounds.wait_for(2, Deadline::after(30s));
        hosts.cut(1);
        ::kill(pids[1], SIGKILL);  // its last packets are lost
        std::this_thread::sleep_for(500ms);
        back = Clock::now();
        hosts.mend(1);
      });
  expect_loss_of(1, results, back, 15s);
}

INSTANTIATE_TEST_SUITE_P(Streams, HalfOpen, testing::Values(1, 3));

// Reads every packet that a host receives or sends, as its neighbours on the wire can.
class Eavesdropper {
 public:
  Eavesdropper(const NetworkHosts& hosts, int host) {
    hosts.enter(host);
    socket_.reset(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL)));
    hosts.leave();
    if (!socket_) throw system_error("a packet socket");
    constexpr int kRoom = 64 << 20;
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUFFORCE, &kRoom, sizeof kRoom);
  }
  // The number of packets since the last call that contain `text`.
  int count(std::string_view text) const {
    std::vector<char> packet(1 << 17);
    int found = 0;
    for (ssize_t got = 0;
         (got = ::recv(socket_.get(), packet.data(), packet.size(), MSG_DONTWAIT)) > 0;) {
      const std::string_view bytes(packet.data(), static_cast<std::size_t>(got));
      if (bytes.find(text) != std::string_view::npos) ++found;
    }
    return found;
  }

 private:
  Fd socket_;
};

TEST(Network, an_eavesdropper_reads_nothing_of_an_encrypted_group) {
  SKIP_WITHOUT_HOSTS();
  const std::string canary = "a canary that sings in the clear";
  for (const bool encrypt : {false, true}) {
    const NetworkHosts hosts(2);
    const Eavesdropper ear(hosts, 0);
    auto options = on(hosts);
    options.encrypt = encrypt;
    const auto results = run_process_ranks(
        2,
        [&](ProcessGroup& group) -> std::string {
          std::string song = canary;
          group.broadcast(std::span(reinterpret_cast<std::uint8_t*>(song.data()), song.size()), 0);
          if (group.rank() == 0) {
            group.send(std::span(reinterpret_cast<std::uint8_t*>(song.data()), song.size()), 1);
          } else {
            std::fill(song.begin(), song.end(), ' ');
            group.recv(std::span(reinterpret_cast<std::uint8_t*>(song.data()), song.size()), 0);
          }
          group.barrier();
          return song;
        },
        options);
    for (const auto& result : results) EXPECT_EQ(result.report, canary);
    if (encrypt) {
      EXPECT_EQ(ear.count(canary), 0);
    } else {
      EXPECT_GE(ear.count(canary), 2);
    }
  }
}

// Rank 1 computes for longer than the silence that ends a connection, but its kernel keeps
// answering.
TEST(Network, a_host_that_only_computes_is_not_lost) {
  SKIP_WITHOUT_HOSTS();
  const NetworkHosts hosts(2);
  const auto results = run_process_ranks(
      2,
      [](ProcessGroup& group) -> std::string {
        std::vector<float> data(4'000'000);
        if (group.rank() == 1) std::this_thread::sleep_for(kSilenceLimit + 3s);
        sum_up(group, data);
        return "right";
      },
      on(hosts));
  for (const auto& result : results) EXPECT_EQ(result.report, "right");
}

}  // namespace
}  // namespace paceline
