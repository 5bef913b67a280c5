#include "paceline/collectives/backends/paceline/point_to_point.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <poll.h>

#include "paceline/core/check.h"
#include "paceline/core/futex.h"
#include "paceline/core/log.h"
#include "paceline/core/thread.h"
#include "paceline/transport/advice.h"

namespace paceline {
namespace {

constexpr std::size_t kHeaderBytes = sizeof(MessageHeader);
constexpr std::chrono::milliseconds kPollSlice{10};
// After so many rounds over the peers whoever moves messages lets others in, and after so many
// turns it looks at deadlines, also when something moves all the time.
constexpr int kPumpsPerTurn = 64;
constexpr int kTurnsPerLook = 256;
// Rounds that move nothing before a call sleeps.
constexpr int kSpins = 1500;
constexpr int kSpinsWhenSharingCores = 20;
// Who calls asynchronously often waits for something next, and then moves the rest itself.
constexpr std::chrono::microseconds kPatience{100};

Fingerprint describe_call(const PointToPointCall& call) {
  Fingerprint fingerprint;
  fingerprint.op = Op::kSend;
  fingerprint.dtype = call.dtype;
  fingerprint.count = call.count;
  return fingerprint;
}

bool asks_for(const PointToPointCall& call, int peer, std::uint32_t tag) {
  return (call.peer == peer || call.peer == kAnySource) && call.tag == tag;
}

std::size_t bytes_of(const PointToPointCall& call) { return call.count * size_of(call.dtype); }

std::string label(const char* what, const PointToPointCall& call) {
  return fmt::format("{} of {} x {}, peer {}, tag {}", what, name_of(call.dtype), call.count,
                     call.peer == kAnySource ? "any" : std::to_string(call.peer), call.tag);
}

}  // namespace

PointToPoint::PointToPoint(Mesh& mesh)
    : mesh_(mesh),
      most_spins_(mesh.oversubscribed() ? kSpinsWhenSharingCores : kSpins),
      streams_(mesh),
      sends_(static_cast<std::size_t>(mesh.world_size())),
      incoming_(sends_.size()),
      unexpected_(sends_.size()) {}

PointToPoint::~PointToPoint() {
  if (!owner_.is_this()) {
    // A child of fork() has no thread to join, and what it waited on has it waiting for ever.
    if (thread_.joinable()) thread_.detach();
    [[maybe_unused]] const auto* const waited_on = left_.release();
    return;
  }
  if (thread_.get_id() == std::this_thread::get_id()) {
    *is_gone_ = true;
    thread_.detach();
  } else if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      thread_.request_stop();
    }
    left_->notify_all();
    wake();
    thread_.join();
  }
  const std::lock_guard lock(mutex_);
  warn_of_unreceived();
  fail_all(Error(ErrorCode::kAborted,
                 fmt::format("rank {}: group {} was destroyed with a send or receive under way",
                             mesh_.rank(), mesh_.name())));
}

WorkPtr PointToPoint::send(const PointToPointCall& call, Deadline deadline) {
  auto work = std::make_shared<Work>(label("send", call));
  Outgoing message{call, {}, deadline, work};
  message.header.tag = call.tag;
  message.header.payload_bytes = bytes_of(call);
  const Fingerprint fingerprint = describe_call(call);
  std::memcpy(&message.header.fingerprint, &fingerprint, sizeof fingerprint);
  std::unique_lock lock(mutex_);
  if (failure_) throw Error(*failure_);
  sends_[static_cast<std::size_t>(call.peer)].push_back(std::move(message));
  return move(lock, std::move(work), call.is_blocking);
}

WorkPtr PointToPoint::receive(const PointToPointCall& call, Deadline deadline) {
  auto work = std::make_shared<Work>(label("recv", call));
  Posted posted{call, deadline, work};
  std::unique_lock lock(mutex_);
  if (failure_) throw Error(*failure_);
  try {
    deliver_unexpected(posted);
  } catch (const Error& error) {
    mesh_.abort(error);
    fail_all(error);
    const auto dropped = std::exchange(dropped_, {});
    lock.unlock();
    throw;
  }
  if (work->is_completed()) return work;
  receives_.push_back(std::move(posted));
  return move(lock, std::move(work), call.is_blocking);
}

WorkPtr PointToPoint::move(std::unique_lock<std::mutex>& lock, WorkPtr work, bool is_blocking) {
  if (is_blocking) {
    ++callers_;
    move_until_done(lock, *work);
    --callers_;
  } else {
    pump_all();
    if (somebody_sleeps_) wake();  // to wait for this, too
  }
  if (is_left()) leave_to_thread();
  const auto dropped = std::exchange(dropped_, {});
  lock.unlock();
  return work;
}

