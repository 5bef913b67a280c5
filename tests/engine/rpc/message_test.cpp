#include "paceline/engine/rpc/protocol/message.h"

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/expect_error.h"
#include "tests/harness/random_seed.h"

namespace paceline::rpc::detail {
namespace {

using testing::ElementsAre;

enum class Colour : std::uint16_t { kRed = 1, kGreen = 700 };

struct Point {
  float x = 0, y = 0;
  static auto fields(auto& self) { return std::tie(self.x, self.y); }
  bool operator==(const Point&) const = default;
};

struct Everything {
  bool flag = false;
  std::int8_t i8 = 0;
  std::int16_t i16 = 0;
  std::int32_t i32 = 0;
  std::int64_t i64 = 0;
  std::uint8_t u8 = 0;
  std::uint16_t u16 = 0;
  std::uint32_t u32 = 0;
  std::uint64_t u64 = 0;
  float f32 = 0;
  double f64 = 0;
  Colour colour{};
  std::string text;
  std::vector<double> numbers;
  std::array<std::int32_t, 3> three{};
  std::optional<std::string> maybe, never;
  std::vector<std::string> texts;
  std::vector<std::vector<float>> rows;
  Point point;
  std::vector<Point> points;
  static auto fields(auto& self) {
    return std::tie(self.flag, self.i8, self.i16, self.i32, self.i64, self.u8, self.u16, self.u32,
                    self.u64, self.f32, self.f64, self.colour, self.text, self.numbers, self.three,
                    self.maybe, self.never, self.texts, self.rows, self.point, self.points);
  }
  bool operator==(const Everything&) const = default;
};

Everything example() {
  Everything all;
  all.flag = true;
  all.i8 = std::numeric_limits<std::int8_t>::min();
  all.i16 = -2;
  all.i32 = std::numeric_limits<std::int32_t>::max();
  all.i64 = std::numeric_limits<std::int64_t>::min();
  all.u8 = 255;
  all.u16 = 65535;
  all.u32 = 4'000'000'000;
  all.u64 = std::numeric_limits<std::uint64_t>::max();
  all.f32 = -0.5F;
  all.f64 = 1e300;
  all.colour = Colour::kGreen;
  all.text = std::string("a\0b", 3);
  all.numbers = {1, 2, 3};
  all.three = {7, 8, 9};
  all.maybe = "here";
  all.texts = {"", "one", "two"};
  all.rows = {{}, {1.0F}, {2.0F, 3.0F}};
  all.point = {1, 2};
  all.points = {{3, 4}, {5, 6}};
  return all;
}

// A message in a buffer aligned to kAlignment, like a received one.
class Received {
 public:
  explicit Received(const std::vector<std::byte>& bytes)
      : words_(bytes.size() / 8 + 1), size_(bytes.size()) {
    if (!bytes.empty()) std::memcpy(words_.data(), bytes.data(), bytes.size());
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(words_)).first(size_); }

 private:
  std::vector<std::uint64_t> words_;
  std::size_t size_;
};

template <class T, class Sent>
T send(const Sent& message) {
  const auto out = write_message(message);
  const Received received(out.copy());
  EXPECT_EQ(received.bytes().size(), out.size());
  return read_message<T>(received.bytes());
}

TEST(Message, every_kind_of_field_comes_back) {
  EXPECT_EQ(send<Everything>(example()), example());
  EXPECT_EQ(send<Everything>(Everything{}), Everything{});
}

struct First {
  std::int32_t a = 1;
  static auto fields(auto& self) { return std::tie(self.a); }
};
struct Second {  // a later version of First
  std::int32_t a = 1;
  std::string b = "default";
  std::vector<First> c;
  static auto fields(auto& self) { return std::tie(self.a, self.b, self.c); }
};
struct HoldsFirst {
  First inner;
  std::int32_t after = 0;
  static auto fields(auto& self) { return std::tie(self.inner, self.after); }
};
struct HoldsSecond {
  Second inner;
  std::int32_t after = 0;
  static auto fields(auto& self) { return std::tie(self.inner, self.after); }
};

TEST(Message, a_field_added_at_the_end_works_in_both_directions) {
  const auto newer = send<Second>(First{.a = 5});
  EXPECT_EQ(newer.a, 5);
  EXPECT_EQ(newer.b, "default");
  EXPECT_EQ(send<First>(Second{.a = 6, .b = "lost", .c = {{7}}}).a, 6);

  const auto within =
      send<HoldsFirst>(HoldsSecond{.inner = {.a = 8, .b = "x", .c = {}}, .after = 9});
  EXPECT_EQ(within.inner.a, 8);
  EXPECT_EQ(within.after, 9);
  const auto grown = send<HoldsSecond>(HoldsFirst{.inner = {.a = 10}, .after = 11});
  EXPECT_EQ(grown.inner.b, "default");
  EXPECT_EQ(grown.after, 11);
}

struct Sending {
  std::string_view name;
  std::span<const float> row;
  std::span<const std::uint8_t> tail;
  static auto fields(auto& self) { return std::tie(self.name, self.row, self.tail); }
};

TEST(Message, a_large_span_is_neither_copied_by_the_sender_nor_by_the_receiver) {
  const std::vector<float> row(MessageWriter::kLargeSpan, 1.5F);
  const std::vector<std::uint8_t> tail = {1, 2, 3};
  const auto out = write_message(Sending{"item", row, tail});
  ASSERT_EQ(out.parts().size(), 1U);
  EXPECT_EQ(static_cast<const void*>(out.parts()[0].data.data()),
            static_cast<const void*>(row.data()));
  EXPECT_LT(out.bytes().size(), 100U);

  const Received received(out.copy());
  const auto got = read_message<Sending>(received.bytes());
  EXPECT_EQ(got.name, "item");
  EXPECT_THAT(got.tail, ElementsAre(1, 2, 3));
  ASSERT_EQ(got.row.size(), row.size());
  EXPECT_TRUE(std::equal(row.begin(), row.end(), got.row.begin()));
  const auto* const begin = reinterpret_cast<const std::byte*>(got.row.data());
  EXPECT_GE(begin, received.bytes().data());
  EXPECT_LT(begin, received.bytes().data() + received.bytes().size());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(begin) % MessageWriter::kAlignment, 0U);
}

