// Impossible requests of a program get one clear error line and change nothing.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/engine/rpc/job.h"
#include "tests/harness/open_descriptors.h"
#include "tests/harness/says.h"

namespace paceline::rpc::bad_input {
namespace {

using harness::Says;

using namespace testing_job;

std::atomic<int> num_things{0};
class Thing {
 public:
  static constexpr std::string_view kName = "thing";
  using Arguments = Sum::Request;
  explicit Thing(const Arguments& /*arguments*/) { ++num_things; }
  ~Thing() { --num_things; }
  Nothing fill(const Sum::Request& /*request*/) { return {}; }
  static auto methods() { return std::tuple(method<&Thing::fill>("fill")); }
};
struct Use {
  static constexpr std::string_view kName = "use";
  struct Request {
    RemoteRef<Thing> thing;
    static auto fields(auto& m) { return std::tie(m.thing); }
  };
  using Reply = Nothing;
};
struct Give {
  static constexpr std::string_view kName = "give";
  using Request = Nothing;
  using Reply = Use::Request;
};
// A class with a method whose full name is that of an ordinary method.
struct OtherThing {
  static constexpr std::string_view kName = "other_thing";
  Nothing touch(const Nothing& /*nothing*/) { return {}; }
  static auto methods() { return std::tuple(method<&OtherThing::touch>("touch")); }
};
struct PlainTouch {
  static constexpr std::string_view kName = "other_thing.touch";
  using Request = Nothing;
  using Reply = Nothing;
};
// The method that create<OtherThing>() calls.
struct CreateOtherThing {
  static constexpr std::string_view kName = "other_thing.create";
  using Request = Nothing;
  using Reply = Nothing;
};
struct TwiceTheSame {
  static constexpr std::string_view kName = "twice";
  Nothing touch(const Nothing& /*nothing*/) { return {}; }
  static auto methods() {
    return std::tuple(method<&TwiceTheSame::touch>("touch"), method<&TwiceTheSame::touch>("touch"));
  }
};

// The text of the Error that `body` throws; empty if it throws none.
std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}
void expect_line(const std::vector<std::string>& words, const std::function<void()>& body) {
  const std::string line = error_of(body);
  EXPECT_FALSE(line.empty()) << "nothing was thrown";
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  for (const auto& word : words) EXPECT_THAT(line, HasSubstr(word));
}

class BadInput : public testing::Test {
 protected:
  BadInput() {
    callee_->serve<Add>([](const Add::Request& r, Context&) { return Add::Reply{r.a + r.b}; });
    callee_->serve<Thing>();
  }
  void expect_usable() { EXPECT_EQ(caller_->call<Add>("callee", {2, 3}).get().sum, 5); }

  Job job_;
  std::unique_ptr<Workers> callee_ = job_.join("callee");
  std::unique_ptr<Workers> caller_ = job_.join("caller");
};

// ---- names ----

TEST_F(BadInput, of_many_that_take_one_name_at_once_one_has_it) {
  expect_usable();
  const auto before = num_descriptors();
  std::atomic<int> num_refused{0};
  std::vector<std::unique_ptr<Workers>> joined(8);
  {
    std::vector<std::jthread> threads;
    for (auto& place : joined) {
      threads.emplace_back([&] {
        try {
          place = job_.join("wanted");
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), Says("rpc.name_taken", "wanted"));
          ++num_refused;
        }
      });
    }
  }
  EXPECT_EQ(num_refused, 7);
  std::erase(joined, nullptr);
  ASSERT_EQ(joined.size(), 1U);
  joined.front()->serve<Wait>([](const Nothing&, Context&) { return Nothing{}; });
  caller_->call<Wait>("wanted").get();
  joined.clear();
  // The failed calls have left no descriptor open.
  EXPECT_TRUE(soon([&] { return num_descriptors() <= before; }))
      << num_descriptors() << " descriptors, " << before << " before";
}

