// Networks that fail: frames that are lost, repeated, swapped and replayed, cuts in one direction,
// slow links. No call is executed more often, or less often, than its outcome says.

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/core/system/socket.h"

#include "tests/engine/rpc/job.h"
#include "tests/engine/rpc/relay.h"

namespace paceline::rpc::network {
namespace {

using namespace testing_job;
using Way = Relay::Way;

// Update `bit` is applied to cell `bit`, so that each lost or repeated update is found.
struct Bit {
  std::uint64_t bit = 0;
  static auto fields(auto& m) { return std::tie(m.bit); }
};
template <Effect E>
struct Apply {
  static constexpr std::array<std::string_view, 3> kNames = {"apply", "apply_again", "apply_once"};
  static constexpr std::string_view kName = kNames[static_cast<std::size_t>(E)];
  static constexpr Effect kEffect = E;
  using Request = Bit;
  using Reply = Nothing;
};
using ApplyOnce = Apply<Effect::kOnce>;

class Thing {
 public:
  static constexpr std::string_view kName = "network_thing";
  static inline std::atomic<int> num_alive{0};
  Thing() { ++num_alive; }
  ~Thing() { --num_alive; }
  Nothing touch(const Nothing& /*nothing*/) { return {}; }
  static auto methods() { return std::tuple(method<&Thing::touch>("touch")); }
};
struct Keep {
  static constexpr std::string_view kName = "keep";
  struct Request {
    RemoteRef<Thing> thing;
    static auto fields(auto& m) { return std::tie(m.thing); }
  };
  using Reply = Nothing;
};

// Workers with different "hosts", so that they connect over TCP.
class Network : public testing::Test {
 protected:
  static constexpr std::size_t kBits = 240;
  std::unique_ptr<Workers> join(const std::string& name, std::chrono::milliseconds lease = 10s) {
    auto options = job_.options();
    options.host = name;
    options.lease = lease;
    return job_.join(name, options);
  }
  void join_both(std::chrono::milliseconds lease = 10s) {
    callee_ = join("callee", lease);
    serve<Effect::kAtMostOnce>();
    serve<Effect::kRepeatable>();
    serve<Effect::kOnce>();
    callee_->serve<Thing>();
    caller_ = join("caller", lease);
  }
  std::shared_ptr<Store> store() const { return job_.options().store; }
  template <Effect E>
  std::atomic<int>& applied(std::size_t bit) {
    return applied_.at(static_cast<std::size_t>(E)).at(bit);
  }
  template <Effect E>
  void serve() {
    callee_->serve<Apply<E>>([this](const Bit& request, Context&) {
      ++applied<E>(request.bit);
      return Nothing{};
    });
  }
  // Checks that the outcome of the call is true.
  template <Effect E>
  void check_end(Future<Nothing> future, std::size_t bit) {
    int least = 1, most = E == Effect::kRepeatable ? 1 << 30 : 1;
    try {
      future.get();
    } catch (const CallError& error) {
      EXPECT_NE(static_cast<int>(error.executed()), static_cast<int>(CallError::Executed::kYes));
      EXPECT_EQ(E, Effect::kAtMostOnce) << error.what();
      least = 0;
      if (error.executed() == CallError::Executed::kNo) most = 0;
    }
    EXPECT_GE(applied<E>(bit), least) << Apply<E>::kName << " " << bit;
    EXPECT_LE(applied<E>(bit), most) << Apply<E>::kName << " " << bit;
  }
  template <Effect E>
  void apply_all() {
    std::vector<Future<Nothing>> futures;
    for (std::size_t bit = 0; bit < kBits; ++bit) {
      futures.push_back(caller_->call<Apply<E>>("callee", {bit}));
      if (bit % 16 != 15 && bit + 1 != kBits) continue;
      const std::size_t first = bit + 1 - futures.size();
      for (std::size_t i = 0; i < futures.size(); ++i) {
        check_end<E>(std::move(futures[i]), first + i);
      }
      futures.clear();
    }
  }
  void expect_usable() { caller_->call<ApplyOnce>("callee", {kBits}).get(); }

