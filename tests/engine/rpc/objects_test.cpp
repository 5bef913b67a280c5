// Objects on other workers and references to them.

#include <atomic>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "paceline/engine/rpc/references.h"

#include "tests/engine/rpc/job.h"

namespace paceline::rpc::testing_job {
namespace {

std::atomic<int> num_counters{0};  // existing Counters

struct Amount {
  int value = 0;
  static auto fields(auto& m) { return std::tie(m.value); }
};

// The object that Counter::open() leaves behind for its caller.
std::atomic<int> num_cursors{0};
class Cursor {
 public:
  static constexpr std::string_view kName = "cursor";
  explicit Cursor(int value) : value_(value) { ++num_cursors; }
  ~Cursor() { --num_cursors; }
  Amount next(const Nothing& /*nothing*/) { return {++value_}; }
  static auto methods() { return std::tuple(method<&Cursor::next>("next")); }

 private:
  int value_;
};
struct Open {
  ObjectNumber kept = 0;
  bool fails = false;
  static auto fields(auto& m) { return std::tie(m.kept, m.fails); }
};
std::atomic<bool> may_open{true};

class Counter {
 public:
  static constexpr std::string_view kName = "counter";
  using Arguments = Amount;
  explicit Counter(const Amount& start) : value_(start.value) {
    if (value_ < 0) throw std::runtime_error("a counter begins at 0 or above");
    ++num_counters;
  }
  ~Counter() { --num_counters; }
  Amount add(const Amount& amount) { return {value_ += amount.value}; }
  Amount fail(const Nothing& /*nothing*/) { throw std::runtime_error("the counter is stuck"); }
  Amount open(const Open& request, Context& context) {
    EXPECT_TRUE(soon([] { return may_open.load(); }));
    if (request.fails) throw std::runtime_error("the counter is closed");
    keep_object(context, request.kept, std::make_shared<Cursor>(value_));
    return {value_};
  }
  static auto methods() {
    return std::tuple(method<&Counter::add>("add", Effect::kOnce), method<&Counter::fail>("fail"),
                      method<&Counter::open>("open", Effect::kOnce));
  }

 private:
  int value_;
};

// An object that can be fetched.
struct Record {
  static constexpr std::string_view kName = "record";
  std::string text = "new";
  Nothing write(const Amount& amount) {
    text = std::to_string(amount.value);
    return {};
  }
  static auto methods() { return std::tuple(method<&Record::write>("write")); }
  static auto fields(auto& m) { return std::tie(m.text); }
};

struct Use {
  static constexpr std::string_view kName = "use";
  struct Request {
    RemoteRef<Counter> counter;
    int amount = 0;
    static auto fields(auto& m) { return std::tie(m.counter, m.amount); }
  };
  using Reply = Amount;
};
struct UseMany {
  static constexpr std::string_view kName = "use_many";
  struct Request {
    RemoteRef<Counter> counter;
    std::span<const int> amounts;
    static auto fields(auto& m) { return std::tie(m.counter, m.amounts); }
  };
  using Reply = Amount;
};
// Finds an object by its number.
struct Find {
  static constexpr std::string_view kName = "find";
  struct Request {
    ObjectNumber number = 0;
    static auto fields(auto& m) { return std::tie(m.number); }
  };
  using Reply = Amount;
};
struct Give {
  static constexpr std::string_view kName = "give";
  using Request = Nothing;
  struct Reply {
    RemoteRef<Counter> counter;
    static auto fields(auto& m) { return std::tie(m.counter); }
  };
};

class Objects : public testing::Test {
 protected:
  Objects() {
    EXPECT_EQ(num_counters, 0);
    owner_->serve<Counter>();
    owner_->serve<Record>();
  }
  template <class Body>
  static void expect_reference_error(ReferenceError::Reason reason,
                                     const std::vector<std::string>& words, Body body) {
    try {
      body();
      FAIL() << "nothing was thrown";
    } catch (const ReferenceError& error) {
      EXPECT_EQ(static_cast<int>(error.reason()), static_cast<int>(reason)) << error.what();
      EXPECT_EQ(error.executed(), CallError::Executed::kNo);
      for (const auto& word : words) EXPECT_THAT(error.what(), HasSubstr(word));
    }
  }

