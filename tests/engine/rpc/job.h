#pragma once

// A job of workers within the test's process, and methods to call.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/rpc/workers.h"
#include "paceline/engine/store/memory_store.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/wait_until.h"

namespace paceline::rpc::testing_job {

using namespace std::chrono_literals;
using testing::HasSubstr;

// A gate that the test opens.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    opened_.notify_all();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    is_open_ = false;
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return opened_.wait_for(lock, 20s, [this] { return is_open_; });
  }

 private:
  std::mutex mutex_;  // guards is_open_
  std::condition_variable opened_;
  bool is_open_ = false;
};

struct Add {
  static constexpr std::string_view kName = "add";
  static constexpr Effect kEffect = Effect::kRepeatable;
  struct Request {
    int a = 0, b = 0;
    static auto fields(auto& m) { return std::tie(m.a, m.b); }
  };
  struct Reply {
    int sum = 0;
    static auto fields(auto& m) { return std::tie(m.sum); }
  };
};
struct Count {
  static constexpr std::string_view kName = "count";
  static constexpr Effect kEffect = Effect::kOnce;
  using Request = Nothing;
  using Reply = Nothing;
};
struct Fail {
  static constexpr std::string_view kName = "fail";
  using Request = Nothing;
  using Reply = Nothing;
};
struct Wait {
  static constexpr std::string_view kName = "wait";
  using Request = Nothing;
  using Reply = Nothing;
};
struct Chain {
  static constexpr std::string_view kName = "chain";
  struct Request {
    int depth = 0;
    std::string back;
    static auto fields(auto& m) { return std::tie(m.depth, m.back); }
  };
  struct Reply {
    int depth = 0;
    static auto fields(auto& m) { return std::tie(m.depth); }
  };
};
struct Sum {
  static constexpr std::string_view kName = "sum";
  struct Request {
    std::vector<float> values;
    static auto fields(auto& m) { return std::tie(m.values); }
  };
  struct Reply {
    std::vector<float> values;
    double sum = 0;
    static auto fields(auto& m) { return std::tie(m.values, m.sum); }
  };
};

// The type that another program expects for method `add`.
struct OtherAdd {
  static constexpr std::string_view kName = "add";
  struct Request {
    std::string text;
    static auto fields(auto& m) { return std::tie(m.text); }
  };
  using Reply = Nothing;
};

class Job {
 public:
  Job() = default;
  explicit Job(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  Store& store() const { return *store_; }

  std::unique_ptr<Workers> join(const std::string& name) { return join(name, options()); }
  std::unique_ptr<Workers> join(const std::string& name, const JoinOptions& options) {
    return rpc::join(name, options);
  }
  JoinOptions options() const {
    return {.role = "tester",
            .store = store_,
            .secret = secret_,
            .address = "127.0.0.1",
            .deadline = 20s};
  }

 private:
  std::shared_ptr<Store> store_ = std::make_shared<MemoryStore>();
  Secret secret_ = Secret::generate();
};

inline bool soon(const std::function<bool()>& condition) {
  return harness::wait_until(condition, Deadline::after(20s));
}

template <class Body>
void expect_call_error(CallError::Executed executed, const std::vector<std::string>& words,
                       Body body) {
  try {
    body();
    FAIL() << "nothing was thrown";
  } catch (const CallError& error) {
    EXPECT_EQ(static_cast<int>(error.executed()), static_cast<int>(executed)) << error.what();
    EXPECT_NE(error.operation(), "") << error.what();
    EXPECT_TRUE(error.code() != ErrorCode::kTimeout || error.deadline()) << error.what();
    for (const auto& word : words) EXPECT_THAT(error.what(), HasSubstr(word));
  }
}

}  // namespace paceline::rpc::testing_job
