// Handlers that answer later, block, fill their queue, or end the worker that runs them.

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/engine/rpc/job.h"

namespace paceline::rpc::testing_job {
namespace {

// A method whose messages refer to memory that they do not own.
struct See {
  static constexpr std::string_view kName = "see";
  struct Request {
    std::span<const float> values;
    std::string_view text;
    static auto fields(auto& m) { return std::tie(m.values, m.text); }
  };
  struct Reply {
    std::optional<std::vector<Request>> seen;
    static auto fields(auto& m) { return std::tie(m.seen); }
  };
};

TEST(Handlers, answers_may_come_later_and_from_another_thread) {
  Job job;
  const auto callee = job.join("callee");
  std::mutex mutex;
  std::vector<std::pair<int, Answer<Add::Reply>>> open;
  callee->serve<Add>([&](const Add::Request& request, Answer<Add::Reply> answer) {
    const std::lock_guard lock(mutex);
    open.emplace_back(request.a, std::move(answer));
  });
  const auto caller = job.join("caller");
  std::vector<Future<Add::Reply>> futures;
  for (int i = 0; i < 10; ++i) futures.push_back(caller->call<Add>("callee", {i, 0}));
  EXPECT_TRUE(soon([&] {
    const std::lock_guard lock(mutex);
    return open.size() == 10;
  }));
  EXPECT_FALSE(futures.front().is_ready());
  for (auto& [value, answer] : open) answer.give({value * 10});
  for (int i = 0; i < 10; ++i) EXPECT_EQ(futures[static_cast<std::size_t>(i)].get().sum, i * 10);
}

TEST(Handlers, an_answer_that_is_let_go_fails_the_call) {
  Job job;
  const auto callee = job.join("callee");
  callee->serve<Add>([](const Add::Request&, const Answer<Add::Reply>&) {});
  const auto caller = job.join("caller");
  expect_call_error(CallError::Executed::kYes, {"add of worker callee failed", "without an answer"},
                    [&] { caller->call<Add>("callee", {}).get(); });
}

TEST(Handlers, a_method_may_limit_its_threads_and_its_queue) {
  Job job;
  const auto callee = job.join("callee");
  Gate gate;
  std::atomic<int> running{0}, most{0};
  callee->serve<Wait>(
      [&](const Nothing&, Context&) {
        most = std::max(most.load(), ++running);
        EXPECT_TRUE(gate.wait());
        --running;
        return Nothing{};
      },
      {.threads = 2, .queue = 3});
  const auto caller = job.join("caller");
  std::vector<Future<Nothing>> futures;
  for (int i = 0; i < 5; ++i) futures.push_back(caller->call<Wait>("callee"));
  EXPECT_TRUE(soon([&] { return running == 2; }));
  // The sixth call fails only if the first five have arrived.
  expect_call_error(CallError::Executed::kNo, {"wait of worker callee was not executed", "queue"},
                    [&] { caller->call<Wait>("callee").get(); });
  gate.open();
  for (auto& future : futures) future.get();
  EXPECT_EQ(most, 2);
}

// A thread of the callee that has served a connection several times in a row stays with it, and
// must release it while it runs a long handler.
TEST(Handlers, a_handler_that_sleeps_does_not_hold_up_other_calls_of_its_connection) {
  Job job;
  const auto callee = job.join("callee");
  Gate gate;
  std::atomic<bool> is_waiting{false};
  callee->serve<Add>([](const Add::Request& r, Context&) { return Add::Reply{r.a + r.b}; });
  callee->serve<Wait>([&](const Nothing&, Context&) {
    is_waiting = true;
    EXPECT_TRUE(gate.wait());
    return Nothing{};
  });
  const auto caller = job.join("caller");
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 30; ++i) EXPECT_EQ(caller->call<Add>("callee", {i, 1}).get().sum, i + 1);
    is_waiting = false;
    auto waits = caller->call<Wait>("callee");
    ASSERT_TRUE(soon([&] { return is_waiting.load(); }));
    for (int i = 0; i < 10; ++i) {
      ASSERT_EQ(caller->call<Add>("callee", {i, 2}, {.deadline = 10s}).get().sum, i + 2) << round;
    }
    gate.open();
    waits.get();
    gate.close();
  }
}

