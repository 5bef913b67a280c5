#pragma once

// The thread body of TcpStoreServer: who is connected, who has to go, and carrying requests to the
// StoreService and replies back.
//
// Thread safety: run() belongs to one thread; the others may be called from any.

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/fd.h"
#include "paceline/engine/core/secret.h"
#include "paceline/engine/core/vigil.h"
#include "paceline/engine/store/store_connection.h"
#include "paceline/engine/store/store_service.h"
#include "paceline/engine/store/tcp_store_server.h"

namespace paceline {

class StoreServerLoop {
 public:
  // `listener` is made non-blocking.
  StoreServerLoop(Fd listener, const Secret& secret, const TcpStoreServerOptions& options);

  // Serves until stop(). Does not throw.
  void run();
  void stop();
  // False when clients are still connected at the deadline.
  bool wait_until_clients_left(Deadline deadline);
  std::size_t num_clients();

 private:
  using Id = StoreService::Client;
  using Clock = AwakeClock;

  void turn();
  int wait_milliseconds() const;
  void watch(int fd, Id id, unsigned events, int operation);

  void accept_some();
  void admit(Fd socket);
  void relieve(int error);
  void pause_listener();
  void resume_listener(Clock::time_point now);

  void serve(Id id, unsigned events);
  void answer(const StoreService::Answer& answer);
  void handle_requests(Id id, StoreConnection& connection);
  void update_interest(Id id, StoreConnection& connection);
  void drop_late_strangers(Clock::time_point now);
  void drop_oldest_stranger(const std::string& reason);
  void drop(Id id);
  void count_clients();
  void complain(const std::string& what);
  // Runs `body`; when it throws, the connection goes.
  template <class Body>
  void guard(Id id, Body body);

  Fd listener_;
  Secret secret_;
  TcpStoreServerOptions options_;
  std::string name_;  // "the store at 127.0.0.1:29500", for the log
  Fd epoll_, stop_event_;
  Fd reserve_;        // given up to accept and refuse when no descriptor is left
  std::mutex mutex_;  // guards num_clients_
  std::condition_variable clients_left_;
  std::size_t num_clients_ = 0;  // that have completed their handshake
  bool stopping_ = false;
  Vigil vigil_;
  StoreService service_;
  Id next_id_;
  std::unordered_map<Id, std::unique_ptr<StoreConnection>> connections_;
  std::unordered_map<Id, Clock::time_point> arrivals_;  // of strangers
  std::set<Id> strangers_;                              // ids grow, so the first is the oldest
  std::optional<Clock::time_point> resume_at_;
  Clock::time_point last_complaint_{};
  std::uint64_t unsaid_complaints_ = 0;
  std::array<std::byte, 64 << 10> scratch_;
};

}  // namespace paceline