TEST_F(BadInput, a_name_that_nobody_has_is_answered_with_the_nearest) {
  const CallOptions soon_over{.deadline = 300ms};
  const std::vector<std::string> near = {"no worker is named 'callees'", "did you mean 'callee'?"};
  expect_line(near, [&] { caller_->call<Add>("callees", {}, soon_over).get(); });
  expect_line(near, [&] { (void)caller_->create<Thing>("callees", {}, soon_over); });
  expect_line(near, [&] {
    for (int i = 0; i < 2000; ++i) caller_->tell<Add>("callees");
  });
  const std::string far = error_of([&] { caller_->call<Add>("zebra", {}, soon_over).get(); });
  EXPECT_THAT(far, Says("rpc.nobody", "zebra"));
  EXPECT_THAT(far, testing::Not(Says("rpc.did_you_mean")));
  expect_usable();
}

TEST_F(BadInput, a_name_of_one_that_has_left_says_so) {
  callee_.reset();
  expect_line({"add of worker callee", "has left"}, [&] { caller_->call<Add>("callee").get(); });
  expect_line({"create", "worker callee", "has left"},
              [&] { (void)caller_->create<Thing>("callee"); });
}

TEST_F(BadInput, names_that_cannot_be) {
  for (const std::string& name : {std::string(), std::string(129, 'x'), std::string("two\nlines"),
                                  std::string("nul\0l", 5), std::string("\x7f")}) {
    expect_line({"join: a worker's name must"}, [&] { job_.join(name); });
  }
  EXPECT_EQ(job_.join(std::string(128, 'x'))->list().size(), 3U);
}

TEST_F(BadInput, a_worker_whose_preparation_fails_has_not_been_there) {
  expect_usable();
  const auto before = num_descriptors();
  auto options = job_.options();
  options.prepare = [](Workers& self) {
    self.serve<Add>([](const Add::Request&, Context&) { return Add::Reply{}; });
    throw Error(ErrorCode::kSystem, "the file of weights is missing");
  };
  expect_line({"the file of weights is missing"}, [&] { job_.join("wanted", options); });
  EXPECT_TRUE(soon([&] { return num_descriptors() <= before; }));
  EXPECT_EQ(caller_->list().size(), 2U);
  EXPECT_EQ(job_.join("wanted")->name(), "wanted");
}

// ---- before serving and after leaving ----

TEST_F(BadInput, a_call_before_its_callee_joins_waits_for_it) {
  auto call = caller_->call<Wait>("late");
  EXPECT_FALSE(call.is_ready());
  const auto late = job_.join("late");
  late->serve<Wait>([](const Nothing&, Context&) { return Nothing{}; });
  try {
    call.get();
  } catch (const CallError& error) {  // the call arrived before the method was served
    EXPECT_EQ(error.executed(), CallError::Executed::kNo) << error.what();
  }
}

TEST_F(BadInput, nothing_is_called_after_leave) {
  const auto thing = caller_->create<Thing>("callee");
  thing.call<&Thing::fill>().get();
  auto under_way = caller_->call<Add>("callee", {2, 3});
  caller_->leave();
  caller_->leave();  // the second call does nothing
  EXPECT_EQ(caller_->name(), "caller");
  const std::vector<std::string> words = {"caller", "a call to callee after leave()"};
  expect_line(words, [&] { caller_->call<Add>("callee"); });
  expect_line(words, [&] { caller_->tell<Add>("callee"); });
  expect_line(words, [&] { (void)caller_->create<Thing>("callee"); });
  expect_line(words, [&] { thing.call<&Thing::fill>(); });
  try {
    under_way.get();
  } catch (const CallError& error) {
    EXPECT_THAT(error.what(), HasSubstr("is leaving"));
  }
  caller_.reset();
  expect_line({"worker callee", "has left"}, [&] { thing.call<&Thing::fill>(); });
  EXPECT_TRUE(soon([] { return num_things == 0; }));
}

// ---- messages above the limit ----

