#include "paceline/engine/store/store_service.h"

#include <gtest/gtest.h>

#include "paceline/engine/store/store.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

const StoreService::Moment kStart{};  // the service has no clock except its arguments

StoreRequest get(std::vector<std::string> keys, std::int64_t timeout_ms = 1000) {
  return {StoreCommand::kGet, timeout_ms, std::move(keys), {}};
}
StoreRequest set(const std::string& key, const std::string& value) {
  return {StoreCommand::kSet, 0, {key}, {value}};
}

TEST(StoreService, answers_a_parked_get_when_its_last_key_appears) {
  StoreService service{StoreLimits{}};
  EXPECT_FALSE(service.handle(1, get({"a", "b"}), kStart));
  service.handle(2, set("b", "2"), kStart);
  EXPECT_TRUE(service.take_answers().empty());
  service.handle(2, set("a", "1"), kStart);
  const auto answers = service.take_answers();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].client, 1U);
  EXPECT_EQ(answers[0].reply.values, (std::vector<std::string>{"1", "2"}));
  EXPECT_EQ(service.num_parked(), 0U);
  EXPECT_FALSE(service.next_deadline());
}

TEST(StoreService, a_key_that_was_deleted_again_counts_as_missing) {
  StoreService service{StoreLimits{}};
  service.handle(1, get({"a", "b"}), kStart);
  service.handle(2, set("a", "1"), kStart);
  service.handle(2, {StoreCommand::kDelete, 0, {"a"}, {}}, kStart);
  service.handle(2, set("b", "2"), kStart);
  EXPECT_TRUE(service.take_answers().empty());
  service.handle(2, set("a", "3"), kStart);
  const auto answers = service.take_answers();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].reply.values, (std::vector<std::string>{"3", "2"}));
}

TEST(StoreService, the_first_deadline_comes_first) {
  StoreService service{StoreLimits{}};
  service.handle(1, get({"a"}, 200), kStart);
  service.handle(2, get({"a"}, 100), kStart);
  EXPECT_EQ(service.next_deadline(), kStart + 100ms);
  service.expire(kStart + 150ms);
  const auto answers = service.take_answers();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].client, 2U);
  EXPECT_EQ(answers[0].reply.status, 1 + static_cast<int>(ErrorCode::kTimeout));
  EXPECT_EQ(service.num_parked(), 1U);
}

TEST(StoreService, a_client_that_left_gets_no_answer) {
  StoreService service{StoreLimits{}};
  service.handle(1, get({"a"}), kStart);
  service.handle(2, get({"a"}), kStart);
  service.forget(1);
  service.forget(3);
  service.handle(3, set("a", "1"), kStart);
  const auto answers = service.take_answers();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].client, 2U);
}

TEST(StoreService, values_over_the_frame_limit_are_an_error_and_not_a_reply) {
  StoreService service{StoreLimits{}};
  const std::string value(Store::kMaxValueBytes, 'v');
  service.handle(1, set("a", value), kStart);
  const auto reply = service.handle(1, get({"a", "a"}), kStart);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 1 + static_cast<int>(ErrorCode::kInvalid));
}

TEST(StoreService, a_barrier_of_300_clients_over_300_keys_is_quick) {
  constexpr int kClients = 300;
  StoreService service{StoreLimits{}};
  std::vector<std::string> keys;
  for (int i = 0; i < kClients; ++i) keys.push_back("rank/" + std::to_string(i));
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kClients; ++i) {
    service.handle(i, {StoreCommand::kWait, 1000, keys, {}}, kStart);
  }
  for (const auto& key : keys) service.handle(kClients, set(key, "1"), kStart);
  EXPECT_EQ(service.take_answers().size(), 300U);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);  // well under 0.1 s on an idle machine
}

}  // namespace
}  // namespace paceline