TEST(Handlers, a_full_queue_slows_calls_down_and_is_an_error_for_what_is_told) {
  Job job;
  auto options = job.options();
  options.max_calls = 4;
  const auto callee = job.join("callee", options);
  Gate gate;
  std::atomic<int> handled{0};
  callee->serve<Wait>([&](const Nothing&, Context&) {
    EXPECT_TRUE(gate.wait());
    ++handled;
    return Nothing{};
  });
  callee->serve<Add>([](const Add::Request& r, Context&) { return Add::Reply{r.a + r.b}; });
  const auto caller = job.join("caller");
  // The reply tells the caller its credit: 4 calls.
  EXPECT_EQ(caller->call<Add>("callee", {1, 2}).get().sum, 3);
  std::vector<Future<Nothing>> futures;
  for (int i = 0; i < 4; ++i) futures.push_back(caller->call<Wait>("callee"));
  expect_call_error(CallError::Executed::kNo, {"wait of worker callee was not sent", "4 calls"},
                    [&] { caller->call<Wait>("callee", {}, {.deadline = 100ms}).get(); });
  for (int i = 0; i < 4; ++i) caller->tell<Wait>("callee");
  expect_call_error(CallError::Executed::kNo,
                    {"was not sent", "4 messages to handle", "send more slowly"},
                    [&] { caller->tell<Wait>("callee"); });
  std::jthread opener([&] { gate.open(); });
  EXPECT_EQ(caller->call<Add>("callee", {1, 2}).get().sum, 3);
  for (auto& future : futures) future.get();
  EXPECT_TRUE(soon([&] { return handled == 8; }));
  EXPECT_TRUE(soon([&] {
    try {
      caller->tell<Add>("callee");
      return true;
    } catch (const CallError&) {
      return false;
    }
  }));
}

TEST(Handlers, requests_are_received_while_all_handlers_are_blocked) {
  Job job;
  auto options = job.options();
  options.num_threads = 1;
  const auto callee = job.join("callee", options);
  Gate gate;
  callee->serve<Wait>([&](const Nothing&, Context&) {
    EXPECT_TRUE(gate.wait());
    return Nothing{};
  });
  callee->serve<Add>([](const Add::Request& r, Context&) { return Add::Reply{r.a + r.b}; });
  const auto caller = job.join("caller");
  std::vector<Future<Nothing>> futures;
  for (int i = 0; i < 6; ++i) futures.push_back(caller->call<Wait>("callee"));
  EXPECT_EQ(caller->call<Add>("callee", {1, 2}).get().sum, 3);
  gate.open();
  for (auto& future : futures) future.get();
}

TEST(Handlers, full_queues_in_a_circle_end) {
  Job job;
  auto options = job.options();
  options.num_threads = 1;
  options.max_threads = 2;
  options.max_calls = 1;
  options.deadline = 500ms;
  const auto a = job.join("a", options);
  const auto b = job.join("b", options);
  const auto serve = [](Workers& self, const std::string& other) {
    self.serve<Chain>([&self, other](const Chain::Request& request, Context&) {
      if (request.depth == 0) return Chain::Reply{0};
      return Chain::Reply{self.call<Chain>(other, {request.depth - 1, {}}).get().depth + 1};
    });
  };
  serve(*a, "b");
  serve(*b, "a");
  EXPECT_EQ(a->call<Chain>("b", {0, {}}).get().depth, 0);
  // A depth of six exceeds the credit and the threads; the call ends nevertheless.
  try {
    EXPECT_EQ(a->call<Chain>("b", {6, {}}).get().depth, 6);
  } catch (const CallError& error) {
    EXPECT_EQ(error.operation(), "chain") << error.what();
  }
  EXPECT_TRUE(soon([&] {
    try {
      return a->call<Chain>("b", {0, {}}).get().depth == 0;
    } catch (const CallError&) {
      return false;
    }
  }));
}