class Limits : public BadInput {
 protected:
  Limits() {
    auto options = job_.options();
    options.max_message = 2000;
    small_ = job_.join("small", options);
    small_->serve<Thing>();
    small_->serve<Add>([](const Add::Request& r, Context&) { return Add::Reply{r.a + r.b}; });
    small_->serve<Sum>([this](const Sum::Request& request, Context&) {
      ++num_handled_;
      return Sum::Reply{std::vector<float>(static_cast<std::size_t>(request.values.at(0))), 0};
    });
  }
  static Sum::Request large() { return {std::vector<float>(1000)}; }

  std::atomic<int> num_handled_{0};
  std::unique_ptr<Workers> small_;
};

TEST_F(Limits, what_is_too_large_names_the_limit_and_the_option) {
  const std::vector<std::string> words = {"worker small", "limit of 2000 bytes", "max_message"};
  // Each kind of call, once before the callee's limit is known and once after.
  expect_line(words, [&] { caller_->call<Sum>("small", large()).get(); });
  expect_line(words, [&] { caller_->call<Sum>("small", large()).get(); });
  expect_line(words, [&] { caller_->tell<Sum>("small", large()); });
  expect_line(words, [&] { (void)caller_->create<Thing>("small", large()); });
  const auto thing = caller_->create<Thing>("small");
  expect_line(words, [&] { thing.call<&Thing::fill>(large()).get(); });
  thing.call<&Thing::fill>().get();
  auto options = job_.options();
  options.max_message = 2000;
  const auto caller = job_.join("small_caller", options);
  expect_line({"the reply of", "limit of 2000 bytes", "max_message"},
              [&] { caller->call<Sum>("small", {{1000}}).get(); });
  EXPECT_EQ(num_handled_, 1);
}

TEST_F(Limits, what_is_told_and_too_large_costs_nobody_the_connection) {
  // Both calls are made before the connection exists, so the callee's limit is not known.
  caller_->tell<Sum>("small", large());
  auto call = caller_->call<Sum>("small", {{1}});
  EXPECT_EQ(call.get().values.size(), 1U);
  EXPECT_EQ(num_handled_, 1);
  for (int i = 0; i < 3000; ++i) {  // messages without a reply do not use up the credit either
    EXPECT_TRUE(
        soon([&] { return error_of([&] { caller_->tell<Sum>("small", {{0}}); }).empty(); }));
  }
  EXPECT_TRUE(soon([&] { return num_handled_ == 3001; }));
}

TEST_F(Limits, many_calls_at_a_worker_of_small_messages) {
  // The acknowledgements together are longer than the longest message.
  for (int round = 0; round < 3; ++round) {
    std::vector<Future<Add::Reply>> futures;
    for (int i = 0; i < 1000; ++i) futures.push_back(caller_->call<Add>("small", {i, 1}));
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(futures[static_cast<std::size_t>(i)].get().sum, i + 1);
    // Calls that are abandoned together.
    for (int i = 0; i < 1000; ++i) (void)caller_->call<Add>("small", {i, 1});
  }
  EXPECT_EQ(caller_->call<Add>("small", {1, 1}).get().sum, 2);
}

TEST_F(Limits, many_references_to_objects_of_a_worker_of_small_messages_are_released) {
  std::vector<RemoteRef<Thing>> things;
  for (int i = 0; i < 1000; ++i) things.push_back(caller_->create<Thing>("small"));
  things.back().call<&Thing::fill>().get();
  EXPECT_TRUE(soon([] { return num_things == 1000; }));
  things.clear();
  EXPECT_TRUE(soon([] { return num_things == 0; })) << num_things << " were not released";
}

// ---- references ----

