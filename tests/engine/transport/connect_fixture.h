#pragma once

// Ranks of a test that form a mesh through a common store.

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/engine/transport/formation/connect.h"
#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/wire.h"

#include "tests/harness/fetch_from.h"

namespace paceline {

class ConnectTest : public testing::TestWithParam<TransportKind> {
 protected:
  ConnectOptions options(int rank, int world, int generation = 3) {
    ConnectOptions options;
    options.rank = rank;
    options.world_size = world;
    options.generation = generation;
    options.link.transport = GetParam();
    options.timeout = std::chrono::seconds(10);
    options.publish = [this, rank](const std::string& value) {
      store_.set(std::to_string(rank), value);
    };
    options.fetch = [this](const auto& ranks, auto wait) {
      return harness::fetch_from(store_, ranks, wait);
    };
    return options;
  }
  std::future<std::unique_ptr<Mesh>> join(int rank, int world, int generation = 3) {
    return std::async(std::launch::async, [=, this] {
      return connect_mesh(options(rank, world, generation), secret_);
    });
  }
  PeerAddress address_of(int rank) {
    return PeerAddress::decode(store_.get(std::to_string(rank), std::chrono::seconds(10)));
  }
  // Connects to both listeners of rank 0.
  std::vector<Fd> knock() {
    const auto address = address_of(0);
    std::vector<Fd> sockets;
    sockets.push_back(connect_tcp(address.tcp, Deadline::after(std::chrono::seconds(5))));
    sockets.push_back(connect_unix(address.unix_name, Deadline::after(std::chrono::seconds(5))));
    return sockets;
  }

  // An address on this host where no rank listens.
  PeerAddress address_of_a_dead_rank() {
    PeerAddress address;
    address.host = host_token();
    address.process = "gone";
    address.transport = GetParam();
    address.host_name = "box";
    address.unix_name = "paceline-nobody-" + random_hex(8);
    const Fd listener = listen_tcp({"127.0.0.1", 0});
    address.tcp = {"127.0.0.1", local_port(listener)};
    return address;
  }

  MemoryStore store_;
  const Secret secret_ = Secret::generate();
};

// For INSTANTIATE_TEST_SUITE_P.
inline std::string name_of_transport(const testing::TestParamInfo<TransportKind>& info) {
  return std::string(name_of(info.param));
}

}  // namespace paceline
