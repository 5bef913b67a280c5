#pragma once

// The server of a job's TCP store: one thread, one epoll, all values in memory. It listens exactly
// where it is told to ("127.0.0.1" is loopback only) and parses nothing of a peer that has not
// proved the job's secret. Strangers can cost it a bounded number of descriptors and 72 bytes each,
// and cannot hold up the processes of the job:
//
//   - a handshake may take 3 s; when there are too many connections without one, or descriptors run
//     out, the oldest of them is closed;
//   - a client that breaks the protocol is disconnected, with at most one log line a second about
//     all of them;
//   - keys, bytes and lengths have limits, answered with Error(kInvalid) at the client.
//
// Thread safety: the server runs its own thread; port() may be called from any. Started by the
// constructor, stopped and joined by the destructor, which disconnects all clients.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/store/memory_store.h"

namespace paceline {

struct TcpStoreServerOptions {
  StoreLimits limits;
  // Both are lowered when the process may not open that many descriptors.
  std::size_t max_connections = 16384;
  std::size_t max_strangers = 256;  // connections that have not completed their handshake
  std::chrono::milliseconds handshake_timeout = std::chrono::seconds(3);
};

class StoreServerLoop;

class TcpStoreServer {
 public:
  // Port 0 picks a free one. Error(kSystem) names the endpoint when it cannot listen there.
  TcpStoreServer(const Endpoint& endpoint, const Secret& secret,
                 TcpStoreServerOptions options = {});
  // Takes a socket that is listening already.
  TcpStoreServer(Fd listener, const Secret& secret, TcpStoreServerOptions options = {});
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;
  ~TcpStoreServer();

  std::uint16_t port() const { return port_; }
  // Lets clients that are about to leave hear their last replies. False when some are still
  // connected after `timeout`.
  bool wait_until_clients_left(std::chrono::milliseconds timeout);
  // Connections that have completed their handshake.
  std::size_t num_clients() const;

 private:
  std::uint16_t port_;
  std::unique_ptr<StoreServerLoop> loop_;
  std::jthread thread_;
};

}  // namespace paceline