// Returns early when another thread sleeps already: that one moves it then.
void PointToPoint::move_until_done(std::unique_lock<std::mutex>& lock, const Work& work) {
  int spins = 0;
  for (int turn = 1;; ++turn) {
    const bool has_moved = pump_all();
    if (failure_ || work.is_completed()) return;
    if (has_moved) spins = 0;
    if (turn % kTurnsPerLook == 0 && has_moved) look_around();
    if (++spins < most_spins_ && !mesh_.failed()) {
      lock.unlock();
      spin_pause();
      lock.lock();
      continue;
    }
    if (somebody_sleeps_) {
      wake();
      return;
    }
    look_around();
    if (!failure_) sleep(lock);
  }
}

// Whether there is something to move that nobody moves or waits for.
bool PointToPoint::is_left() const {
  return callers_ == 0 && !somebody_sleeps_ && !failure_ && is_pending();
}

void PointToPoint::leave_to_thread() {
  if (!thread_.joinable()) {
    thread_ = start_thread("paceline-p2p", [this](std::stop_token stop) { run(stop); });
  }
  left_->notify_one();
}

// What a call kept alive may own the group, which then ends in the middle of this.
void PointToPoint::run(const std::stop_token& stop) {
  const auto is_gone = is_gone_;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!dropped_.empty()) {
      auto dropped = std::exchange(dropped_, {});
      lock.unlock();
      dropped.clear();
      if (*is_gone) return;
      lock.lock();
    }
    left_->wait(lock, [&] { return stop.stop_requested() || is_left(); });
    left_->wait_for(lock, kPatience, [&] { return stop.stop_requested() || !is_left(); });
    if (stop.stop_requested()) return;
    while (is_left() && dropped_.empty() && !stop.stop_requested()) {
      pump_all();
      look_around();
      if (is_left()) sleep(lock);
    }
  }
}

// Moves what can be moved now; whether anything was.
bool PointToPoint::pump_all() {
  bool has_moved = false;
  guarded([&] {
    for (int i = 0; i < kPumpsPerTurn && pump(); ++i) has_moved = true;
  });
  return has_moved;
}

// At what ends a wait without a message.
void PointToPoint::look_around() {
  guarded([&] {
    require_senders();
    check_deadlines();
    if (is_pending()) mesh_.throw_if_failed();
  });
}

// A failure is that of all messages under way, and of those to come.
template <class Action>
void PointToPoint::guarded(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    mesh_.abort(error);
    fail_all(error);
  } catch (const std::exception& error) {  // no memory for a message
    const Error cause(ErrorCode::kSystem,
                      fmt::format("rank {}: moving the messages of group {} failed: {}",
                                  mesh_.rank(), mesh_.name(), error.what()));
    mesh_.abort(cause);
    fail_all(cause);
  }
}

// Requires: mutex_ is held.
bool PointToPoint::is_pending() const {
  bool pending = !receives_.empty();
  for (const auto& queue : sends_) pending |= !queue.empty();
  for (const Incoming& incoming : incoming_) pending |= incoming.receive.has_value();
  return pending;
}

// Until something can be moved, at most for a slice. The others may move what they like meanwhile.
void PointToPoint::sleep(std::unique_lock<std::mutex>& lock) {
  std::vector<Interest> interests;
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    if (peer == mesh_.rank()) continue;
    const auto index = static_cast<std::size_t>(peer);
    short events = 0;
    if (!sends_[index].empty()) events |= POLLOUT;
    const Incoming& incoming = incoming_[index];
    const bool stalled = incoming.got == kHeaderBytes && !incoming.accepted;
    if (!stalled && !incoming.ended) events |= POLLIN;
    if (events != 0) interests.push_back({peer, Channel::kPointToPoint, events});
  }
  if (!streams_.prepare_to_sleep(interests)) return;
  somebody_sleeps_ = true;
  lock.unlock();
  streams_.sleep(interests, kPollSlice);
  lock.lock();
  somebody_sleeps_ = false;
  streams_.awake(interests);
}

bool PointToPoint::pump() {
  if (failure_) return false;
  bool moved = false;
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    if (peer == mesh_.rank()) continue;
    moved |= pump_send(peer);
    moved |= pump_receive(peer);
  }
  return moved;
}

bool PointToPoint::pump_send(int peer) {
  auto& queue = sends_[static_cast<std::size_t>(peer)];
  if (queue.empty()) return false;
  Outgoing& message = queue.front();
  const std::size_t total = kHeaderBytes + bytes_of(message.call);
  const Unsent rest =
      unsent(message.header, {message.call.data, bytes_of(message.call)}, message.sent);
  const ssize_t sent = streams_.send(peer, rest.head, rest.payload);
  if (sent < 0) {
    if (would_block(errno)) return false;
    mesh_.throw_if_own(errno, peer, "sending to");
    mesh_.throw_lost(peer, fmt::format("is gone, and {} with it: {}", label("send", message.call),
                                       std::strerror(errno)));
  }
  message.sent += static_cast<std::size_t>(sent);
  if (message.sent == total) {
    message.work->complete(nullptr);
    let_go(message.call);
    queue.pop_front();
  }
  return true;
}