  Job job_;
  std::array<std::vector<std::atomic<int>>, 3> applied_ = {
      std::vector<std::atomic<int>>(kBits + 1), std::vector<std::atomic<int>>(kBits + 1),
      std::vector<std::atomic<int>>(kBits + 1)};
  std::unique_ptr<Workers> callee_, caller_;
};

struct Row {
  std::string name;
  Relay::Faults faults;
};
class NetworkFaults : public Network, public testing::WithParamInterface<Row> {};

TEST_P(NetworkFaults, every_call_ends_as_it_says) {
  join_both();
  const Relay relay(store(), "callee", GetParam().faults);
  apply_all<Effect::kOnce>();
  apply_all<Effect::kRepeatable>();
  apply_all<Effect::kAtMostOnce>();
  EXPECT_GT(relay.num_faults(), 5);
}
INSTANTIATE_TEST_SUITE_P(Of, NetworkFaults,
                         testing::Values(Row{"connections_that_are_cut", {.cut_one_in = 30}},
                                         Row{"frames_that_come_twice", {.repeat_one_in = 30}},
                                         Row{"frames_that_are_lost", {.lose_one_in = 30}},
                                         Row{"frames_that_are_swapped", {.swap_one_in = 30}},
                                         Row{"frames_that_are_replayed", {.replay_one_in = 30}},
                                         Row{"every_kind",
                                             {.cut_one_in = 150,
                                              .repeat_one_in = 150,
                                              .lose_one_in = 150,
                                              .swap_one_in = 150,
                                              .replay_one_in = 150}}),
                         [](const auto& info) { return info.param.name; });

TEST_F(Network, a_recorded_conversation_cannot_be_played_again) {
  join_both();
  const Relay relay(store(), "callee", {});
  caller_->call<ApplyOnce>("callee", {0}).get();
  const auto recording = relay.recording();
  ASSERT_GT(recording.size(), 3 * kFrameBytes);
  const auto entry = Directory(store(), kDefaultLease).find("callee").value();
  const auto deadline = Deadline::after(20s);
  const Fd again = connect_tcp({entry.tcp_host, entry.tcp_port}, deadline);
  send_all(again, recording, deadline);
  std::vector<std::byte> answer(1 << 10);  // more than any handshake: the callee hangs up before
  EXPECT_LT(receive_whole(again.get(), answer, deadline), 128);
  EXPECT_EQ(applied<Effect::kOnce>(0), 1);
  expect_usable();
}

TEST_F(Network, what_the_callee_says_may_be_lost) {
  join_both();
  Relay relay(store(), "callee", {});
  caller_->call<ApplyOnce>("callee", {0}).get();
  relay.swallow(Way::kToCaller, true);
  expect_call_error(CallError::Executed::kUnknown, {"apply_once of worker callee", "deadline"},
                    [&] { caller_->call<ApplyOnce>("callee", {1}, {.deadline = 300ms}).get(); });
  EXPECT_TRUE(soon([&] { return applied<Effect::kOnce>(1) == 1; }));
  // The network recovers and the callee's lost frames are noticed: a new connection resumes the
  // session.
  auto call = caller_->call<ApplyOnce>("callee", {2});
  EXPECT_TRUE(soon([&] { return applied<Effect::kOnce>(2) == 1; }));
  relay.swallow(Way::kToCaller, false);
  caller_->call<ApplyOnce>("callee", {3}).get();
  call.get();
  for (std::size_t bit = 0; bit < 4; ++bit) EXPECT_EQ(applied<Effect::kOnce>(bit), 1) << bit;
}

// ---- cuts in one direction ----

class OneWay : public Network, public testing::WithParamInterface<Way> {};
INSTANTIATE_TEST_SUITE_P(Cut, OneWay, testing::Values(Way::kToCallee, Way::kToCaller),
                         [](const auto& info) {
                           return info.param == Way::kToCallee ? "to_the_callee" : "to_the_caller";
                         });

TEST_P(OneWay, a_short_cut_costs_time_only) {
  join_both();
  Relay relay(store(), "callee", {});
  const auto thing = caller_->create<Thing>("callee");
  thing.call<&Thing::touch>().get();
  relay.cut(GetParam(), true);
  auto call = caller_->call<ApplyOnce>("callee", {1});
  auto touch = thing.call<&Thing::touch>();
  expect_call_error(CallError::Executed::kUnknown, {"apply_once of worker callee", "deadline"},
                    [&] { caller_->call<ApplyOnce>("callee", {2}, {.deadline = 300ms}).get(); });
  EXPECT_FALSE(call.is_ready());
  relay.cut(GetParam(), false);
  call.get();
  touch.get();
  EXPECT_EQ(applied<Effect::kOnce>(1), 1);
  EXPECT_LE(applied<Effect::kOnce>(2), 1);
  EXPECT_EQ(relay.num_connections(), 1);
}

TEST_P(OneWay, a_cut_for_longer_than_the_lease_ends_references_with_a_typed_error) {
  join_both(500ms);
  Relay relay(store(), "callee", {});
  const auto thing = caller_->create<Thing>("callee");
  thing.call<&Thing::touch>().get();
  relay.cut(GetParam(), true);
  const auto has_expired = [&] {
    try {
      (void)thing.call<&Thing::touch>({}, {.deadline = 1ms});
    } catch (const ReferenceError& error) {
      EXPECT_EQ(error.reason(), ReferenceError::Reason::kExpired) << error.what();
      return true;
    }
    return false;
  };
  EXPECT_TRUE(soon(has_expired));
  // The owner keeps the object as long as it receives messages from the holder.
  if (GetParam() == Way::kToCallee) {
    EXPECT_TRUE(soon([] { return Thing::num_alive == 0; }));
  }
  auto call = caller_->call<ApplyOnce>("callee", {1}, {.deadline = 10s});
  relay.cut(GetParam(), false);
  check_end<Effect::kAtMostOnce>(caller_->call<Apply<Effect::kAtMostOnce>>("callee", {3}), 3);
  try {
    call.get();
    EXPECT_EQ(applied<Effect::kOnce>(1), 1);
  } catch (const CallError& error) {  // the session of the call is lost
    EXPECT_LE(applied<Effect::kOnce>(1), error.executed() == CallError::Executed::kNo ? 0 : 1);
  }
  EXPECT_TRUE(soon([&] {
    try {
      caller_->create<Thing>("callee").call<&Thing::touch>().get();
      return true;
    } catch (const CallError&) {
      return false;
    }
  }));
}

// Workers A and B both reach S, but not each other.
TEST_F(Network, two_that_do_not_reach_each_other_both_work_with_a_third) {
  const auto s = join("s", 500ms);
  s->serve<Thing>();
  const auto a = join("a", 500ms);
  const auto b = join("b", 500ms);
  std::mutex mutex;
  std::vector<RemoteRef<Thing>> kept;
  b->serve<Keep>([&](const Keep::Request& request, Context&) {
    const std::lock_guard lock(mutex);
    kept.push_back(request.thing);
    return Nothing{};
  });
  Relay relay(store(), "b", {});
  const auto of_a = a->create<Thing>("s");
  const auto of_b = b->create<Thing>("s");
  a->call<Keep>("b", {of_a}).get();
  for (const Way way : {Way::kToCallee, Way::kToCaller}) relay.cut(way, true);
  expect_call_error(CallError::Executed::kUnknown, {"keep of worker b", "deadline"},
                    [&] { a->call<Keep>("b", {of_a}, {.deadline = 300ms}).get(); });
  const auto cut_for = Deadline::after(1500ms);  // three leases
  while (!cut_for.expired()) {
    of_a.call<&Thing::touch>().get();
    of_b.call<&Thing::touch>().get();
    std::this_thread::sleep_for(20ms);  // makes no more than 50 rounds per second
  }
  for (const auto& info : s->list())
    EXPECT_EQ(info.state, WorkerInfo::State::kPresent) << info.name;
  for (const Way way : {Way::kToCallee, Way::kToCaller}) relay.cut(way, false);
  EXPECT_TRUE(soon([&] {
    try {
      a->call<Keep>("b", {of_a}).get();
      return true;
    } catch (const CallError&) {
      return false;
    }
  }));
  const std::lock_guard lock(mutex);
  for (const auto& thing : kept) thing.call<&Thing::touch>().get();
  EXPECT_EQ(Thing::num_alive, 2);
}

// ---- slow links ----

TEST_F(Network, signs_of_life_pass_a_message_that_takes_longer_than_the_lease) {
  join_both(2s);
  callee_->serve<Sum>([](const Sum::Request& request, Context&) {
    return Sum::Reply{{}, static_cast<double>(request.values.size())};
  });
  const Relay relay(store(), "callee", {.bytes_per_s = 1'500'000});
  const auto thing = caller_->create<Thing>("callee");
  thing.call<&Thing::touch>().get();
  const std::vector<float> values(2'000'000);  // 8 MB
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(caller_->call<Sum>("callee", {values}).get().sum, 2e6);
  EXPECT_GT(std::chrono::steady_clock::now() - begun, 4s);
  thing.call<&Thing::touch>().get();
  EXPECT_EQ(Thing::num_alive, 1);
  // A message under way does not delay leave() either.
  auto call = caller_->call<Sum>("callee", {values});
  const auto left = std::chrono::steady_clock::now();
  caller_->leave();
  EXPECT_LT(std::chrono::steady_clock::now() - left, 20s);  // its limit is 5 s
  EXPECT_THROW(call.get(), CallError);
}

TEST_F(Network, one_message_renews_all_references_of_a_worker) {
  constexpr auto kLease = 600ms;
  join_both(kLease);
  const Relay relay(store(), "callee", {});
  std::vector<RemoteRef<Thing>> things;
  for (int i = 0; i < 2000; ++i) things.push_back(caller_->create<Thing>("callee"));
  things.back().call<&Thing::touch>().get();
  const int before = relay.num_frames(FrameKind::kRenew);
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_TRUE(soon([&] { return relay.num_frames(FrameKind::kRenew) >= before + 5; }));
  const int renewals = relay.num_frames(FrameKind::kRenew) - before;
  const auto time = std::chrono::steady_clock::now() - begun;
  EXPECT_LE(renewals, time / (kLease / 3) + 2);
  for (const auto& thing : things) thing.call<&Thing::touch>().get();
}

}  // namespace
}  // namespace paceline::rpc::network