  Job job_;
  std::unique_ptr<Workers> owner_ = job_.join("owner");
  std::unique_ptr<Workers> holder_ = job_.join("holder");
};

TEST_F(Objects, calls_wait_in_order_behind_the_constructor) {
  auto counter = holder_->create<Counter>("owner", {100});
  std::vector<Future<Amount>> futures;
  for (int i = 1; i <= 200; ++i) futures.push_back(counter.call<&Counter::add>({i}));
  int sum = 100;
  for (int i = 1; i <= 200; ++i) {
    EXPECT_EQ(futures[static_cast<std::size_t>(i - 1)].get().value, sum += i);
  }
  expect_call_error(CallError::Executed::kYes, {"counter.fail of worker owner", "stuck"},
                    [&] { counter.call<&Counter::fail>().get(); });
  EXPECT_EQ(num_counters, 1);
  const auto copy = counter;
  counter = {};
  EXPECT_EQ(copy.call<&Counter::add>({1}).get().value, sum + 1);
}

TEST_F(Objects, an_object_lives_as_long_as_references_to_it) {
  {
    const auto counter = holder_->create<Counter>("owner");
    EXPECT_EQ(counter.call<&Counter::add>({5}).get().value, 5);
  }
  EXPECT_TRUE(soon([] { return num_counters == 0; }));
  const auto counter = holder_->create<Counter>("owner");
  EXPECT_EQ(counter.call<&Counter::add>({5}).get().value, 5);
  holder_.reset();
  EXPECT_TRUE(soon([] { return num_counters == 0; }));
  expect_error(ErrorCode::kInvalid, {"counter.add", "has left"},
               [&] { counter.call<&Counter::add>({5}).get(); });
}

TEST_F(Objects, calls_behind_a_constructor_that_throws_say_why) {
  const auto counter = holder_->create<Counter>("owner", {-1});
  auto first = counter.call<&Counter::add>({1});
  auto second = counter.call<&Counter::add>({1});
  for (auto* future : {&first, &second}) {
    expect_reference_error(ReferenceError::Reason::kNoObject,
                           {"counter.add of worker owner", "its constructor failed", "begins at 0"},
                           [&] { future->get(); });
  }
  EXPECT_EQ(num_counters, 0);
}

TEST_F(Objects, they_can_be_fetched) {
  const auto record = holder_->create<Record>("owner");
  EXPECT_EQ(record.fetch().get().text, "new");
  record.call<&Record::write>({7}).get();
  EXPECT_EQ(record.fetch().get().text, "7");
}

TEST_F(Objects, a_reference_is_passed_on_and_its_sender_may_let_go_at_once) {
  const auto third = job_.join("third");
  std::mutex mutex;
  std::vector<RemoteRef<Counter>> kept;
  third->serve<Use>([&](const Use::Request& request, Context&) {
    const std::lock_guard lock(mutex);
    kept.push_back(request.counter);
    return request.counter.call<&Counter::add>({request.amount}).get();
  });
  std::vector<Future<Amount>> futures;
  for (int i = 0; i < 20; ++i) {
    auto counter = holder_->create<Counter>("owner", {i});
    futures.push_back(holder_->call<Use>("third", {std::move(counter), 1000}));
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(futures[static_cast<std::size_t>(i)].get().value, 1000 + i);
  }
  futures.clear();
  holder_.reset();
  for (const auto& counter : kept) EXPECT_GE(counter.call<&Counter::add>({1}).get().value, 1001);
  EXPECT_EQ(num_counters, 20);
  kept.clear();
  EXPECT_TRUE(soon([] { return num_counters == 0; }));
}

TEST_F(Objects, a_call_that_is_too_large_keeps_no_object_alive) {
  auto options = job_.options();
  options.max_message = 1000;
  const auto limited = job_.join("limited", options);
  const std::vector<int> many(1000);
  {
    const auto counter = limited->create<Counter>("owner");
    EXPECT_EQ(counter.call<&Counter::add>({5}).get().value, 5);
    expect_error(ErrorCode::kInvalid, {"use_many of worker holder", "limit of 1000 bytes"}, [&] {
      limited->call<UseMany>("holder", {counter, many});
    });
  }
  EXPECT_TRUE(soon([] { return num_counters == 0; }));
}

TEST_F(Objects, a_reply_may_have_a_reference_also_to_the_owner_itself) {
  owner_->serve<Give>([&](const Nothing&, Context&) {
    return Give::Reply{owner_->create<Counter>("owner", {40})};
  });
  auto given = holder_->call<Give>("owner");
  const auto counter = given.get().counter;
  EXPECT_EQ(counter.owner(), "owner");
  EXPECT_EQ(counter.call<&Counter::add>({2}).get().value, 42);
  // The reference is also passed back to the object's owner.
  owner_->serve<Use>([](const Use::Request& request, Context&) {
    return request.counter.call<&Counter::add>({request.amount}).get();
  });
  EXPECT_EQ(holder_->call<Use>("owner", {counter, 8}).get().value, 50);
  EXPECT_EQ(owner_->call<Use>("owner", {owner_->create<Counter>("owner", {1}), 1}).get().value, 2);
  owner_->serve<UseMany>([](const UseMany::Request& request, Context&) {
    int last = 0;
    for (const int amount : request.amounts)
      last = request.counter.call<&Counter::add>({amount}).get().value;
    return Amount{last};
  });
  const std::vector<int> amounts = {1, 2};
  auto made = owner_->create<Counter>("owner", {1});
  EXPECT_EQ(owner_->call<UseMany>("owner", {std::move(made), amounts}).get().value, 4);
}

TEST_F(Objects, what_cannot_be_used_any_more_says_why) {
  using Reason = ReferenceError::Reason;
  const auto counter = holder_->create<Counter>("owner");
  EXPECT_EQ(counter.call<&Counter::add>({5}).get().value, 5);
  owner_.reset();
  // A call that was sent before the end of the connection was noticed may have been executed.
  EXPECT_TRUE(soon([&] {
    try {
      counter.call<&Counter::add>({5}).get();
    } catch (const ReferenceError&) {
      return true;
    } catch (const CallError& error) {
      EXPECT_EQ(error.executed(), CallError::Executed::kUnknown);
    }
    return false;
  }));
  expect_reference_error(Reason::kOwnerLost, {"counter.add", "owner"},
                         [&] { counter.call<&Counter::add>({5}).get(); });
  owner_ = job_.join("owner");
  owner_->serve<Counter>();
  const auto next = holder_->create<Counter>("owner");
  EXPECT_EQ(next.call<&Counter::add>({5}).get().value, 5);
  expect_reference_error(Reason::kOwnerLost, {"counter.add", "another worker has the same name"},
                         [&] { counter.call<&Counter::add>({5}).get(); });

  expect_error(ErrorCode::kInvalid, {"refers to nothing"},
               [] { RemoteRef<Counter>().call<&Counter::add>({5}).get(); });
  expect_error(ErrorCode::kInvalid, {"holder", "create", "no worker is named 'nobody'"},
               [&] { (void)holder_->create<Counter>("nobody", {}, {.deadline = 100ms}); });
  expect_error(ErrorCode::kInvalid, {"counter.create already has a handler"},
               [&] { owner_->serve<Counter>(); });

  Job other_job;
  const auto stranger = other_job.join("stranger");
  stranger->serve<Use>([](const Use::Request&, Context&) { return Amount{}; });
  const auto other = other_job.join("other");
  expect_error(ErrorCode::kInvalid, {"belongs to another worker or job"}, [&] {
    other->call<Use>("stranger", {next, 1}).get();
  });
}

// A worker may create an object at a later process before it learns that the earlier process of
// the same name has ended.
TEST(ReferenceTable, keeps_the_references_to_a_later_process_when_the_earlier_one_is_lost) {
  const auto table = std::make_shared<ReferenceTable>("holder", LeaseTime(1s), nullptr);
  const auto before = table->created({"owner", "first incarnation", 1});
  const auto after = table->created({"owner", "second incarnation", 2});
  table->lose({"owner", "first incarnation"});
  EXPECT_EQ(table->num_objects(), 1U);
  table->lose({"owner", "second incarnation"});
  EXPECT_EQ(table->num_objects(), 0U);
}

TEST_F(Objects, a_method_leaves_an_object_behind_for_its_caller) {
  owner_->serve<Cursor>();
  const auto counter = holder_->create<Counter>("owner", {7});
  {
    auto [reply, cursor] = counter.call_and_keep<&Counter::open, Cursor>({});
    EXPECT_EQ(reply.get().value, 7);
    EXPECT_EQ(cursor.call<&Cursor::next>().get().value, 8);
    EXPECT_EQ(cursor.call<&Cursor::next>().get().value, 9);
    EXPECT_EQ(num_cursors, 1);
  }
  EXPECT_TRUE(soon([] { return num_cursors == 0; }));
  // Only its caller holds the cursor: it is destroyed when that worker leaves.
  auto [reply, cursor] = counter.call_and_keep<&Counter::open, Cursor>({});
  reply.get();
  holder_.reset();
  EXPECT_TRUE(soon([] { return num_cursors == 0; }));
}

TEST_F(Objects, a_method_that_fails_or_comes_too_late_leaves_nothing_behind) {
  owner_->serve<Cursor>();
  const auto counter = holder_->create<Counter>("owner", {7});
  {
    auto [reply, cursor] = counter.call_and_keep<&Counter::open, Cursor>({.fails = true});
    expect_call_error(CallError::Executed::kYes, {"counter.open", "the counter is closed"},
                      [&reply = reply] { reply.get(); });
    expect_reference_error(ReferenceError::Reason::kNoObject, {"cursor.next"},
                           [&cursor = cursor] { cursor.call<&Cursor::next>().get(); });
  }
  may_open = false;
  {
    auto given_up = counter.call_and_keep<&Counter::open, Cursor>({});
    const auto late = counter.call_and_keep<&Counter::open, Cursor>({}, {.deadline = 50ms});
    (void)given_up, (void)late;
  }
  std::this_thread::sleep_for(300ms);  // both objects are released in this time
  may_open = true;
  EXPECT_EQ(counter.call<&Counter::add>({1}).get().value, 8);  // runs after both calls of open()
  EXPECT_EQ(num_cursors, 0);
}

TEST_F(Objects, a_handler_finds_the_objects_of_its_worker_by_their_numbers) {
  owner_->serve<Cursor>();
  owner_->serve<Find>([](const Find::Request& request, Context& context) {
    // The object has another class.
    EXPECT_EQ(find_object<Cursor>(context, request.number), nullptr);
    const auto counter = find_object<Counter>(context, request.number);
    return counter ? counter->add({1}) : Amount{-1};
  });
  const auto counter = holder_->create<Counter>("owner", {7});
  counter.call<&Counter::add>({1}).get();
  EXPECT_EQ(holder_->call<Find>("owner", {counter.number()}).get().value, 9);
  EXPECT_EQ(holder_->call<Find>("owner", {counter.number() + 1}).get().value, -1);
}

TEST_F(Objects, holders_renew_as_often_as_the_owner_s_lease_asks_for) {
  auto options = job_.options();
  options.lease = 300ms;
  const auto strict = job_.join("strict", options);
  strict->serve<Counter>();
  const auto counter = holder_->create<Counter>("strict");
  EXPECT_EQ(counter.call<&Counter::add>({5}).get().value, 5);
  std::this_thread::sleep_for(1500ms);  // longer than the lease, which must be renewed
  EXPECT_EQ(counter.call<&Counter::add>({5}).get().value, 10);
}

}  // namespace
}  // namespace paceline::rpc::testing_job