bool PointToPoint::pump_receive(int peer) {
  Incoming& incoming = incoming_[static_cast<std::size_t>(peer)];
  if (incoming.ended) return false;
  if (incoming.got < kHeaderBytes && !read_header(peer, incoming)) return false;
  if (!incoming.accepted && !accept_header(peer, incoming)) return false;
  const std::size_t done = incoming.got - kHeaderBytes;
  const std::size_t left = incoming.header.payload_bytes - done;
  if (left > 0) {
    std::byte* to = incoming.receive ? incoming.receive->call.data : incoming.unexpected.data();
    const ssize_t got = streams_.receive(peer, {to + done, left});
    if (got < 0 && would_block(errno)) return false;
    if (got <= 0) {
      mesh_.throw_lost(peer, "is gone in the middle of a message");
    }
    incoming.got += static_cast<std::size_t>(got);
  }
  if (incoming.got == kHeaderBytes + incoming.header.payload_bytes) finish_message(peer, incoming);
  return true;
}

// True when the header is complete. The end of the connection is an error only for a receive that
// waits for this peer.
bool PointToPoint::read_header(int peer, Incoming& incoming) {
  const auto header = std::as_writable_bytes(std::span(&incoming.header, 1));
  const ssize_t got = streams_.receive(peer, header.subspan(incoming.got));
  if (got < 0 && would_block(errno)) return false;
  if (got <= 0) {
    incoming.ended = true;
    return false;
  }
  incoming.got += static_cast<std::size_t>(got);
  if (incoming.got < kHeaderBytes) return false;
  if (incoming.header.magic != MessageHeader::kMagic) {
    fail(ErrorCode::kCorrupt, "rank {}: {} sent bytes that are no message", mesh_.rank(),
         mesh_.describe(peer));
  }
  return true;
}

// Throws for a receive that nobody is left to answer.
void PointToPoint::require_senders() const {
  for (const Posted& posted : receives_) {
    int last_ended = -1;
    bool somebody = false;
    for (int peer = 0; peer < mesh_.world_size(); ++peer) {
      if (peer == mesh_.rank() || (posted.call.peer != kAnySource && posted.call.peer != peer)) {
        continue;
      }
      const bool ended = incoming_[static_cast<std::size_t>(peer)].ended;
      somebody |= !ended;
      if (ended) last_ended = peer;
    }
    if (!somebody) {
      mesh_.throw_lost(last_ended,
                       "is gone, and with it the message of " + label("recv", posted.call));
    }
  }
}

// Finds the payload's place; false while there is none.
bool PointToPoint::accept_header(int peer, Incoming& incoming) {
  for (auto posted = receives_.begin(); posted != receives_.end(); ++posted) {
    if (!asks_for(posted->call, peer, incoming.header.tag)) continue;
    require_matching(peer, incoming.header, posted->call);
    incoming.receive = std::move(*posted);
    receives_.erase(posted);
    incoming.accepted = true;
    return true;
  }
  const std::size_t room = kMaxUnexpectedBytes - unexpected_bytes_;
  if (room < kHeaderBytes || incoming.header.payload_bytes > room - kHeaderBytes) return false;
  incoming.unexpected.resize(incoming.header.payload_bytes);
  unexpected_bytes_ += kHeaderBytes + incoming.header.payload_bytes;
  incoming.accepted = true;
  return true;
}

void PointToPoint::require_matching(int peer, const MessageHeader& header,
                                    const PointToPointCall& call) const {
  Fingerprint theirs;
  std::memcpy(static_cast<void*>(&theirs), &header.fingerprint, sizeof theirs);
  if (theirs == describe_call(call) && header.payload_bytes == bytes_of(call)) return;
  fail(ErrorCode::kInvalid, "rank {}: {} was posted, but {} sent {} x {} with that tag",
       mesh_.rank(), label("recv", call), mesh_.describe(peer), name_of(theirs.dtype),
       theirs.count);
}

