// Peers that belong to the job but send what no worker sends: handmade frames over authenticated
// connections. Such a peer loses its connection; no other worker is affected.

#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/rpc/directory.h"
#include "paceline/engine/rpc/protocol/connection.h"
#include "paceline/engine/rpc/references.h"
#include "paceline/engine/rpc/setup.h"

#include "tests/engine/rpc/job.h"
#include "tests/harness/server_handshake.h"

namespace paceline::rpc::rogue {
namespace {

using namespace testing_job;

// One end of a connection that sends and receives single frames.
class ByHand final : Connection::Receiver {
 public:
  explicit ByHand(Fd socket)
      : raw_(::dup(socket.get())), connection_(std::move(socket), nullptr, 1 << 20, false) {}

  // The connection sets the frame's counter.
  void send(Frame frame, const OutgoingPointer& message = {}) {
    connection_.queue(frame, message);
    connection_.flush();
  }
  void send_bytes(std::span<const std::byte> bytes) { send_all(raw_, bytes, Deadline::after(10s)); }
  // The next frame; nullopt at the end of the connection, or if none arrives before the deadline.
  std::optional<Frame> receive(Deadline deadline = Deadline::after(10s)) {
    while (frames_.empty() && !has_ended_ && !deadline.expired()) {
      try {
        has_ended_ = !connection_.receive(*this, &deadline);
      } catch (const Error&) {
        has_ended_ = true;
      }
    }
    if (frames_.empty()) return {};
    const Frame frame = frames_.front();
    frames_.pop_front();
    return frame;
  }
  // The next frame of this kind; frames of other kinds are dropped.
  std::optional<Frame> receive(FrameKind kind) {
    for (;;) {
      const auto frame = receive();
      if (!frame || frame->kind == kind) return frame;
    }
  }
  // Whether the other end closes the connection.
  bool ends() {
    while (receive()) {
    }
    return has_ended_;
  }
  bool has_ended() const { return has_ended_; }

 private:
  void take(const Frame& frame, Payload /*payload*/) override { frames_.push_back(frame); }
  const Fd raw_;
  Connection connection_;
  std::deque<Frame> frames_;
  bool has_ended_ = false;
};

template <class T>
OutgoingPointer message(T value) {
  return make_outgoing(std::move(value));
}
OutgoingPointer bytes_of(std::size_t count, char value = 'x') {
  return std::make_shared<OutgoingBytes>(std::string(count, value));
}
template <class M>
Frame request_of(CallNumber number) {
  return {.kind = FrameKind::kRequest,
          .effect = detail::effect_of<M>(),
          .time_left_ms = 10'000,
          .number = number,
          .method = method_id(M::kName)};
}

class Rogue : public testing::Test {
 protected:
  Rogue() {
    worker_->serve<Add>([](const Add::Request& r, Context&) { return Add::Reply{r.a + r.b}; });
    worker_->serve<Count>([this](const Nothing&, Context&) {
      ++num_counted_;
      return Nothing{};
    });
  }
  WorkerEntry entry(const std::string& name) {
    return Directory(job_.options().store, kDefaultLease).find(name).value();
  }
  Secret key() { return job_.options().secret->derive("calls"); }
  std::unique_ptr<ByHand> connect() {
    const auto deadline = Deadline::after(20s);
    const auto callee = entry("worker");
    Fd socket = connect_unix(callee.unix_name, deadline);
    authenticate_as_client(socket, key(), connection_context(callee, false), deadline);
    return std::make_unique<ByHand>(std::move(socket));
  }
  // Opens a session; returns its number.
  static SessionNumber open(ByHand& peer, std::uint64_t connection = 1) {
    peer.send({.kind = FrameKind::kOpen, .number = connection},
              message(Hello{"rogue", "an incarnation", 1 << 20}));
    const auto opened = peer.receive();
    EXPECT_TRUE(opened && opened->kind == FrameKind::kOpened);
    return opened ? opened->session : 0;
  }
  void expect_others_unharmed() { EXPECT_EQ(caller_->call<Add>("worker", {2, 3}).get().sum, 5); }

