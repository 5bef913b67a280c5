// One suite for every kind of Store. A case opens any number of handles to the same contents, like
// the ranks of a job.

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/engine/store/file_store.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/engine/store/prefix_store.h"
#include "paceline/engine/store/store.h"
#include "paceline/engine/store/tcp_store.h"
#include "paceline/engine/store/tcp_store_server.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

// Hosts a store and opens handles to it.
class Host {
 public:
  virtual ~Host() = default;
  virtual std::shared_ptr<Store> open() = 0;
};

class MemoryHost final : public Host {
 public:
  std::shared_ptr<Store> open() override { return store_; }

 private:
  std::shared_ptr<Store> store_ = std::make_shared<MemoryStore>();
};

class FileHost final : public Host {
 public:
  std::shared_ptr<Store> open() override {
    return std::make_shared<FileStore>(directory_.file("store"));
  }

 private:
  FreshDirectory directory_;
};

class TcpHost final : public Host {
 public:
  std::shared_ptr<Store> open() override {
    return std::make_shared<TcpStore>(Endpoint{"127.0.0.1", server_.port()}, secret_);
  }

 private:
  Secret secret_ = Secret::generate();
  TcpStoreServer server_{Endpoint{"127.0.0.1", 0}, secret_};
};

template <class Below>
class PrefixHost final : public Host {
 public:
  std::shared_ptr<Store> open() override {
    return std::make_shared<PrefixStore>("group 7", below_.open());
  }

 private:
  Below below_;
};

struct Case {
  std::string name;
  std::function<std::unique_ptr<Host>()> make;
};

template <class Type>
Case make_case(std::string name) {
  return {std::move(name), [] { return std::make_unique<Type>(); }};
}

class StoreConformance : public testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<Host> host_ = GetParam().make();
  std::shared_ptr<Store> store_ = host_->open();
};

INSTANTIATE_TEST_SUITE_P(All, StoreConformance,
                         testing::Values(make_case<MemoryHost>("memory"),
                                         make_case<FileHost>("file"), make_case<TcpHost>("tcp"),
                                         make_case<PrefixHost<MemoryHost>>("prefix_memory"),
                                         make_case<PrefixHost<FileHost>>("prefix_file"),
                                         make_case<PrefixHost<TcpHost>>("prefix_tcp")),
                         [](const auto& test) { return test.param.name; });

TEST_P(StoreConformance, a_value_set_by_one_handle_is_read_by_another) {
  const auto other = host_->open();
  store_->set("key", "value");
  EXPECT_EQ(other->get("key"), "value");
  store_->set("key", "");
  EXPECT_EQ(other->get("key"), "");
}

TEST_P(StoreConformance, keys_and_values_are_opaque_bytes) {
  const std::string key("a\0b\n/\xff", 6);
  const std::string value("\0\x01\xfe\0", 4);
  store_->set(key, value);
  EXPECT_EQ(host_->open()->get(key), value);
}

TEST_P(StoreConformance, get_waits_for_the_key) {
  const auto other = host_->open();
  auto waiting = std::async(std::launch::async, [&] { return other->get("late", 20s); });
  EXPECT_EQ(waiting.wait_for(30ms), std::future_status::timeout);
  store_->set("late", "now");
  EXPECT_EQ(waiting.get(), "now");
}

TEST_P(StoreConformance, a_waiting_get_does_not_hold_up_calls_on_the_same_handle) {
  auto waiting = std::async(std::launch::async, [&] { return store_->get("late", 20s); });
  EXPECT_EQ(waiting.wait_for(30ms), std::future_status::timeout);
  store_->set("other", "1");
  EXPECT_EQ(store_->get("other"), "1");
  store_->set("late", "now");
  EXPECT_EQ(waiting.get(), "now");
}