struct Wrong {
  std::string a;
  static auto fields(auto& self) { return std::tie(self.a); }
};
struct Holder {
  std::int32_t before = 0;
  std::vector<Wrong> list;
  static auto fields(auto& self) { return std::tie(self.before, self.list); }
};
struct HolderOfNumbers {
  std::int32_t before = 0;
  std::vector<First> list;
  static auto fields(auto& self) { return std::tie(self.before, self.list); }
};

TEST(Message, a_field_of_another_kind_is_an_error_that_names_it) {
  expect_error(ErrorCode::kCorrupt, {"field 1", "expects text", "the message has int32"},
               [] { send<Wrong>(First{}); });
  expect_error(ErrorCode::kCorrupt, {"field 2.1.1", "expects text", "the message has int32"}, [] {
    send<Holder>(HolderOfNumbers{.before = 1, .list = {{1}, {2}}});
  });
}

struct Tree {
  std::vector<Tree> children;
  static auto fields(auto& self) { return std::tie(self.children); }
};
Tree of_depth(int depth) {
  Tree tree;
  if (depth > 0) tree.children.push_back(of_depth(depth - 1));
  return tree;
}

TEST(Message, what_is_nested_too_deep_is_refused_at_both_ends) {
  // This has 31 levels: the first one, and two more for each depth.
  EXPECT_EQ(send<Tree>(of_depth(15)).children.size(), 1U);
  expect_error(ErrorCode::kInvalid, {"more than 32 levels"}, [] { write_message(of_depth(64)); });
  // A program without the writer's check could send these bytes.
  std::vector<std::byte> bytes;
  for (int level = 0; level < 64; ++level) {
    std::vector<std::byte> outer;
    const auto put = [&](auto value) {
      const auto raw = std::as_bytes(std::span(&value, 1));
      outer.insert(outer.end(), raw.begin(), raw.end());
    };
    put(static_cast<std::uint32_t>(bytes.empty() ? 6 : bytes.size() + 6));
    put(FieldKind::kList);
    put(FieldKind::kMessage);
    put(std::uint32_t{bytes.empty() ? 0U : 1U});
    outer.insert(outer.end(), bytes.begin(), bytes.end());
    bytes = outer;
  }
  bytes.insert(bytes.begin(), static_cast<std::byte>(FieldKind::kMessage));
  expect_error(ErrorCode::kCorrupt, {"more than 32 levels"},
               [&] { read_message<Tree>(Received(bytes).bytes()); });
}

TEST(Message, every_cut_and_every_changed_byte_is_an_error_or_a_message) {
  const auto whole = write_message(example()).copy();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> cut(whole.begin(),
                                     whole.begin() + static_cast<std::ptrdiff_t>(size));
    expect_error(ErrorCode::kCorrupt, {"message"},
                 [&] { read_message<Everything>(Received(cut).bytes()); });
  }
  int errors = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (const unsigned change : {1U, 0x80U, 0xffU}) {
      auto other = whole;
      other[i] ^= static_cast<std::byte>(change);
      try {
        read_message<Everything>(Received(other).bytes());
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kCorrupt);
        ++errors;
      }
    }
  }
  EXPECT_GT(errors, 100);
}

TEST(Message, random_bytes_are_refused_without_taking_much_memory) {
  std::mt19937 random(harness::random_seed());
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes(random() % 64);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random() % 20);
    if (!bytes.empty()) bytes[0] = static_cast<std::byte>(FieldKind::kMessage);
    try {
      read_message<Everything>(Received(bytes).bytes());
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kCorrupt);
    }
  }
  // A count of four billion elements that no bytes follow.
  MessageWriter out;
  out.put(FieldKind::kMessage);
  const auto length = out.begin_length();
  out.put(FieldKind::kList);
  out.put(FieldKind::kMessage);
  out.put_count(kMaxMessageBytes);
  out.end_length(length);
  expect_error(ErrorCode::kCorrupt, {"4294967295 elements", "0 bytes are left"},
               [&] { read_message<Tree>(Received(out.copy()).bytes()); });
}

TEST(Message, bytes_behind_the_end_are_refused) {
  auto bytes = write_message(First{}).copy();
  bytes.push_back(std::byte{0});
  expect_error(ErrorCode::kCorrupt, {"bytes follow its end"},
               [&] { read_message<First>(Received(bytes).bytes()); });
}

}  // namespace
}  // namespace paceline::rpc::detail
