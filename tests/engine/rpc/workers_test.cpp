#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/engine/rpc/job.h"

namespace paceline::rpc::testing_job {
namespace {

TEST(Workers, a_call_has_its_own_reply) {
  Job job;
  const auto callee = job.join("adder");
  callee->serve<Add>([](const Add::Request& request, Context& context) {
    EXPECT_EQ(context.caller(), "asker");
    return Add::Reply{request.a + request.b};
  });
  const auto caller = job.join("asker");
  EXPECT_EQ(caller->call<Add>("adder", {2, 3}).get().sum, 5);
  std::vector<Future<Add::Reply>> futures;
  for (int i = 0; i < 3000; ++i) futures.push_back(caller->call<Add>("adder", {i, 1}));
  for (int i = 0; i < 3000; ++i) EXPECT_EQ(futures[static_cast<std::size_t>(i)].get().sum, i + 1);
}

TEST(Workers, what_join_prepares_is_there_for_the_first_call) {
  Job job;
  const auto caller = job.join("caller");
  auto early = caller->call<Add>("callee", {2, 3});  // no worker has this name yet
  auto options = job.options();
  options.prepare = [&](Workers& self) {
    EXPECT_EQ(caller->list().size(), 1U);
    EXPECT_EQ(self.name(), "callee");
    self.serve<Add>(
        [](const Add::Request& request, Context&) { return Add::Reply{request.a + request.b}; });
    EXPECT_FALSE(early.is_ready());
  };
  const auto callee = job.join("callee", options);
  EXPECT_EQ(early.get().sum, 5);

  options.prepare = [](Workers&) { throw std::runtime_error("no weights"); };
  EXPECT_THROW((void)job.join("third", options), std::runtime_error);
  EXPECT_EQ(caller->list().size(), 2U);
  EXPECT_EQ(job.join("third")->name(), "third");
}

TEST(Workers, a_worker_serves_until_another_one_is_gone) {
  Job job;
  const auto server = job.join("server");
  EXPECT_FALSE(server->wait_until_gone("trainer", 50ms));  // no such worker has joined yet
  auto trainer = job.join("trainer");
  EXPECT_FALSE(server->wait_until_gone("trainer", 50ms));
  std::thread leaver([&] { trainer.reset(); });
  EXPECT_TRUE(server->wait_until_gone("trainer", 60s));
  leaver.join();
  server->leave();
  expect_error(ErrorCode::kInvalid, {"server", "wait_until_gone", "has left"},
               [&] { (void)server->wait_until_gone("trainer"); });
}

TEST(Workers, a_worker_calls_itself_and_is_called_back_while_it_calls) {
  Job job;
  const auto options = [&] {
    auto options = job.options();
    options.num_threads = 1;
    options.max_threads = 32;
    return options;
  }();
  const auto a = job.join("a", options);
  const auto b = job.join("b", options);
  for (const auto& [self, other] : {std::pair{a.get(), "b"}, std::pair{b.get(), "a"}}) {
    self->serve<Chain>([self, other](const Chain::Request& request, Context&) {
      if (request.depth == 0) return Chain::Reply{0};
      const auto reply = self->call<Chain>(other, {request.depth - 1, {}}).get();
      return Chain::Reply{reply.depth + 1};
    });
  }
  EXPECT_EQ(a->call<Chain>("a", {20, {}}).get().depth, 20);
}

TEST(Workers, large_messages_arrive_whole_in_both_directions) {
  Job job;
  const auto callee = job.join("summer");
  callee->serve<Sum>([](Sum::Request request, Context&) {
    const double sum = std::accumulate(request.values.begin(), request.values.end(), 0.0);
    return Sum::Reply{std::move(request.values), sum};
  });
  const auto caller = job.join("asker");
  for (const std::size_t count : {0UL, 1UL, 8191UL, 8192UL, 100'000UL, 5'000'000UL}) {
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), 1.0F);
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    const auto reply = caller->call<Sum>("summer", {values}).get();
    EXPECT_EQ(reply.sum, sum);
    EXPECT_EQ(reply.values, values);
  }
  auto small = job.options();
  small.max_message = 1000;
  const auto limited = job.join("limited", small);
  expect_error(ErrorCode::kInvalid, {"limited", "sum of worker summer", "max_message"},
               [&] { limited->call<Sum>("summer", {std::vector<float>(1000)}); });
}

TEST(Workers, an_error_says_whether_the_handler_ran) {
  Job job;
  const auto callee = job.join("callee");
  callee->serve<Add>([](const Add::Request&, Context&) { return Add::Reply{}; });
  callee->serve<Fail>([](const Nothing&, Context&) -> Nothing {
    throw std::runtime_error("no such key: learning_rate");
  });
  const auto caller = job.join("caller");
  expect_call_error(CallError::Executed::kYes, {"caller", "fail of worker callee", "learning_rate"},
                    [&] { caller->call<Fail>("callee", {}).get(); });
  expect_call_error(CallError::Executed::kNo, {"count of worker callee", "no handler"},
                    [&] { caller->call<Count>("callee", {}).get(); });
  expect_call_error(CallError::Executed::kNo, {"add of worker callee", "field 1", "expects int32"},
                    [&] { caller->call<OtherAdd>("callee", {"two"}).get(); });
  expect_call_error(CallError::Executed::kNo,
                    {"no worker is named 'calle'", "did you mean 'callee'"},
                    [&] { caller->call<Add>("calle", {}, {.deadline = 1s}).get(); });
}

TEST(Workers, a_deadline_ends_the_call_and_tells_the_handler) {
  Job job;
  const auto callee = job.join("callee");
  std::atomic<bool> was_cancelled{false}, has_ended{false};
  callee->serve<Wait>([&](const Nothing&, Context& context) {
    EXPECT_TRUE(soon([&] { return context.is_cancelled(); }));
    was_cancelled = true;
    EXPECT_TRUE(soon([&] { return has_ended.load(); }));  // the reply would still be in time
    return Nothing{};
  });
  callee->serve<Add>([](const Add::Request&, Context&) { return Add::Reply{}; });
  const auto caller = job.join("caller");
  caller->call<Add>("callee", {1, 2}).get();  // the connection now exists
  expect_call_error(CallError::Executed::kUnknown, {"wait of worker callee", "deadline"},
                    [&] { caller->call<Wait>("callee", {}, {.deadline = 500ms}).get(); });
  has_ended = true;
  EXPECT_TRUE(soon([&] { return was_cancelled.load(); }));
}

TEST(Workers, a_name_belongs_to_one_worker_at_a_time) {
  Job job;
  auto first = job.join("name");
  expect_error(ErrorCode::kInvalid, {"'name'", "is present"}, [&] { job.join("name"); });
  first.reset();
  EXPECT_EQ(job.join("name")->name(), "name");
  expect_error(ErrorCode::kInvalid, {"1 to 128 characters"}, [&] { job.join(""); });
  const auto second = job.join("second");
  second->serve<Add>([](const Add::Request&, Context&) { return Add::Reply{}; });
  expect_error(ErrorCode::kInvalid, {"add already has a handler"}, [&] {
    second->serve<Add>([](const Add::Request&, Context&) { return Add::Reply{}; });
  });
  second->leave();
  expect_error(ErrorCode::kInvalid, {"after leave()"}, [&] { second->call<Add>("name", {}); });
}

TEST(Workers, calls_to_a_worker_that_leaves_end_and_a_later_one_of_its_name_is_called) {
  Job job;
  const auto caller = job.join("caller");
  auto callee = job.join("callee");
  std::atomic<int> running{0};
  callee->serve<Wait>([&](const Nothing&, Context& context) {
    ++running;
    EXPECT_TRUE(soon([&] { return context.is_cancelled(); }));
    throw std::runtime_error("stopped before the end");
    return Nothing{};
  });
  auto call = caller->call<Wait>("callee", {});
  EXPECT_TRUE(soon([&] { return running == 1; }));
  callee.reset();
  expect_call_error(CallError::Executed::kYes, {"wait of worker callee", "stopped before the end"},
                    [&] { call.get(); });
  // The first call may be sent before the end of the connection is noticed.
  EXPECT_THROW(caller->call<Wait>("callee").get(), CallError);
  expect_call_error(CallError::Executed::kNo, {"wait of worker callee", "has left"},
                    [&] { caller->call<Wait>("callee").get(); });

  callee = job.join("callee");
  callee->serve<Add>([](const Add::Request& r, Context&) { return Add::Reply{r.a + r.b}; });
  EXPECT_EQ(caller->call<Add>("callee", {20, 3}).get().sum, 23);
}

TEST(Workers, everybody_sees_who_comes_and_goes) {
  Job job;
  const auto watcher = job.join("watcher");
  std::mutex mutex;
  std::map<std::string, WorkerInfo::State> seen;
  watcher->watch([&](const WorkerInfo& entry) {
    const std::lock_guard lock(mutex);
    seen[entry.name] = entry.state;
  });
  const auto state_of = [&](const std::string& name) -> std::optional<WorkerInfo::State> {
    const std::lock_guard lock(mutex);
    const auto found = seen.find(name);
    return found == seen.end() ? std::nullopt : std::optional(found->second);
  };
  auto other = job.join("other");
  EXPECT_TRUE(soon([&] { return state_of("other") == WorkerInfo::State::kPresent; }));
  other->leave();
  EXPECT_TRUE(soon([&] { return state_of("other") == WorkerInfo::State::kLeft; }));
}

TEST(Workers, a_watcher_that_would_wait_for_a_worker_gets_an_error) {
  std::promise<void> waited;
  std::once_flag once;
  Job job;
  const auto watcher = job.join("watcher");
  watcher->watch([&](const WorkerInfo&) {
    std::call_once(once, [&] {
      EXPECT_FALSE(watcher->wait_until_gone("watcher", 0ms));
      expect_error(ErrorCode::kInvalid,
                   {"watcher: wait_until_gone", "would wait for worker watcher"},
                   [&] { watcher->wait_until_gone("watcher", 20s); });
      waited.set_value();
    });
  });
  ASSERT_EQ(waited.get_future().wait_for(10s), std::future_status::ready);
  const auto other = job.join("other");
  other->leave();
  EXPECT_TRUE(watcher->wait_until_gone("other", 20s));
}

TEST(Workers, what_is_told_is_handled_without_a_reply) {
  Job job;
  const auto callee = job.join("callee");
  std::atomic<int> sum{0};
  callee->serve<Add>([&](const Add::Request& request, Context&) {
    sum += request.a;
    return Add::Reply{};
  });
  const auto caller = job.join("caller");
  for (int i = 1; i <= 100; ++i) caller->tell<Add>("callee", {i, 0});
  EXPECT_TRUE(soon([&] { return sum == 5050; }));
}

TEST(Workers, a_stranger_without_the_secret_is_turned_away) {
  Job job;
  Job strangers;
  const auto callee = job.join("callee");
  callee->serve<Add>([](const Add::Request&, Context&) { return Add::Reply{}; });
  auto options = job.options();
  options.secret = strangers.options().secret;
  const auto stranger = job.join("stranger", options);
  expect_call_error(CallError::Executed::kNo, {"add of worker callee"},
                    [&] { stranger->call<Add>("callee", {}, {.deadline = 1s}).get(); });
  const auto caller = job.join("caller");
  EXPECT_EQ(caller->call<Add>("callee", {}).get().sum, 0);
}

}  // namespace
}  // namespace paceline::rpc::testing_job
