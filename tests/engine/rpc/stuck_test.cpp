// Tests of hangs and of ends during a call: handlers that never answer, stores that hang, full
// queues in a circle, and workers whose own handlers end them.

#include <atomic>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "paceline/engine/store/store_request.h"

#include "tests/engine/rpc/job.h"
#include "tests/harness/open_descriptors.h"

namespace paceline::rpc::stuck {
namespace {

using namespace testing_job;

// ---- handlers ----

TEST(Stuck, a_call_that_is_never_answered_ends_at_its_deadline) {
  Job job;
  auto callee = job.join("callee");
  std::mutex mutex;
  std::vector<Answer<Add::Reply>> kept;
  callee->serve<Add>([&](const Add::Request&, Answer<Add::Reply> answer) {
    const std::lock_guard lock(mutex);
    kept.push_back(std::move(answer));
  });
  auto caller = job.join("caller");
  for (int i = 0; i < 2; ++i) {
    expect_call_error(CallError::Executed::kUnknown,
                      {"add of worker callee failed: no reply before its deadline; it is unknown"},
                      [&] { caller->call<Add>("callee", {}, {.deadline = 200ms}).get(); });
  }
  // The handler learns that its caller no longer waits; its late replies are dropped.
  const std::lock_guard lock(mutex);
  ASSERT_EQ(kept.size(), 2U);
  EXPECT_TRUE(kept[0].context().is_cancelled());
  kept[0].give({1});
  kept[0].give({2});
  // Replies are also dropped when neither the caller nor the worker exists any more.
  caller.reset();
  callee.reset();
  kept[1].give({3});
  kept.clear();
}

std::chrono::nanoseconds processor_time() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

TEST(Stuck, waiting_for_a_worker_that_is_not_there_costs_no_processor) {
  Job job;
  const auto caller = job.join("caller");
  const auto before = processor_time();
  expect_call_error(CallError::Executed::kNo, {"no worker is named 'nobody'"},
                    [&] { caller->call<Add>("nobody", {}, {.deadline = 2s}).get(); });
  EXPECT_LT(processor_time() - before, 500ms);
}

TEST(Stuck, whatever_a_handler_throws_is_the_caller_s_error) {
  Job job;
  const auto callee = job.join("callee");
  const auto other = job.join("other");
  const std::vector<std::pair<std::function<void()>, std::string>> rows = {
      {[] { throw std::runtime_error("first line\nsecond line"); }, "first line"},
      {[] { throw std::runtime_error(""); }, "fail of worker callee failed"},
      {[] { throw std::runtime_error(std::string(100'000, 'x')); }, "xxx"},
      {[] { throw std::runtime_error("\xff\xfe no text"); }, "no text"},
      {[] { throw 5; }, "fail of worker callee failed"},
      {[] { throw std::bad_alloc(); }, "fail of worker callee failed"},
      {[&] { other->call<Count>("callee").get(); }, "count of worker callee"},
  };
  std::atomic<std::size_t> row{0};
  callee->serve<Fail>([&](const Nothing&, Context&) {
    rows.at(row).first();
    return Nothing{};
  });
  const auto caller = job.join("caller");
  for (row = 0; row < rows.size(); ++row) {
    expect_call_error(CallError::Executed::kYes, {rows[row].second},
                      [&] { caller->call<Fail>("callee").get(); });
  }
}

TEST(Stuck, an_answer_that_was_given_counts_and_what_is_thrown_afterwards_does_not) {
  Job job;
  const auto callee = job.join("callee");
  callee->serve<Add>([](const Add::Request& request, Answer<Add::Reply> answer) {
    answer.give({request.a + request.b});
    throw std::runtime_error("too late");
  });
  const auto caller = job.join("caller");
  EXPECT_EQ(caller->call<Add>("callee", {2, 3}).get().sum, 5);
}

// ---- workers that their own code ends ----

class Fuse {
 public:
  static constexpr std::string_view kName = "fuse";
  using Arguments = Nothing;
  static inline std::function<void()> in_constructor, in_method, in_destructor;
  explicit Fuse(const Nothing& /*nothing*/) {
    if (in_constructor) in_constructor();
  }
  ~Fuse() {
    if (in_destructor) in_destructor();
  }
  Nothing burn(const Nothing& /*nothing*/) {
    if (in_method) in_method();
    return {};
  }
  static auto methods() { return std::tuple(method<&Fuse::burn>("burn")); }
};

TEST(Stuck, a_worker_may_be_ended_by_whatever_runs_in_it) {
  using Way = std::function<void(Workers & callee, Workers & caller, std::function<void()> end)>;
  const std::vector<std::pair<const char*, Way>> ways = {
      {"a handler",
       [](Workers& callee, Workers& caller, const auto& end) {
         callee.serve<Wait>([end](const Nothing&, Context&) {
           end();
           return Nothing{};
         });
         EXPECT_THROW(caller.call<Wait>("callee").get(), CallError);
       }},
      {"what it was told",
       [](Workers& callee, Workers& caller, const auto& end) {
         callee.serve<Wait>([end](const Nothing&, Context&) {
           end();
           return Nothing{};
         });
         caller.tell<Wait>("callee");
       }},
      {"a handler that answered before",
       [](Workers& callee, Workers& caller, const auto& end) {
         callee.serve<Wait>([end](const Nothing&, Answer<Nothing> answer) {
           answer.give({});
           end();
         });
         try {
           caller.call<Wait>("callee").get();
         } catch (const CallError&) {  // the worker's end was faster than the reply
         }
       }},
      {"a constructor",
       [](Workers& callee, Workers& caller, const auto& end) {
         Fuse::in_constructor = end;
         callee.serve<Fuse>();
         const auto fuse = caller.create<Fuse>("callee");
         EXPECT_THROW(fuse.call<&Fuse::burn>().get(), CallError);
       }},
      {"a method of an object",
       [](Workers& callee, Workers& caller, const auto& end) {
         Fuse::in_method = end;
         callee.serve<Fuse>();
         const auto fuse = caller.create<Fuse>("callee");
         auto first = fuse.call<&Fuse::burn>();
         auto second = fuse.call<&Fuse::burn>();
         EXPECT_THROW(first.get(), CallError);
         try {
           second.get();
           ADD_FAILURE() << "a worker that had left executed a call";
         } catch (const CallError& error) {
           // Only a call that arrived before the worker closed its connections has a reply.
           const bool was_refused = error.executed() == CallError::Executed::kNo;
           EXPECT_THAT(error.what(), testing::HasSubstr("fuse.burn of worker callee"));
           EXPECT_THAT(error.what(), testing::HasSubstr(was_refused ? "is leaving" : "has left"));
         }
       }},
      {"a destructor of an object",
       [](Workers& callee, Workers& caller, const auto& end) {
         Fuse::in_destructor = end;
         callee.serve<Fuse>();
         const auto fuse = caller.create<Fuse>("callee");
         fuse.call<&Fuse::burn>().get();
       }},
      {"a watcher", [](Workers& callee, Workers& /*caller*/,
                       const auto& end) { callee.watch([end](const WorkerInfo&) { end(); }); }},
  };
  for (const auto& [name, way] : ways) {
    SCOPED_TRACE(name);
    Job job;
    auto options = job.options();
    options.leave_timeout = 30s;  // the destructor must not wait for the code that calls it
    auto callee = job.join("callee", options);
    const auto caller = job.join("caller");
    std::mutex mutex;
    std::atomic<bool> has_ended{false};
    way(*callee, *caller, [&] {
      std::unique_ptr<Workers> last;
      {
        const std::lock_guard lock(mutex);
        last = std::move(callee);
      }
      if (!last) return;
      last.reset();
      has_ended = true;
    });
    EXPECT_TRUE(soon([&] { return has_ended.load(); }));
    expect_call_error(CallError::Executed::kNo, {"has left"},
                      [&] { caller->call<Add>("callee").get(); });
    Fuse::in_constructor = Fuse::in_method = Fuse::in_destructor = nullptr;
  }
}

// ---- full queues in a circle ----

class Thing {
 public:
  static constexpr std::string_view kName = "thing";
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

// A message with a reference arrives at a worker that has no credit left at the owner, because of
// calls that end later than this one.
TEST(Stuck, a_reference_is_held_although_the_queue_at_its_owner_is_full) {
  Job job;
  auto options = job.options();
  options.max_calls = 1;
  const auto a = job.join("a", options);
  const auto b = job.join("b", options);
  a->serve<Thing>();
  Gate gate;
  std::atomic<bool> runs{false};
  a->serve<Wait>([&](const Nothing&, Context&) {
    runs = true;
    EXPECT_TRUE(gate.wait());
    return Nothing{};
  });
  std::optional<RemoteRef<Thing>> kept;
  b->serve<Keep>([&](const Keep::Request& request, Context&) {
    kept = request.thing;
    return Nothing{};
  });
  auto blocked = b->call<Wait>("a");
  EXPECT_TRUE(soon([&] { return runs.load(); }));
  a->call<Keep>("b", {a->create<Thing>("a")}, {.deadline = 5s}).get();
  gate.open();
  blocked.get();
  kept->call<&Thing::touch>().get();
}

// A calls B, B calls A, and so on, each with one thread and one call. The chain grows as deep as
// possible and then ends with an error at the deadline. Afterwards both work as before, and
// references are still valid.
TEST(Stuck, a_circle_of_full_queues_ends_at_its_deadline_and_harms_nothing) {
  Job job;
  auto options = job.options();
  options.num_threads = 1;
  options.max_threads = 2;
  options.max_calls = 1;
  options.lease = 1s;
  const auto a = job.join("a", options);
  const auto b = job.join("b", options);
  for (const auto& [self, other] : {std::pair(a.get(), "b"), std::pair(b.get(), "a")}) {
    self->serve<Thing>();
    self->serve<Chain>([self = self, other = std::string(other)](const Chain::Request& request,
                                                                 Context& context) {
      if (request.depth == 0) return Chain::Reply{0};
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(context.deadline().remaining());
      return Chain::Reply{
          self->call<Chain>(other, {request.depth - 1, {}}, {.deadline = left}).get().depth + 1};
    });
  }
  const auto of_a = b->create<Thing>("a");
  const auto of_b = a->create<Thing>("b");
  of_a.call<&Thing::touch>().get();
  of_b.call<&Thing::touch>().get();
  const auto begun = std::chrono::steady_clock::now();
  try {
    EXPECT_EQ(a->call<Chain>("b", {50, {}}, {.deadline = 3s}).get().depth, 50);
  } catch (const CallError& error) {
    EXPECT_EQ(error.operation(), "chain") << error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 20s);
  EXPECT_TRUE(soon([&] {
    try {
      return a->call<Chain>("b", {0, {}}).get().depth == 0;
    } catch (const CallError&) {
      return false;
    }
  }));
  of_a.call<&Thing::touch>().get();
  of_b.call<&Thing::touch>().get();
  const auto left = std::chrono::steady_clock::now();
  b->leave();
  a->leave();
  EXPECT_LT(std::chrono::steady_clock::now() - left, 20s);
}

// ---- a store that hangs ----

class HangingStore final : public Store {
 public:
  StoreReply run(const StoreRequest& request) override {
    (void)gate.wait();
    return store_.run(request);
  }
  Gate gate;

 private:
  MemoryStore store_;
};

TEST(Stuck, a_store_that_hangs_costs_neither_calls_nor_the_end) {
  const auto store = std::make_shared<HangingStore>();
  store->gate.open();
  Job job(store);
  auto options = job.options();
  options.leave_timeout = 500ms;
  options.lease = 500ms;
  const auto callee = job.join("callee", options);
  callee->serve<Add>([](const Add::Request& r, Context&) { return Add::Reply{r.a + r.b}; });
  callee->serve<Thing>();
  auto caller = job.join("caller", options);
  const auto thing = caller->create<Thing>("callee");
  thing.call<&Thing::touch>().get();
  store->gate.close();
  const auto until = Deadline::after(2s);  // four leases
  while (!until.expired()) {
    EXPECT_EQ(caller->call<Add>("callee", {2, 3}).get().sum, 5);
    thing.call<&Thing::touch>().get();
    std::this_thread::sleep_for(20ms);  // makes no more than 50 rounds per second
  }
  expect_call_error(CallError::Executed::kNo, {"add of worker nobody", "deadline"},
                    [&] { caller->call<Add>("nobody", {}, {.deadline = 200ms}).get(); });
  const auto left = std::chrono::steady_clock::now();
  caller.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - left, 10s);
  store->gate.open();
}

// A store in which Directory::find(), once it has read that a worker has left, waits at a gate.
class SlowStore final : public Store {
 public:
  SlowStore(std::shared_ptr<Store> store, std::string key)
      : store_(std::move(store)), key_(std::move(key)) {}
  void be_slow() {
    present_ = store_->get(key_);
    is_slow_ = true;
  }
  StoreReply run(const StoreRequest& request) override {
    StoreReply reply = store_->run(request);
    if (request.keys.empty() || request.keys.front() != key_) return reply;
    if (request.command == StoreCommand::kCheck) finder_ = std::this_thread::get_id();
    const bool finds = request.command == StoreCommand::kGet && reply.values.front() != present_ &&
                       finder_ == std::this_thread::get_id();
    if (is_slow_ && finds && is_slow_.exchange(false)) {
      has_read.open();
      (void)gate.wait();
    }
    return reply;
  }
  Gate has_read, gate;

 private:
  const std::shared_ptr<Store> store_;
  const std::string key_;
  std::string present_;                    // the entry of the worker while it is present
  std::atomic<std::thread::id> finder_{};  // the thread that asked last whether there is an entry
  std::atomic<bool> is_slow_{false};
};

TEST(Stuck, a_call_made_while_an_earlier_process_is_found_gone_reaches_the_new_one) {
  const auto shared = std::make_shared<MemoryStore>();
  const auto store = std::make_shared<SlowStore>(shared, "rpc/worker/callee");
  Job job(shared);
  auto options = job.options();
  options.store = store;
  options.lease = 10s;
  const auto caller = job.join("caller", options);
  std::atomic<int> num_counted{0};
  const auto serve = [&](int more) {
    auto callee = job.join("callee");
    callee->serve<Add>(
        [more](const Add::Request& r, Context&) { return Add::Reply{r.a + r.b + more}; });
    callee->serve<Count>([&](const Nothing&, Context&) {
      ++num_counted;
      return Nothing();
    });
    return callee;
  };
  auto callee = serve(0);
  EXPECT_EQ(caller->call<Add>("callee", {2, 3}).get().sum, 5);
  store->be_slow();
  callee.reset();  // the caller loses its connection, and looks for the worker
  ASSERT_TRUE(store->has_read.wait());
  callee = serve(100);
  auto call = caller->call<Add>("callee", {2, 3});
  caller->tell<Count>("callee", {});
  store->gate.open();
  EXPECT_EQ(call.get().sum, 105);
  EXPECT_TRUE(soon([&] { return num_counted == 1; }));
}

// ---- leaks ----

TEST(Stuck, workers_that_come_and_go_leave_nothing_behind) {
  Job job;
  const auto stays = job.join("stays");
  stays->serve<Add>([](const Add::Request& r, Context&) { return Add::Reply{r.a + r.b}; });
  stays->serve<Thing>();
  const auto come_and_go = [&](int i) {
    const auto guest = job.join("guest" + std::to_string(i % 3));
    EXPECT_EQ(guest->call<Add>("stays", {2, 3}).get().sum, 5);
    const auto thing = guest->create<Thing>("stays");
    thing.call<&Thing::touch>().get();
    guest->serve<Add>([](const Add::Request& r, Context&) { return Add::Reply{r.a - r.b}; });
    EXPECT_EQ(stays->call<Add>(guest->name(), {2, 3}).get().sum, -1);
  };
  for (int i = 0; i < 3; ++i) come_and_go(i);
  const auto before = num_descriptors();
  for (int i = 0; i < 30; ++i) come_and_go(i);
  EXPECT_TRUE(soon([&] { return num_descriptors() <= before; }))
      << num_descriptors() << " descriptors, " << before << " before";
}

}  // namespace
}  // namespace paceline::rpc::stuck
