#pragma once

// The callee's end of a connection, from the moment at which somebody knocks: it proves first that
// it belongs to the job, and nothing else of it is read before.
//
// Thread safety: send(); everything else belongs to the thread that receives.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/handshake.h"
#include "paceline/engine/rpc/connection.h"
#include "paceline/engine/rpc/pool.h"
#include "paceline/engine/rpc/server.h"

namespace paceline::rpc {

class Guest final : public Pool::Source,
                    public Pool::Sender,
                    public Connection::Receiver,
                    public std::enable_shared_from_this<Guest> {
 public:
  Guest(std::shared_ptr<Server> server, Fd socket, bool is_encrypted);

  int descriptor() const override { return descriptor_; }
  void ready() override;
  bool lets_stay() const override { return is_known(); }
  bool wait_until_ready() override;
  void watch_input(bool watched) override;
  void take(const Frame& frame, Payload payload) override;

  // Requires: it is known.
  Connection& connection() { return *connection_; }
  // Sends what is queued; what the socket does not take goes on by itself.
  void send() override;
  bool is_known() const { return is_known_.load(std::memory_order_acquire); }
  // A stranger that takes longer than this is turned away.
  Deadline patience() const { return patience_; }

  // The session that this connection carries.
  std::shared_ptr<CalleeRecord> session{};
  // Of what this connection told: what has been handled, and what of it the caller knows.
  std::atomic<std::uint64_t> num_handled{0}, bytes_handled{0};
  std::atomic<std::uint64_t> num_reported{0}, bytes_reported{0};

 private:
  bool receive(const Deadline* deadline);
  void greet();
  void update_events();

  const std::shared_ptr<Server> server_;
  const int descriptor_;
  const bool is_encrypted_;
  const Deadline patience_;
  Fd socket_;  // until it is known
  std::optional<ServerHandshake> handshake_;
  std::unique_ptr<Connection> connection_;
  std::atomic<bool> is_known_{false}, is_sending_{false}, is_watched_{true};
};

}  // namespace paceline::rpc
