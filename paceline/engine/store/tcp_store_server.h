#pragma once

// The server of a job's TCP store: one thread with one epoll, all values in memory. It listens only
// on the given address ("127.0.0.1" means loopback only) and parses nothing from a peer that has
// not proved that it knows the job's secret. Such peers, the *strangers*, cost the server a bounded
// number of descriptors and at most 72 bytes of input each, and cannot delay the job's processes:
//
//   - a handshake may take 3 s; when too many connections have not completed it, or when
//     descriptors run out, the oldest of these connections is closed;
//   - a client that breaks the protocol is disconnected; at most one log line per second reports
//     such clients;
//   - keys, bytes and lengths have limits; a request beyond a limit gets Error(kInvalid).
//
// Thread safety: every method may be called from any thread. The constructor starts the server's
// thread; the destructor disconnects all clients, stops the thread and joins it. In a child of
// fork() the destructor does not touch the server, whose thread runs in the parent.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/store/memory_store.h"

namespace paceline {

struct TcpStoreServerOptions {
  StoreLimits limits;
  // Both numbers are capped, at 3/4 (connections) and 1/4 (strangers) of the descriptor limit.
  std::size_t max_connections = 16384;
  std::size_t max_strangers = 256;  // connections that have not completed their handshake
  std::chrono::milliseconds handshake_timeout = std::chrono::seconds(3);
};

class StoreServerLoop;

class TcpStoreServer {
 public:
  // Port 0 picks a free port. Throws Error(kSystem), which names the endpoint, when the server
  // cannot listen there.
  TcpStoreServer(const Endpoint& endpoint, const Secret& secret,
                 TcpStoreServerOptions options = {});
  // Takes over a socket that is already listening.
  TcpStoreServer(Fd listener, const Secret& secret, TcpStoreServerOptions options = {});
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;
  ~TcpStoreServer();

  std::uint16_t port() const { return port_; }
  // Waits for the clients to leave, so that they receive their last replies. Returns false when
  // some are still connected after `timeout`.
  bool wait_until_clients_left(std::chrono::milliseconds timeout);
  // The number of clients that have completed their handshake.
  std::size_t num_clients() const;

 private:
  const OwnerProcess owner_;
  std::uint16_t port_;
  std::unique_ptr<StoreServerLoop> loop_;
  std::jthread thread_;
};

}  // namespace paceline