TEST(Handlers, a_handler_may_end_the_worker_that_it_runs_in) {
  Job job;
  auto callee = job.join("callee");
  std::atomic<bool> has_ended{false};
  callee->serve<Wait>([&](const Nothing&, Context&) {
    callee.reset();
    has_ended = true;
    return Nothing{};
  });
  const auto caller = job.join("caller");
  expect_call_error(CallError::Executed::kUnknown, {"wait of worker callee"},
                    [&] { caller->call<Wait>("callee").get(); });
  EXPECT_TRUE(soon([&] { return has_ended.load(); }));
  expect_call_error(CallError::Executed::kNo, {"has left"},
                    [&] { caller->call<Wait>("callee").get(); });
}

TEST(Handlers, leaving_does_not_wait_for_a_handler_that_never_ends) {
  Job job;
  auto options = job.options();
  options.leave_timeout = 200ms;
  const auto gate = std::make_shared<Gate>();
  const auto has_ended = std::make_shared<std::atomic<bool>>(false);
  auto callee = job.join("callee", options);
  const auto runs = std::make_shared<std::atomic<bool>>(false);
  callee->serve<Wait>([gate, has_ended, runs](const Nothing&, Context&) {
    *runs = true;
    gate->wait();
    *has_ended = true;
    return Nothing{};
  });
  const auto caller = job.join("caller");
  auto call = caller->call<Wait>("callee");
  EXPECT_TRUE(soon([&] { return runs->load(); }));
  callee.reset();  // the destructor returns
  EXPECT_FALSE(*has_ended);
  expect_call_error(CallError::Executed::kUnknown, {"wait of worker callee"}, [&] { call.get(); });
  gate->open();
  EXPECT_TRUE(soon([&] { return has_ended->load(); }));
}

TEST(Handlers, a_worker_sees_its_own_messages_without_a_copy) {
  Job job;
  const auto worker = job.join("worker");
  std::atomic<const float*> seen{nullptr};
  worker->serve<Sum>([&](const Sum::Request& request, Context&) {
    seen = request.values.data();
    return Sum::Reply{std::vector<float>(1000, 2.0F), 0};
  });
  std::vector<float> values(1000, 1.0F);
  const float* const where = values.data();
  const auto reply = worker->call<Sum>("worker", {std::move(values)}).get();
  EXPECT_EQ(seen, where);
  EXPECT_EQ(reply.values, std::vector<float>(1000, 2.0F));
  // A request of another type under the same name is read as if it came from another program.
  worker->serve<Add>([](const Add::Request& r, Context&) { return Add::Reply{r.a + r.b}; });
  expect_call_error(CallError::Executed::kNo, {"add of worker worker", "field 1"},
                    [&] { worker->call<OtherAdd>("worker", {"two"}).get(); });
}

// ---- messages with spans and views ----

