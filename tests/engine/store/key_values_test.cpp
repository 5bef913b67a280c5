#include <gtest/gtest.h>

#include "paceline/engine/store/memory_store.h"
#include "paceline/engine/store/prefix_store.h"
#include "paceline/engine/store/store.h"

#include "tests/harness/expect_error.h"

namespace paceline {
namespace {

TEST(KeyValues, refuses_a_key_too_many_and_changes_nothing) {
  KeyValues contents({.max_keys = 2, .max_bytes = 1000});
  contents.set("a", "1");
  contents.set("b", "2");
  expect_error(ErrorCode::kInvalid, {"2 keys", "'c'"}, [&] { contents.set("c", "3"); });
  contents.set("a", "11");
  EXPECT_TRUE(contents.erase("b"));
  contents.set("c", "3");
  EXPECT_EQ(contents.size(), 2U);
}

TEST(KeyValues, counts_bytes_of_keys_and_values) {
  KeyValues contents({.max_keys = 10, .max_bytes = 10});
  contents.set("abc", "1234567");
  expect_error(ErrorCode::kInvalid, {"11 of at most 10"}, [&] { contents.append("abc", "8"); });
  EXPECT_EQ(*contents.find("abc"), "1234567");
  contents.set("abc", "");
  contents.set("d", "123456");
  EXPECT_TRUE(contents.erase("d"));
  contents.set("abc", "1234567");
}

TEST(PrefixStore, two_prefixes_do_not_meet) {
  const auto below = std::make_shared<MemoryStore>();
  PrefixStore a("a", below);
  PrefixStore b("b", below);
  a.set("key", "1");
  EXPECT_FALSE(b.check({"key"}));
  EXPECT_EQ(below->get("a/key"), "1");
  EXPECT_EQ(b.num_keys(), 1);
}

}  // namespace
}  // namespace paceline