void PointToPoint::finish_message(int peer, Incoming& incoming) {
  if (incoming.receive) {
    incoming.receive->work->complete(nullptr, peer);
    let_go(incoming.receive->call);
  } else {
    Unexpected message{incoming.header, std::move(incoming.unexpected)};
    // A receive may have been posted while the message came in.
    for (auto posted = receives_.begin(); posted != receives_.end(); ++posted) {
      if (!asks_for(posted->call, peer, message.header.tag)) continue;
      require_matching(peer, message.header, posted->call);
      unexpected_[static_cast<std::size_t>(peer)].push_back(std::move(message));
      Posted claim = std::move(*posted);
      receives_.erase(posted);
      incoming = {};
      deliver_unexpected(claim);
      let_go(claim.call);
      return;
    }
    unexpected_[static_cast<std::size_t>(peer)].push_back(std::move(message));
  }
  incoming = {};
}

// Completes `posted` from a message that came before it was asked for, if there is one.
void PointToPoint::deliver_unexpected(Posted& posted) {
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    auto& queue = unexpected_[static_cast<std::size_t>(peer)];
    for (auto message = queue.begin(); message != queue.end(); ++message) {
      if (!asks_for(posted.call, peer, message->header.tag)) continue;
      require_matching(peer, message->header, posted.call);
      if (!message->payload.empty()) {
        std::memcpy(posted.call.data, message->payload.data(), message->payload.size());
      }
      unexpected_bytes_ -= kHeaderBytes + message->payload.size();
      queue.erase(message);
      posted.work->complete(nullptr, peer);
      return;
    }
  }
}

void PointToPoint::check_deadlines() {
  for (const auto& queue : sends_) {
    for (const Outgoing& message : queue) {
      if (message.deadline.expired()) {
        fail(ErrorCode::kTimeout, "rank {}: {} timed out: {} does not take it; {}", mesh_.rank(),
             label("send", message.call), mesh_.describe(message.call.peer), kAdviceForLate);
      }
    }
  }
  for (const Incoming& incoming : incoming_) {
    if (incoming.receive && incoming.receive->deadline.expired()) {
      fail(ErrorCode::kTimeout, "rank {}: {} timed out in the middle of the message; {}",
           mesh_.rank(), label("recv", incoming.receive->call), kAdviceForLate);
    }
  }
  for (const Posted& posted : receives_) {
    if (posted.deadline.expired()) {
      fail(ErrorCode::kTimeout, "rank {}: {} timed out: nothing came{}; {}", mesh_.rank(),
           label("recv", posted.call),
           posted.call.peer == kAnySource ? "" : " from " + mesh_.describe(posted.call.peer),
           kAdviceForLate);
    }
  }
}

// Its sender believes that it has arrived, so this is the last chance to say that it has not.
void PointToPoint::warn_of_unreceived() {
  if (failure_ || mesh_.failed()) return;
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    if (peer == mesh_.rank()) continue;
    const auto header = next_unreceived(peer);
    if (!header) continue;
    Fingerprint sent;
    std::memcpy(static_cast<void*>(&sent), &header->fingerprint, sizeof sent);
    log::warning(fmt::format(
        "group {} ends on rank {}, and nobody has received {} x {} that {} sent with tag {}",
        mesh_.name(), mesh_.rank(), name_of(sent.dtype), sent.count, mesh_.describe(peer),
        header->tag));
  }
}

// Kept, half read, or still in the channel; the first of this peer.
std::optional<MessageHeader> PointToPoint::next_unreceived(int peer) {
  const auto index = static_cast<std::size_t>(peer);
  if (!unexpected_[index].empty()) return unexpected_[index].front().header;
  const Incoming& incoming = incoming_[index];
  if (incoming.receive) return {};
  if (incoming.got >= kHeaderBytes) return incoming.header;
  MessageHeader header;
  const ssize_t got = streams_.peek(peer, std::as_writable_bytes(std::span(&header, 1)));
  const bool is_whole = incoming.got == 0 && got == static_cast<ssize_t>(kHeaderBytes) &&
                        header.magic == MessageHeader::kMagic;
  return is_whole ? std::optional(header) : std::nullopt;
}

// Not now: mutex_ is held, and it may own this.
void PointToPoint::let_go(PointToPointCall& call) {
  if (call.keep_alive) dropped_.push_back(std::move(call.keep_alive));
}

void PointToPoint::fail_all(const Error& error) {
  if (!failure_) failure_ = error;
  if (is_pending()) streams_.cancel();
  const auto cause = std::make_exception_ptr(error);
  const auto end = [&](auto& message, const std::exception_ptr& why) {
    message.work->complete(why);
    let_go(message.call);
  };
  for (auto& queue : sends_) {
    for (Outgoing& message : queue) end(message, cause);
    queue.clear();
  }
  for (Posted& posted : receives_) end(posted, cause);
  receives_.clear();
  for (Incoming& incoming : incoming_) {
    if (incoming.receive) end(*incoming.receive, cause);
    incoming = {};
  }
}

}  // namespace paceline