TEST(Handlers, a_message_that_was_told_does_not_need_the_memory_of_its_spans) {
  Job job;
  const auto caller = job.join("caller");
  std::vector<float> values(10'000, 1.0F);
  caller->tell<See>("callee", {values, "one"});  // no worker has this name yet
  std::fill(values.begin(), values.end(), 2.0F);
  std::atomic<bool> has_seen{false};
  auto options = job.options();
  options.prepare = [&](Workers& self) {
    self.serve<See>([&](const See::Request& request, Context&) {
      EXPECT_EQ(std::vector(request.values.begin(), request.values.end()),
                std::vector<float>(10'000, 1.0F));
      has_seen = true;
      return See::Reply{};
    });
  };
  const auto callee = job.join("callee", options);
  EXPECT_TRUE(soon([&] { return has_seen.load(); }));
}

TEST(Handlers, a_worker_s_own_message_does_not_need_the_memory_of_its_spans_after_the_call) {
  Job job;
  const auto worker = job.join("worker");
  Gate gate;
  std::atomic<bool> has_begun{false}, has_seen{false};
  worker->serve<See>([&](const See::Request& request, Context&) {
    has_begun = true;
    EXPECT_TRUE(gate.wait());
    EXPECT_EQ(std::vector(request.values.begin(), request.values.end()),
              std::vector<float>(10, 1.0F));
    EXPECT_EQ(request.text, "one");
    has_seen = true;
    return See::Reply{};
  });
  std::vector<float> values(10, 1.0F);
  std::string text = "one";
  {
    const auto given_up = worker->call<See>("worker", {values, text});
    EXPECT_TRUE(soon([&] { return has_begun.load(); }));
  }
  std::fill(values.begin(), values.end(), 2.0F);
  text = "two";
  gate.open();
  EXPECT_TRUE(soon([&] { return has_seen.load(); }));
}

// The reply is too large to be sent at once.
TEST(Handlers, a_reply_does_not_need_the_memory_of_its_spans) {
  Job job;
  auto options = job.options();
  options.host = "one";
  const auto callee = job.join("callee", options);
  callee->serve<See>([](const See::Request& request, Answer<See::Reply> answer) {
    std::vector<float> values(request.values.begin(), request.values.end());
    std::string text(request.text);
    answer.give({{{{values, text}}}});
    std::fill(values.begin(), values.end(), 2.0F);
    text = "two";
  });
  options.host = "other";
  const auto caller = job.join("caller", options);
  const std::vector<float> values(8'000'000, 1.0F);
  for (Workers* const from : {caller.get(), callee.get()}) {
    auto future = from->call<See>("callee", {values, "one"});
    const auto reply = future.get();
    ASSERT_TRUE(reply.seen.has_value());
    ASSERT_EQ(reply.seen->size(), 1U);
    const See::Request& seen = reply.seen->front();
    EXPECT_TRUE(std::equal(seen.values.begin(), seen.values.end(), values.begin(), values.end()));
    EXPECT_EQ(seen.text, "one");
  }
}

TEST(Handlers, many_threads_call_at_once) {
  Job job;
  auto options = job.options();
  options.max_calls = 32;
  const auto callee = job.join("callee", options);
  callee->serve<Add>([](const Add::Request& r, Context&) { return Add::Reply{r.a + r.b}; });
  const auto caller = job.join("caller");
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 100; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 30; ++i) {
          if (caller->call<Add>("callee", {t, i}).get().sum != t + i) ++wrong;
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
}

// Half of the calls that wait for credit reach their deadline; the others begin one after another.
TEST(Handlers, calls_that_wait_for_credit_begin_or_end_at_their_deadline) {
  Job job;
  auto options = job.options();
  options.max_calls = 1;
  const auto callee = job.join("callee", options);
  Gate gate;
  callee->serve<Wait>([&](const Nothing&, Context&) {
    EXPECT_TRUE(gate.wait());
    return Nothing{};
  });
  std::atomic<int> handled{0};
  callee->serve<Add>([&](const Add::Request& r, Context&) {
    ++handled;
    return Add::Reply{r.a + r.b};
  });
  const auto caller = job.join("caller");
  EXPECT_EQ(caller->call<Add>("callee", {1, 2}).get().sum, 3);
  auto blocked = caller->call<Wait>("callee");
  std::atomic<int> late{0}, right{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 40; ++t) {
      threads.emplace_back([&, t] {
        const bool waits = t % 2 == 0;
        try {
          const auto deadline = waits ? 30s : 100ms;
          if (caller->call<Add>("callee", {t, 1}, {.deadline = deadline}).get().sum == t + 1)
            ++right;
        } catch (const CallError& error) {
          EXPECT_FALSE(waits) << error.what();
          EXPECT_EQ(error.executed(), CallError::Executed::kNo);
          ++late;
        }
      });
    }
    EXPECT_TRUE(soon([&] { return late == 20; }));
    gate.open();
  }
  EXPECT_EQ(right, 20);
  EXPECT_EQ(handled, 21);  // with the first call
  blocked.get();
}

TEST(Handlers, calls_that_wait_for_credit_end_when_their_worker_leaves) {
  Job job;
  auto options = job.options();
  options.max_calls = 1;
  const auto callee = job.join("callee", options);
  Gate gate;
  std::atomic<int> handled{0};
  callee->serve<Wait>([&](const Nothing&, Context&) {
    ++handled;
    EXPECT_TRUE(gate.wait());
    return Nothing{};
  });
  const auto caller = job.join("caller");
  auto blocked = caller->call<Wait>("callee");
  EXPECT_TRUE(soon([&] { return handled == 1; }));
  std::atomic<int> refused{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 20; ++t) {
      threads.emplace_back([&] {
        // Threads that begin late find that the worker has left already.
        expect_error(ErrorCode::kInvalid, {"callee"},
                     [&] { caller->call<Wait>("callee", {}, {.deadline = 30s}).get(); });
        ++refused;
      });
    }
    caller->leave();
  }
  EXPECT_EQ(refused, 20);
  gate.open();
  EXPECT_EQ(handled, 1);
}

TEST(Handlers, workers_of_other_hosts_are_called_over_tcp_in_the_clear_or_encrypted) {
  for (const bool encrypts : {false, true}) {
    Job job;
    auto options = job.options();
    options.encrypt = encrypts;
    options.host = "one";
    const auto callee = job.join("callee", options);
    callee->serve<Sum>([](const Sum::Request& request, Context&) {
      double sum = 0;
      for (const float value : request.values) sum += value;
      return Sum::Reply{request.values, sum};
    });
    options.host = "other";
    const auto caller = job.join("caller", options);
    for (const std::size_t count : {0UL, 10UL, 1'000'000UL}) {
      const auto reply = caller->call<Sum>("callee", {std::vector<float>(count, 1.0F)}).get();
      EXPECT_EQ(reply.sum, static_cast<double>(count));
      EXPECT_EQ(reply.values.size(), count);
    }
    options.encrypt = !encrypts;
    const auto odd = job.join("odd", options);
    expect_call_error(CallError::Executed::kNo, {"sum of worker callee", "--encrypt"},
                      [&] { odd->call<Sum>("callee", {}, {.deadline = 500ms}).get(); });
  }
}

TEST(Handlers, a_message_above_the_limit_of_either_end_is_an_error) {
  Job job;
  auto small = job.options();
  small.max_message = 1000;
  const auto callee = job.join("callee", small);
  callee->serve<Sum>([](const Sum::Request& request, Context&) {
    return Sum::Reply{std::vector<float>(static_cast<std::size_t>(request.values[0])), 0};
  });
  const auto caller = job.join("caller");
  const std::vector<float> large(1000);
  // For the first call the limit is not known yet.
  expect_call_error(CallError::Executed::kNo,
                    {"sum of worker callee", "limit of 1000 bytes", "max_message"},
                    [&] { caller->call<Sum>("callee", {large}).get(); });
  expect_error(ErrorCode::kInvalid, {"sum of worker callee", "limit of 1000 bytes", "max_message"},
               [&] { caller->call<Sum>("callee", {large}).get(); });
  EXPECT_EQ(caller->call<Sum>("callee", {{100}}).get().values.size(), 100U);
  const auto limited = job.join("limited", small);
  expect_call_error(CallError::Executed::kYes, {"the reply of", "limit of 1000 bytes"},
                    [&] { limited->call<Sum>("callee", {{1000}}).get(); });
}

}  // namespace
}  // namespace paceline::rpc::testing_job