TEST_F(BadInput, a_reference_of_another_job_is_refused_on_every_way) {
  Job other_job;
  const auto other_owner = other_job.join("owner");
  other_owner->serve<Thing>();
  const auto other = other_job.join("other");
  const auto foreign = other->create<Thing>("owner");
  foreign.call<&Thing::fill>().get();

  std::atomic<int> num_used{0};
  callee_->serve<Use>([&](const Use::Request&, Context&) {
    ++num_used;
    return Nothing{};
  });
  callee_->serve<Give>([&](const Nothing&, Context&) { return Give::Reply{foreign}; });
  const std::vector<std::string> words = {"a reference that belongs to another worker or job",
                                          "worker owner"};
  expect_line(words, [&] { caller_->call<Use>("callee", {foreign}).get(); });
  expect_line(words, [&] { caller_->tell<Use>("callee", {foreign}); });
  expect_line(words, [&] { caller_->call<Give>("callee").get(); });
  expect_usable();
  EXPECT_EQ(num_used, 0);
  foreign.call<&Thing::fill>().get();
}

TEST_F(BadInput, what_is_told_may_carry_references_whose_sender_lets_go) {
  const auto third = job_.join("third");
  std::atomic<int> num_filled{0}, num_errors{0};
  third->serve<Use>([&](const Use::Request& request, Context&) {
    try {
      request.thing.call<&Thing::fill>().get();
      ++num_filled;
    } catch (const CallError& error) {
      ++num_errors;
      ADD_FAILURE() << error.what();
    }
    return Nothing{};
  });
  for (int i = 0; i < 50; ++i) caller_->tell<Use>("third", {caller_->create<Thing>("callee")});
  EXPECT_TRUE(soon([&] { return num_filled + num_errors == 50; }));
  EXPECT_EQ(num_errors, 0);
}

// ---- handlers ----

TEST_F(BadInput, a_handler_that_is_registered_twice_changes_nothing) {
  expect_line({"callee", "add already has a handler"}, [&] {
    callee_->serve<Add>([](const Add::Request&, Context&) { return Add::Reply{-1}; });
  });
  expect_usable();
  callee_->serve<PlainTouch>([](const Nothing&, Context&) { return Nothing{}; });
  expect_line({"other_thing.touch already has a handler"}, [&] { callee_->serve<OtherThing>(); });
  expect_line({"no handler"}, [&] { caller_->call<CreateOtherThing>("callee").get(); });
  caller_->call<PlainTouch>("callee").get();
  expect_line({"twice.touch already has a handler"}, [&] { callee_->serve<TwiceTheSame>(); });
}

// A method whose reply has a different type in the callee's program.
struct OddAdd {
  static constexpr std::string_view kName = "add";
  using Request = Add::Request;
  struct Reply {
    std::string text;
    static auto fields(auto& m) { return std::tie(m.text); }
  };
};
TEST_F(BadInput, a_reply_that_cannot_be_read_says_that_the_call_was_executed) {
  for (Workers* const caller : {caller_.get(), callee_.get()}) {
    expect_call_error(
        CallError::Executed::kYes,
        {"add of worker callee was executed", "field 1", "expects text, but the message has int32"},
        [&] {
          caller->call<OddAdd>("callee", {1, 2}).get();
        });
  }
  expect_usable();
}

// ---- another version of a message ----

struct NewAdd {
  static constexpr std::string_view kName = "add";
  struct Request {
    int a = 0, b = 0;
    std::string note = "none";
    static auto fields(auto& m) { return std::tie(m.a, m.b, m.note); }
  };
  struct Reply {
    int sum = 0;
    std::string note = "none";
    static auto fields(auto& m) { return std::tie(m.sum, m.note); }
  };
};
TEST_F(BadInput, programs_of_two_versions_call_each_other) {
  // First a newer caller, then a newer callee.
  EXPECT_EQ(caller_->call<NewAdd>("callee", {2, 3, "x"}).get().note, "none");
  const auto newer = job_.join("newer");
  newer->serve<NewAdd>([](const NewAdd::Request& r, Context&) {
    return NewAdd::Reply{r.a + r.b, r.note};
  });
  EXPECT_EQ(caller_->call<Add>("newer", {2, 3}).get().sum, 5);
  EXPECT_EQ(caller_->call<NewAdd>("newer", {2, 3, "x"}).get().note, "x");
}

}  // namespace
}  // namespace paceline::rpc::bad_input