  Job job_;
  std::atomic<int> num_counted_{0};
  std::unique_ptr<Workers> worker_ = job_.join("worker");
  std::unique_ptr<Workers> caller_ = job_.join("caller");
};

// ---- a rogue caller ----

struct Outrage {
  const char* name;
  std::function<void(ByHand&)> commit;
  bool first_opens = true;
};

TEST_F(Rogue, a_caller_that_sends_nonsense_loses_its_connection) {
  const std::string far_too_long(1 << 10, 'n');
  const auto raw = [](const Frame& frame) {
    return [frame](ByHand& peer) { peer.send_bytes(encode(frame)); };
  };
  const auto queued = [](const Frame& frame, const OutgoingPointer& body) {
    return [frame, body](ByHand& peer) { peer.send(frame, body); };
  };
  const std::vector<Outrage> outrages = {
      {"bytes that are no frame", [](ByHand& p) { p.send_bytes(bytes_of(64)->writer().bytes()); }},
      {"half a frame, then the end",
       [](ByHand& p) {
         const auto frame = encode({});
         p.send_bytes(std::span(frame).first(30));
         p.send_bytes(bytes_of(64)->writer().bytes());
       }},
      {"a length above the limit",
       raw({.kind = FrameKind::kRequest, .counter = 1, .length = 0xffff'ffff})},
      {"a frame of the past", raw({.kind = FrameKind::kAcknowledge, .counter = 0})},
      {"a frame of the future", raw({.kind = FrameKind::kAcknowledge, .counter = 7})},
      {"a callee's frame", queued({.kind = FrameKind::kReply, .number = 1}, bytes_of(3))},
      {"another callee's frame", queued({.kind = FrameKind::kOpened, .session = 5}, {})},
      {"a list of half a number", queued({.kind = FrameKind::kAcknowledge}, bytes_of(5))},
      {"a resumption of half a number",
       queued({.kind = FrameKind::kResume, .number = 9}, bytes_of(3))},
      {"a part of nothing", raw({.kind = FrameKind::kPart, .counter = 1, .length = 4})},
      {"rings that are not there", raw({.kind = FrameKind::kRings, .counter = 1})},
      {"an area that is not there", raw({.kind = FrameKind::kArea, .counter = 1})},
      {"a message in an area that is not there",
       [](ByHand& p) {
         p.send_bytes(encode(
             {.kind = FrameKind::kRequest, .flags = Frame::kInArea, .counter = 1, .length = 16}));
         p.send_bytes(bytes_of(16)->writer().bytes());
       }},
      {"a ticket for a message of another",
       [](ByHand& p) {
         p.send_bytes(encode(
             {.kind = FrameKind::kRequest, .flags = Frame::kInMemory, .counter = 1, .length = 8}));
         p.send_bytes(bytes_of(8, '\x7f')->writer().bytes());
       }},
      {"a greeting that is none", queued({.kind = FrameKind::kOpen, .number = 1}, bytes_of(40)),
       false},
      {"a greeting without a message", queued({.kind = FrameKind::kOpen, .number = 1}, {}), false},
  };
  for (const auto& [name, commit, first_opens] : outrages) {
    SCOPED_TRACE(name);
    const auto peer = connect();
    if (first_opens) open(*peer, 1 + static_cast<std::uint64_t>(&commit - &outrages[0].commit));
    commit(*peer);
    EXPECT_TRUE(peer->ends());
    expect_others_unharmed();
  }
}

TEST_F(Rogue, requests_that_cannot_be_carried_out_have_a_reply_that_says_why) {
  const auto peer = connect();
  open(*peer);
  Frame unknown = request_of<Add>(1);
  unknown.method = 12345;
  Frame of_nothing = request_of<Add>(3);
  of_nothing.method = method_id(kReleaseMethod);
  Frame late = request_of<Count>(4);
  late.time_left_ms = 0;
  const struct {
    Frame frame;
    OutgoingPointer body;
    ReplyStatus status;
  } rows[] = {
      {unknown, message(Nothing{}), ReplyStatus::kNoMethod},
      {request_of<Add>(2), bytes_of(100), ReplyStatus::kUnreadable},
      {of_nothing, message(ObjectList{{1, 2, 3}}), ReplyStatus::kOk},
      {late, message(Nothing{}), ReplyStatus::kTooLate},
      {request_of<Add>(5), message(OtherAdd::Request{"two"}), ReplyStatus::kUnreadable},
      {request_of<Add>(6), message(Add::Request{1, 2}), ReplyStatus::kOk},
  };
  for (const auto& [frame, body, status] : rows) {
    peer->send(frame, body);
    const auto reply = peer->receive();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->kind, FrameKind::kReply);
    EXPECT_EQ(reply->number, frame.number);
    EXPECT_EQ(static_cast<int>(reply->status), static_cast<int>(status)) << frame.number;
  }
  EXPECT_EQ(num_counted_, 0);
}

TEST_F(Rogue, a_request_of_an_unknown_session_is_refused) {
  const auto peer = connect();
  peer->send(request_of<Count>(1), message(Nothing{}));
  auto answer = peer->receive();
  EXPECT_TRUE(answer && answer->kind == FrameKind::kRefused);
  const std::uint64_t nothing = 0;
  auto none = std::make_shared<OutgoingBytes>();
  none->to().put_number(nothing);
  peer->send({.kind = FrameKind::kResume, .session = 77, .number = 1}, none);
  answer = peer->receive();
  EXPECT_TRUE(answer && answer->kind == FrameKind::kRefused && answer->session == 77);
  EXPECT_EQ(num_counted_, 0);
}

// A duplicate arrives over an older connection after the session has continued over a newer one.
TEST_F(Rogue, what_an_older_connection_still_brings_is_not_executed) {
  const auto first = connect();
  const SessionNumber session = open(*first);
  first->send(request_of<Count>(1), message(Nothing{}));
  EXPECT_TRUE(first->receive(FrameKind::kReply));
  const auto second = connect();
  second->send({.kind = FrameKind::kResume, .session = session, .number = 2},
               std::make_shared<OutgoingBytes>());
  EXPECT_TRUE(second->receive(FrameKind::kResumed));
  first->send(request_of<Count>(1), message(Nothing{}));
  first->send(request_of<Count>(2), message(Nothing{}));
  second->send(request_of<Count>(3), message(Nothing{}));
  const auto reply = second->receive(FrameKind::kReply);
  EXPECT_TRUE(reply && reply->number == 3);
  // A connection that resumes the session with a number older than the current one gets no reply.
  const auto third = connect();
  third->send({.kind = FrameKind::kResume, .session = session, .number = 1},
              std::make_shared<OutgoingBytes>());
  third->send(request_of<Count>(4), message(Nothing{}));
  second->send(request_of<Add>(5), message(Add::Request{1, 1}));
  EXPECT_TRUE(second->receive(FrameKind::kReply));
  EXPECT_EQ(num_counted_, 2);
}

TEST_F(Rogue, a_duplicate_after_its_session_has_expired_is_refused) {
  auto options = job_.options();
  options.lease = 200ms;
  const auto strict = job_.join("strict", options);
  std::atomic<int> count{0};
  strict->serve<Count>([&](const Nothing&, Context&) {
    ++count;
    return Nothing{};
  });
  const auto deadline = Deadline::after(20s);
  const auto callee = entry("strict");
  Fd socket = connect_unix(callee.unix_name, deadline);
  authenticate_as_client(socket, key(), connection_context(callee, false), deadline);
  ByHand peer(std::move(socket));
  const SessionNumber session = open(peer);
  peer.send(request_of<Count>(1), message(Nothing{}));
  EXPECT_TRUE(peer.receive(FrameKind::kReply));
  // The session expires because the peer has sent no sign of life.
  const auto refused = peer.receive(FrameKind::kRefused);
  EXPECT_TRUE(refused && refused->session == session);
  peer.send(request_of<Count>(1), message(Nothing{}));
  EXPECT_TRUE(peer.receive(FrameKind::kRefused));
  EXPECT_EQ(count, 1);
}

// ---- a rogue callee ----

// A worker in the store that answers its first connection with `answer`.
class RogueCallee : public Rogue {
 protected:
  using Answer = std::function<void(ByHand&, const Frame& request)>;
  // If `opens`, the worker opens the session properly and calls `answer` for the first request;
  // otherwise it calls `answer` for the frame that opens the session.
  void appear(bool opens, Answer answer) {
    WorkerEntry self = entry("worker");
    self.name = "rogue" + std::to_string(++num_rogues_);
    self.incarnation = self.name;
    self.unix_name = "paceline-" + random_hex(16);
    listener_ = std::make_shared<Fd>(listen_unix(self.unix_name));
    Directory(job_.options().store, kDefaultLease).enter(self);
    thread_ = start_thread("rogue", [this, self, opens, answer,
                                     door = listener_](const std::stop_token& stop) {
      const auto deadline = Deadline::after(20s);
      try {
        Fd socket = accept_connection(*door, deadline);
        harness::authenticate_as_server(socket, key(), connection_context(self, false), deadline);
        ByHand peer(std::move(socket));
        auto frame = peer.receive(FrameKind::kOpen);
        if (frame && opens) {
          peer.send({.kind = FrameKind::kOpened,
                     .time_left_ms = 10'000,
                     .max_calls = 100,
                     .session = 5,
                     .method = 1 << 20});
          frame = peer.receive(FrameKind::kRequest);
        }
        if (frame) answer(peer, *frame);
        while (!stop.stop_requested() && !peer.has_ended()) peer.receive(Deadline::after(100ms));
      } catch (const Error&) {  // the peer has left
      }
    });
  }
  std::string name() const { return "rogue" + std::to_string(num_rogues_); }

 private:
  int num_rogues_ = 0;
  std::shared_ptr<Fd> listener_;
  std::jthread thread_;
};

TEST_F(RogueCallee, nonsense_instead_of_an_answer_ends_calls_with_a_typed_error) {
  const auto reply = [](const Frame& request) {
    return Frame{.kind = FrameKind::kReply, .number = request.number};
  };
  const struct {
    const char* what;
    bool opens;
    Answer answer;
  } rows[] = {
      {"no frame", false, [](ByHand& p, auto&) { p.send_bytes(bytes_of(64)->writer().bytes()); }},
      {"a request", false, [](ByHand& p, auto&) { p.send(request_of<Add>(1), bytes_of(8)); }},
      {"a session that it has not asked for", false,
       [](ByHand& p, auto&) { p.send({.kind = FrameKind::kResumed, .session = 3}, bytes_of(5)); }},
      {"a state that there is not", true,
       [](ByHand& p, auto&) { p.send({.kind = FrameKind::kResumed, .session = 5}, bytes_of(9)); }},
      {"refusals of other sessions, then the end", true,
       [](ByHand& p, auto&) {
         p.send({.kind = FrameKind::kRefused, .session = 1});
         p.send({.kind = FrameKind::kRefused, .session = 0});
         p.send({.kind = FrameKind::kReply, .number = 999}, bytes_of(9));
         p.send({.kind = FrameKind::kCredit, .number = ~0ULL, .method = ~0ULL});
         p.send({.kind = FrameKind::kRenewed});
         p.send_bytes(bytes_of(64)->writer().bytes());
       }},
      {"a second session", true,
       [](ByHand& p, auto&) {
         p.send({.kind = FrameKind::kOpened, .session = 6, .method = 0});
         p.send_bytes(bytes_of(64)->writer().bytes());
       }},
      {"a reply of another type", true,
       [=](ByHand& p, const Frame& r) { p.send(reply(r), message(OtherAdd::Request{"two"})); }},
      {"a reply that is no message", true,
       [=](ByHand& p, const Frame& r) { p.send(reply(r), bytes_of(100)); }},
      {"a reply without a message", true, [=](ByHand& p, const Frame& r) { p.send(reply(r)); }},
      {"nothing", true, [](ByHand&, auto&) {}},
  };
  for (const auto& [what, opens, answer] : rows) {
    SCOPED_TRACE(what);
    appear(opens, answer);
    try {
      caller_->call<Add>(name(), {1, 2}, {.deadline = 500ms}).get();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CallError& error) {
      EXPECT_EQ(error.worker(), name()) << error.what();
      EXPECT_EQ(error.operation(), "add") << error.what();
    }
    expect_others_unharmed();
  }
  const auto left = std::chrono::steady_clock::now();
  caller_->leave();
  EXPECT_LT(std::chrono::steady_clock::now() - left, 20s);
}

}  // namespace
}  // namespace paceline::rpc::rogue