TEST_P(StoreConformance, a_get_that_ends_without_its_key_names_it) {
  expect_error(ErrorCode::kTimeout, {"nobody-sets-this"},
               [&] { store_->get("nobody-sets-this", 30ms); });
  expect_error(ErrorCode::kTimeout, {"nobody-sets-this"},
               [&] { store_->get("nobody-sets-this", 0ms); });
  expect_error(ErrorCode::kTimeout, {"nobody-sets-this"},
               [&] { store_->get("nobody-sets-this", -5ms); });
  store_->set("there", "1");
  EXPECT_EQ(store_->get("there", 0ms), "1");
}

TEST_P(StoreConformance, the_timeout_of_the_store_holds_for_calls_that_give_none) {
  EXPECT_EQ(store_->timeout(), 300s);
  store_->set_timeout(40ms);
  EXPECT_EQ(store_->timeout(), 40ms);
  expect_error(ErrorCode::kTimeout, {"absent"}, [&] { store_->get("absent"); });
}

TEST_P(StoreConformance, the_longest_timeout_does_not_overflow) {
  store_->set("key", "1");
  EXPECT_EQ(store_->get("key", std::chrono::milliseconds::max()), "1");
  store_->wait({"key"}, std::chrono::milliseconds::max());
}

TEST_P(StoreConformance, add_counts_and_stores_decimal_text) {
  EXPECT_EQ(store_->add("count", 5), 5);
  EXPECT_EQ(host_->open()->add("count", 3), 8);
  EXPECT_EQ(store_->get("count"), "8");
  EXPECT_EQ(store_->add("count", -10), -2);
  EXPECT_EQ(store_->get("count"), "-2");
  EXPECT_EQ(store_->add("count", 0), -2);
  store_->set("given", "41");
  EXPECT_EQ(store_->add("given", 1), 42);
}

TEST_P(StoreConformance, add_refuses_what_is_not_a_number_and_an_overflow) {
  for (const char* text : {"", "x", "1 ", " 1", "0x1", "1.5", "9223372036854775808"}) {
    store_->set("text", text);
    expect_error(ErrorCode::kInvalid, {"text"}, [&] { store_->add("text", 1); });
    EXPECT_EQ(store_->get("text"), text);
  }
  store_->set("big", "9223372036854775807");
  expect_error(ErrorCode::kInvalid, {"big"}, [&] { store_->add("big", 1); });
}

TEST_P(StoreConformance, compare_set_follows_its_truth_table) {
  EXPECT_EQ(store_->compare_set("key", "wrong", "new"), "wrong");  // key absent, a value expected
  EXPECT_FALSE(store_->check({"key"}));
  EXPECT_EQ(store_->compare_set("key", "same", "same"), "same");
  EXPECT_FALSE(store_->check({"key"}));
  EXPECT_EQ(store_->compare_set("key", "", "first"), "first");  // key absent, none expected
  EXPECT_EQ(host_->open()->get("key"), "first");
  EXPECT_EQ(store_->compare_set("key", "first", "second"), "second");  // key present, value equal
  EXPECT_EQ(store_->get("key"), "second");
  // Key present, value different.
  EXPECT_EQ(store_->compare_set("key", "first", "third"), "second");
  EXPECT_EQ(store_->compare_set("key", "", "third"), "second");
  EXPECT_EQ(host_->open()->get("key"), "second");
}

TEST_P(StoreConformance, append_extends) {
  store_->append("log", "a");
  host_->open()->append("log", "bc");
  store_->append("log", "");
  EXPECT_EQ(store_->get("log"), "abc");
}

TEST_P(StoreConformance, delete_tells_whether_the_key_was_there) {
  EXPECT_FALSE(store_->delete_key("key"));
  store_->set("key", "1");
  EXPECT_TRUE(host_->open()->delete_key("key"));
  EXPECT_FALSE(store_->check({"key"}));
  EXPECT_FALSE(store_->delete_key("key"));
}

TEST_P(StoreConformance, check_does_not_wait) {
  store_->set("a", "1");
  EXPECT_TRUE(store_->check({"a"}));
  EXPECT_TRUE(store_->check({}));
  EXPECT_FALSE(store_->check({"a", "b"}));
}

