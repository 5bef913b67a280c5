#include "paceline/engine/rendezvous/rendezvous.h"

#include <filesystem>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/engine/store/prefix_store.h"
#include "paceline/engine/store/store.h"
#include "paceline/engine/store/tcp_store_server.h"

#include "tests/engine/rendezvous/rank_threads.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;

using namespace std::chrono_literals;

class RendezvousTest : public testing::TestWithParam<int> {
 protected:
  int world_size() const { return GetParam(); }
  std::vector<int> ranks() const {
    std::vector<int> all(static_cast<std::size_t>(world_size()));
    for (int rank = 0; rank < world_size(); ++rank) all[static_cast<std::size_t>(rank)] = rank;
    return all;
  }
  Variables by_hand(int rank) const {
    return {{"RANK", std::to_string(rank)},
            {"WORLD_SIZE", std::to_string(world_size())},
            {"XDG_RUNTIME_DIR", directory_.path()}};
  }
  static std::string free_port() {
    return std::to_string(local_port(listen_tcp({"127.0.0.1", 0})));
  }
  Rendezvous meet_at(const std::string& method, int rank, const Secret& secret) const {
    return rendezvous({.init_method = method,
                       .rank = rank,
                       .world_size = world_size(),
                       .secret = secret,
                       .timeout = 20s},
                      variables_of({}));
  }
  // Every rank writes a value, reads those of all ranks and checks that the secrets are equal.
  void talk(const Rendezvous& me) const {
    ASSERT_EQ(me.environment.world_size, world_size());
    const auto rank = std::to_string(me.environment.rank);
    me.store->set("talk/" + rank, me.secret.to_hex());
    std::set<std::string> secrets;
    for (int other = 0; other < world_size(); ++other) {
      secrets.insert(me.store->get("talk/" + std::to_string(other), 20s));
    }
    EXPECT_EQ(secrets.size(), 1U);
    EXPECT_EQ(me.address, "127.0.0.1");
  }
  bool notices_are_gone() const {
    const auto board = directory_.file("paceline");
    return !std::filesystem::exists(board) || std::filesystem::is_empty(board);
  }

  FreshDirectory directory_;
};

