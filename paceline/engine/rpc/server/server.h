#pragma once

// The calls of other workers to this one: their connections and sessions, and the handlers that
// answer them.
//
// Locks. mutex_ guards the lists and the assignment of sessions to connections. Every session has
// its own mutex, which a thread may take while it holds mutex_, not the other way round. No handler
// runs while one of these mutexes is held.
//
// Thread safety: every method may be called from any thread.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/rpc/pool.h"
#include "paceline/engine/rpc/protocol/connection.h"
#include "paceline/engine/rpc/protocol/session.h"
#include "paceline/engine/rpc/server/handlers.h"
#include "paceline/engine/rpc/setup.h"

namespace paceline::rpc {

class Guest;

// A reply to a kOnce call, kept by the callee until the caller has acknowledged it.
struct StoredReply {
  ReplyStatus status{};
  OutgoingPointer message{};
};

// One session at the callee.
struct CalleeRecord {
  CalleeRecord(SessionNumber number, std::uint64_t connection, Hello hello, LeaseTime now,
               LeaseTime lease)
      : number(number), caller(std::move(hello)), calls(connection), lease(now, lease) {}

  const SessionNumber number;
  const Hello caller;

  std::mutex mutex;  // guards the members below
  CalleeSession<std::shared_ptr<StoredReply>> calls;
  CalleeLease lease;
  std::shared_ptr<Guest> guest{};  // null once the session has ended or its connection is lost
  bool has_ended = false;
  std::map<CallNumber, std::shared_ptr<Incoming>> running{};
};

class Server : public std::enable_shared_from_this<Server> {
 public:
  Server(SetupPointer setup, std::shared_ptr<Pool> pool);
  ~Server();

  // Listens for callers on this host (`local`) and on other hosts (`tcp`).
  void listen(Fd local, Fd tcp);
  // Serves all of the methods, or none: throws Error(kInvalid) if one of the names already has a
  // method.
  void serve(std::vector<Method> methods);
  void set_references(std::weak_ptr<ReferenceTable> references);

  // Checks leases and unauthenticated connections; called about ten times a second.
  void look();
  // begin_to_leave() asks all handlers to stop, and refuses calls that wait or arrive from now on.
  // close() then closes all connections.
  void begin_to_leave();
  void close();
  // Called after the pool has stopped: drops the calls that would wait forever, and all objects.
  void forget_waiting();
  // Waits until all handlers, and all calls that wait for one, have ended; returns false at the
  // deadline. A handler that calls this does not wait for itself.
  bool wait_for_handlers(Deadline deadline);
  // The methods of the calls that have no answer yet, for the text of a warning.
  std::vector<std::string> running_methods() const;
  std::size_t num_objects() const { return objects_.num_objects(); }
  // Adds the calls that arrived long ago and have no answer, if a gauge or a timeline is on.
  void collect_open(std::vector<OpenCall>& open) const;

 private:
  friend class Guest;
  friend class Incoming;
  class Door;  // a listening socket
  using SessionPointer = std::shared_ptr<CalleeRecord>;
  using GuestPointer = std::shared_ptr<Guest>;

  // take() handles one frame of a connection, or passes it to open(), resume(), request() or
  // acknowledge(). The receiving thread calls take() in the order of the frames.
  void take(const GuestPointer& guest, const Frame& frame, Payload payload);
  void open(const GuestPointer& guest, const Frame& frame, const Payload& payload);
  void resume(const GuestPointer& guest, const Frame& frame, const Payload& payload);
  void request(const GuestPointer& guest, const Frame& frame, Payload payload);
  void acknowledge(const GuestPointer& guest, const Frame& frame, const Payload& payload);
  void refuse(const GuestPointer& guest, SessionNumber session);
  Frame credit(FrameKind kind, SessionNumber session) const;

  void dispatch(const std::shared_ptr<Incoming>& call);
  void execute(const std::shared_ptr<Incoming>& call);
  void ended_one();
  void run_handler(const std::shared_ptr<Incoming>& call);
  void after(const std::shared_ptr<Incoming>& call);
  void reply(Incoming& call, ReplyStatus status, OutgoingPointer message);
  void told(Incoming& call, ReplyStatus status, const OutgoingPointer& message);
  static void cancel_abandoned_locked(CalleeRecord& session);
  void end_session(const SessionPointer& session);
  void bury(Objects::Dead dead);
  void serve(Method method) { serve(std::vector{std::move(method)}); }
  void serve_references();

  void welcome(const GuestPointer& guest);
  void leave(Guest& guest);

  const SetupPointer setup_;
  const std::shared_ptr<Pool> pool_;
  Objects objects_;
  std::atomic<std::uint32_t> num_under_way_{0};  // running handlers, and calls that wait for one
  std::atomic<bool> is_leaving_{false};

  mutable std::mutex mutex_;  // guards the members below
  std::unordered_map<std::uint64_t, std::shared_ptr<const Method>> methods_;
  std::unordered_map<const Method*, CallQueue> queues_;  // for methods whose threads are limited
  std::unordered_map<SessionNumber, SessionPointer> sessions_;
  std::unordered_map<std::string, SessionPointer>
      last_session_of_;  // keyed by the caller's incarnation
  SessionNumber last_session_;
  std::weak_ptr<ReferenceTable> references_;
  std::vector<std::shared_ptr<Door>> doors_;
  std::unordered_map<Guest*, GuestPointer> guests_;
  bool is_closed_ = false;
};

// The callee's end of a connection, from accept() on. The caller must first prove that it belongs
// to the job; nothing else is read before that.
//
// Thread safety: any thread may call send(); everything else belongs to the receiving thread.
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

  // Requires: is_known().
  Connection& connection() { return *connection_; }
  // Sends the queued frames; the pool later sends the bytes that the socket does not take now.
  void send() override;
  bool is_known() const { return is_known_.load(std::memory_order_acquire); }
  // The time by which the caller must prove that it belongs to the job.
  Deadline patience() const { return patience_; }

  // The session that this connection carries.
  std::shared_ptr<CalleeRecord> session{};
  // The one-way messages of this connection, and their bytes: how many have been handled, and how
  // many of these were reported to the caller.
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
  Fd socket_;  // moves to connection_ once the caller is known
  std::optional<ServerHandshake> handshake_;
  std::unique_ptr<Connection> connection_;
  std::atomic<bool> is_known_{false}, is_sending_{false}, is_watched_{true};
};

}  // namespace paceline::rpc