TEST_P(StoreConformance, num_keys_counts) {
  EXPECT_EQ(store_->num_keys(), 0);
  store_->set("a", "1");
  store_->set("a", "2");
  store_->add("b", 1);
  EXPECT_EQ(store_->num_keys(), 2);
  store_->delete_key("a");
  EXPECT_EQ(store_->num_keys(), 1);
}

TEST_P(StoreConformance, wait_ends_when_all_keys_are_there) {
  const auto other = host_->open();
  auto waiting = std::async(std::launch::async, [&] { other->wait({"a", "b", "c"}, 20s); });
  store_->set("c", "");
  store_->add("a", 1);
  EXPECT_EQ(waiting.wait_for(30ms), std::future_status::timeout);
  store_->append("b", "x");
  EXPECT_NO_THROW(waiting.get());
  EXPECT_NO_THROW(store_->wait({}, 0ms));
}

TEST_P(StoreConformance, a_wait_that_ends_early_names_only_what_is_missing) {
  store_->set("present", "1");
  try {
    store_->wait({"present", "missing-1", "missing-2"}, 30ms);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_NE(text.find("missing-1"), std::string::npos) << text;
    EXPECT_NE(text.find("missing-2"), std::string::npos) << text;
    EXPECT_EQ(text.find("present"), std::string::npos) << text;
  }
}

TEST_P(StoreConformance, multi_set_and_multi_get_keep_the_order) {
  store_->multi_set({"a", "b", "c"}, {"1", "", "3"});
  EXPECT_EQ(host_->open()->multi_get({"c", "a", "b", "a"}),
            (std::vector<std::string>{"3", "1", "", "1"}));
  EXPECT_TRUE(store_->multi_get({}).empty());
  expect_error(ErrorCode::kInvalid, {"1 keys", "2 values"}, [&] {
    store_->multi_set({"a"}, {"1", "2"});
  });
}

TEST_P(StoreConformance, multi_get_waits_for_each) {
  const auto other = host_->open();
  auto waiting = std::async(std::launch::async, [&] { return other->multi_get({"a", "b"}, 20s); });
  store_->set("b", "2");
  store_->set("a", "1");
  EXPECT_EQ(waiting.get(), (std::vector<std::string>{"1", "2"}));
}

TEST_P(StoreConformance, limits_are_typed_errors_and_the_store_lives_on) {
  const std::string longest_value(Store::kMaxValueBytes, 'v');
  store_->set("key", longest_value);
  EXPECT_EQ(store_->get("key").size(), longest_value.size());
  expect_error(ErrorCode::kInvalid, {"8388608"}, [&] { store_->set("key", longest_value + "v"); });
  expect_error(ErrorCode::kInvalid, {"key"}, [&] { store_->append("key", "v"); });
  expect_error(ErrorCode::kInvalid, {"8192"},
               [&] { store_->set(std::string(Store::kMaxKeyBytes + 1, 'k'), ""); });
  for (const auto& empty : {std::function<void()>([&] { store_->set("", "x"); }),
                            std::function<void()>([&] { store_->get("", 0ms); }),
                            std::function<void()>([&] { store_->check({""}); }),
                            std::function<void()>([&] { store_->delete_key(""); }),
                            std::function<void()>([&] { store_->compare_set("", "", "x"); })}) {
    expect_error(ErrorCode::kInvalid, {"1 to 8192"}, empty);
  }
  store_->set("key", "short");
  EXPECT_EQ(store_->get("key"), "short");
}

TEST_P(StoreConformance, eight_handles_count_and_meet) {
  constexpr int kRanks = 8;
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank, mine = host_->open()] {
      for (int i = 0; i < 20; ++i) mine->add("sum", rank);
      if (mine->add("arrived", 1) == kRanks) mine->set("everybody", "1");
      mine->wait({"everybody"}, 20s);
    }));
  }
  for (auto& rank : ranks) rank.get();
  EXPECT_EQ(store_->get("sum"), "560");
  EXPECT_EQ(store_->get("arrived"), "8");
}

}  // namespace
}  // namespace paceline