TEST(Rendezvous, only_a_process_that_no_launcher_started_says_that_it_is_alone) {
  const auto said = [](const RendezvousOptions& options, const Variables& variables) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(rendezvous(options, variables_of(variables)).environment.world_size, 1);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(said({}, {}), Says("rendezvous.alone"));
  EXPECT_EQ(said({}, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "");
  EXPECT_EQ(said({.rank = 0, .world_size = 1}, {}), "");
}

INSTANTIATE_TEST_SUITE_P(Worlds, RendezvousTest, testing::Values(1, 2, 3, 5, 8),
                         testing::PrintToStringParamName());

TEST_P(RendezvousTest, by_hand_on_loopback) {
  const auto port = free_port();
  join(start_ranks(ranks(), [&](int rank) {
    auto variables = by_hand(rank);
    variables["MASTER_ADDR"] = "127.0.0.1";
    variables["MASTER_PORT"] = port;
    const auto me = rendezvous({.timeout = 20s}, variables_of(variables));
    talk(me);
    EXPECT_EQ(me.environment.local_rank, rank);
    EXPECT_EQ(me.environment.local_world_size, world_size());
  }));
  EXPECT_TRUE(notices_are_gone());
}

// The other ranks reach rank 0 at an address that its host does not have: a Kubernetes Service, a
// NAT or a published port. In this test they use 127.0.0.1.
TEST_P(RendezvousTest, at_an_address_that_rank_zeros_host_does_not_have) {
  const auto port = free_port();
  directory_.write("secret", Secret::generate().to_hex());
  std::filesystem::permissions(directory_.file("secret"), std::filesystem::perms(0600));
  join(start_ranks(ranks(), [&](int rank) {
    auto variables = by_hand(rank);
    variables["MASTER_ADDR"] = rank == 0 ? "192.0.2.7" : "127.0.0.1";
    variables["MASTER_PORT"] = port;
    variables["PACELINE_SECRET_FILE"] = directory_.file("secret");
    talk(rendezvous({.timeout = 20s}, variables_of(variables)));
  }));
}

TEST_P(RendezvousTest, again_and_again_in_one_job) {
  const auto port = free_port();
  join(start_ranks(ranks(), [&](int rank) {
    auto variables = by_hand(rank);
    variables["MASTER_ADDR"] = "127.0.0.1";
    variables["MASTER_PORT"] = port;
    for (int i = 0; i < 3; ++i) talk(rendezvous({.timeout = 20s}, variables_of(variables)));
  }));
}

// No notice is removed between the rounds, so an early rank finds the store of the previous
// rendezvous.
TEST_P(RendezvousTest, again_and_again_at_one_address) {
  const auto secret = Secret::generate();
  const auto method = "tcp://127.0.0.1:" + free_port();
  join(start_ranks(ranks(), [&](int rank) {
    for (int round = 0; round < 5; ++round) {
      const auto me = meet_at(method, rank, secret);
      talk(me);
      // Rank 0 is the last rank to leave, then the first, in turn.
      if (rank == 0 && round % 2 == 0) std::this_thread::sleep_for(20ms);
      if (rank != 0 && round % 2 == 1) std::this_thread::sleep_for(20ms);
    }
  }));
}

TEST_P(RendezvousTest, under_mpirun_without_any_address) {
  join(start_ranks(ranks(), [&](int rank) {
    const auto number = std::to_string(rank);
    const auto size = std::to_string(world_size());
    const Variables variables = {{"OMPI_COMM_WORLD_RANK", number},
                                 {"OMPI_COMM_WORLD_SIZE", size},
                                 {"OMPI_COMM_WORLD_LOCAL_RANK", number},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", size},
                                 {"PMIX_NAMESPACE", "4711"},
                                 {"XDG_RUNTIME_DIR", directory_.path()}};
    talk(rendezvous({.timeout = 20s}, variables_of(variables)));
  }));
  EXPECT_TRUE(notices_are_gone());
}

TEST_P(RendezvousTest, under_torchrun_whose_store_has_the_master_port) {
  const Fd agents_store = listen_tcp({"127.0.0.1", 0});
  join(start_ranks(ranks(), [&](int rank) {
    auto variables = by_hand(rank);
    variables["LOCAL_RANK"] = std::to_string(rank);
    variables["LOCAL_WORLD_SIZE"] = std::to_string(world_size());
    variables["MASTER_ADDR"] = "127.0.0.1";
    variables["MASTER_PORT"] = std::to_string(local_port(agents_store));
    variables["TORCHELASTIC_RUN_ID"] = "none";
    variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
    talk(rendezvous({.timeout = 20s}, variables_of(variables)));
  }));
}

TEST_P(RendezvousTest, with_the_launchers_store_and_secret_through_restarts) {
  const auto secret = Secret::generate();
  const TcpStoreServer server(Endpoint{"127.0.0.1", 0}, secret);
  const Fd memory(::memfd_create("secret", 0));
  const auto text = secret.to_hex();
  ASSERT_EQ(::write(memory.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  for (const char* restart : {"0", "1"}) {
    join(start_ranks(ranks(), [&](int rank) {
      auto variables = by_hand(rank);
      variables["PACELINE_STORE"] = "127.0.0.1:" + std::to_string(server.port());
      variables["PACELINE_SECRET_FD"] = std::to_string(memory.get());
      variables["TORCHELASTIC_RESTART_COUNT"] = restart;
      for (int round = 0; round < 2; ++round) {
        const auto me = rendezvous({.timeout = 20s}, variables_of(variables));
        talk({me.environment, std::make_shared<PrefixStore>(restart, me.store), me.secret});
        EXPECT_EQ(me.environment.launcher, "paceline");
      }
    }));
  }
}

TEST_P(RendezvousTest, at_a_tcp_address_with_a_given_secret) {
  const auto secret = Secret::generate();
  const auto method = "tcp://127.0.0.1:" + free_port();
  join(start_ranks(ranks(), [&](int rank) {
    const auto me = meet_at(method, rank, secret);
    talk(me);
    EXPECT_EQ(me.environment.local_rank, rank);
  }));
}

TEST_P(RendezvousTest, in_a_file) {
  const auto path = directory_.file("meet");
  join(start_ranks(ranks(), [&](int rank) {
    talk(rendezvous(
        {.init_method = "file://" + path, .rank = rank, .world_size = world_size(), .timeout = 20s},
        variables_of({})));
  }));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_P(RendezvousTest, in_a_given_store) {
  const auto store = std::make_shared<MemoryStore>();
  join(start_ranks(ranks(), [&](int rank) {
    for (int round = 0; round < 2; ++round) {
      talk(rendezvous({.rank = rank, .world_size = world_size(), .store = store, .timeout = 20s},
                      variables_of({})));
    }
  }));
}

TEST(RendezvousAlone, needs_nothing) {
  const auto me = rendezvous({}, variables_of({}));
  EXPECT_EQ(me.environment.world_size, 1);
  me.store->set("key", "1");
  EXPECT_EQ(me.store->get("key"), "1");
}

}  // namespace
}  // namespace paceline
