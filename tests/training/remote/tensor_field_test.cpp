// Tensors as fields of messages: round trips, tensors that cannot be sent, damaged bytes.

#include "paceline/training/remote/tensor_field.h"

#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "tests/harness/expect_error.h"

namespace paceline::rpc::detail {
namespace {

struct Message {
  std::int32_t before = 1;
  at::Tensor tensor;
  std::vector<at::Tensor> list;
  std::optional<at::Tensor> maybe;
  std::string after;
  static auto fields(auto& m) { return std::tie(m.before, m.tensor, m.list, m.maybe, m.after); }
};
// A message with the same bytes, as an engine without LibTorch sees it.
struct Plain {
  std::int32_t before = 1;
  TensorFields tensor;
  std::vector<TensorFields> list;
  std::optional<TensorFields> maybe;
  std::string after;
  static auto fields(auto& m) { return std::tie(m.before, m.tensor, m.list, m.maybe, m.after); }
};

Message pass_on(const Message& message) {
  const auto bytes = write_message(message).copy();
  return read_message<Message>(bytes);
}

void expect_same(const at::Tensor& sent, const at::Tensor& got) {
  ASSERT_EQ(sent.defined(), got.defined());
  if (!sent.defined()) return;
  EXPECT_EQ(sent.scalar_type(), got.scalar_type());
  EXPECT_EQ(sent.sizes(), got.sizes());
  EXPECT_TRUE(got.is_contiguous());
  EXPECT_TRUE(got.device().is_cpu());
  EXPECT_FALSE(got.requires_grad());
  const at::Tensor whole = sent.detach().resolve_conj().resolve_neg().contiguous();
  ASSERT_EQ(whole.nbytes(), got.nbytes());
  if (whole.nbytes() != 0) {  // also compares NaNs
    EXPECT_EQ(std::memcmp(whole.data_ptr(), got.data_ptr(), got.nbytes()), 0);
  }
}

const std::vector<at::ScalarType> kAllTypes = {
    at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar,         at::kShort,
    at::kInt,   at::kLong,   at::kByte, at::kBool,     at::kComplexFloat, at::kComplexDouble};

at::Tensor counting(std::int64_t count, at::ScalarType type) {
  const at::Tensor numbers = torch::arange(count, at::kLong);
  return type == at::kBool ? numbers.remainder(3).eq(0) : numbers.remainder(101).to(type);
}

TEST(TensorField, every_type_in_every_layout_and_size_arrives) {
  using Layout = std::function<at::Tensor(const at::Tensor&)>;
  const std::vector<std::pair<std::string, Layout>> layouts = {
      {"contiguous", [](const at::Tensor& t) { return t; }},
      {"scalar", [](const at::Tensor& t) { return t[0]; }},
      {"empty",
       [](const at::Tensor& t) {
         return t.slice(0, 0, 0).reshape({0, 3});
       }},
      {"matrix",
       [](const at::Tensor& t) {
         return t.reshape({-1, 4});
       }},
      {"transposed",
       [](const at::Tensor& t) {
         return t.reshape({-1, 4}).t();
       }},
      {"sliced", [](const at::Tensor& t) { return t.slice(0, 1, t.size(0), 3); }},
      {"second half", [](const at::Tensor& t) { return t.slice(0, t.size(0) / 2); }},
      {"expanded",
       [](const at::Tensor& t) {
         return t.slice(0, 0, 4).reshape({1, 4}).expand({5, 4});
       }},
      {"channels last",
       [](const at::Tensor& t) {
         return t.reshape({1, 4, -1, 2}).contiguous(at::MemoryFormat::ChannelsLast);
       }},
      {"seven dimensions",
       [](const at::Tensor& t) {
         return t.reshape({1, 2, 1, 2, 1, 2, -1});
       }},
  };
  // Sizes around the limit from which tensors are sent without a copy (32 KiB), for each element
  // size.
  for (const std::int64_t count : {8, 2040, 2048, 4096, 8192, 16384, 32768, 40000}) {
    for (const at::ScalarType type : kAllTypes) {
      for (const auto& [name, layout] : layouts) {
        SCOPED_TRACE(name + " " + c10::toString(type) + " " + std::to_string(count));
        const at::Tensor tensor = layout(counting(count, type));
        const auto got = pass_on({2, tensor, {tensor, {}, tensor}, tensor, "end"});
        EXPECT_EQ(got.before, 2);
        EXPECT_EQ(got.after, "end");
        expect_same(tensor, got.tensor);
        ASSERT_EQ(got.list.size(), 3U);
        expect_same(tensor, got.list[0]);
        EXPECT_FALSE(got.list[1].defined());
        expect_same(tensor, got.list[2]);
        ASSERT_TRUE(got.maybe.has_value());
        expect_same(tensor, *got.maybe);
      }
    }
  }
}

TEST(TensorField, what_is_not_in_the_elements_is_left_out) {
  const at::Tensor leaf = torch::ones({3}).requires_grad_();
  const at::Tensor complex = torch::complex(torch::ones({3}), torch::full({3}, 2.0));
  const at::Tensor nan = torch::full({2}, std::nan(""));
  const auto got =
      pass_on({1, leaf, {leaf * 2, complex.conj(), torch::imag(complex.conj()), nan}, {}, ""});
  expect_same(leaf, got.tensor);
  expect_same(leaf * 2, got.list[0]);
  expect_same(complex.conj(), got.list[1]);
  EXPECT_EQ(got.list[2].sum().item<float>(), -6);  // a negative view
  expect_same(nan, got.list[3]);
  EXPECT_FALSE(got.maybe.has_value());
  EXPECT_FALSE(pass_on({}).tensor.defined());
}

TEST(TensorField, large_tensors_are_sent_from_their_place_and_live_until_then) {
  const at::Tensor large = torch::rand({10000});
  Message message{1, large, {}, {}, ""};
  const MessageWriter out = write_message(message);
  ASSERT_EQ(out.parts().size(), 1U);
  EXPECT_EQ(static_cast<const void*>(out.parts()[0].data.data()), large.data_ptr());
  // A strided tensor is copied, and the writer owns the copy.
  Message strided{1, large.reshape({100, 100}).t(), {}, {}, ""};
  const at::Tensor before = strided.tensor.contiguous();
  const MessageWriter of_copy = write_message(strided);
  const at::Tensor other = torch::zeros({10000});  // would get the copy's memory if that were freed
  expect_same(before, read_message<Message>(of_copy.copy()).tensor);
  EXPECT_EQ(other.sum().item<float>(), 0);
}

TEST(TensorField, what_cannot_be_sent_says_why) {
  const auto send = [](const at::Tensor& tensor) { write_message(Message{1, tensor, {}, {}, ""}); };
  const at::Tensor ones = torch::ones({2, 2});
  expect_error(ErrorCode::kUnsupported, {"on device meta", "move it to the CPU"},
               [&] { send(torch::empty({2}, at::TensorOptions(at::kMeta))); });
  expect_error(ErrorCode::kUnsupported, {"layout Sparse", "to_dense"},
               [&] { send(ones.to_sparse()); });
  expect_error(ErrorCode::kUnsupported, {"type QInt8"},
               [&] { send(at::quantize_per_tensor(ones, 0.1, 0, at::kQInt8)); });
  expect_error(ErrorCode::kInvalid, {"65 dimensions", "64"},
               [&] { send(torch::ones(std::vector<std::int64_t>(65, 1))); });
}

TEST(TensorField, programs_without_libtorch_read_and_write_the_same_bytes) {
  const at::Tensor tensor = torch::arange(6, at::kInt).reshape({2, 3});
  const auto bytes = write_message(Message{1, tensor, {tensor}, {}, ""}).copy();
  const auto plain = read_message<Plain>(bytes);
  EXPECT_EQ(plain.tensor.type, 7);
  EXPECT_THAT(std::vector(plain.tensor.sizes.begin(), plain.tensor.sizes.end()),
              testing::ElementsAre(2, 3));
  EXPECT_EQ(plain.tensor.elements.size(), 24U);
  expect_same(tensor, read_message<Message>(write_message(plain).copy()).list[0]);
}

TEST(TensorField, damaged_tensors_are_refused_before_memory_is_taken) {
  using Sizes = std::vector<std::int64_t>;
  constexpr auto kLargest = std::numeric_limits<std::int64_t>::max();
  struct Case {
    int type;
    Sizes sizes;
    std::vector<std::uint8_t> elements;
    std::string why;
  };
  const std::vector<Case> cases = {
      {1, {2}, std::vector<std::uint8_t>(7), "has 7 bytes, and by its sizes it should have 8"},
      {1, {2}, std::vector<std::uint8_t>(12), "has 12 bytes, and by its sizes it should have 8"},
      {1, {}, {}, "has 0 bytes, and by its sizes it should have 4"},
      {1, {0}, {1}, "has 1 bytes, and by its sizes it should have 0"},
      {1, {-1}, {}, "negative or too large"},
      {1, {-2, -4}, std::vector<std::uint8_t>(32), "negative or too large"},
      {8, {kLargest}, std::vector<std::uint8_t>(8), "negative or too large"},
      {1, {std::int64_t{1} << 31, std::int64_t{1} << 31}, {}, "negative or too large"},
      {1, {std::int64_t{1} << 32, std::int64_t{1} << 32}, {}, "negative or too large"},
      {1, {0, kLargest, kLargest}, {}, "negative or too large"},
      {1, {std::int64_t{1} << 40}, {}, "by its sizes it should have 4398046511104"},
      {1, Sizes(65, 1), std::vector<std::uint8_t>(4), "has 65 dimensions"},
      {0, {1}, {}, "an undefined tensor has sizes"},
      {0, {}, {1}, "an undefined tensor has sizes or elements"},
      {13, {1}, std::vector<std::uint8_t>(4), "unknown type 13"},
      {255, {1}, std::vector<std::uint8_t>(4), "unknown type 255"},
      {10, {3}, {0, 1, 2}, "a bool of a tensor is neither 0 nor 1"},
  };
  for (const auto& [type, sizes, elements, why] : cases) {
    SCOPED_TRACE(why);
    const Plain plain{1, {static_cast<std::uint8_t>(type), sizes, elements}, {}, {}, ""};
    const auto bytes = write_message(plain).copy();
    expect_error(ErrorCode::kCorrupt, {"field 2", why}, [&] { read_message<Message>(bytes); });
    const auto in_list = write_message(Plain{1, {}, {plain.tensor}, {}, ""}).copy();
    expect_error(ErrorCode::kCorrupt, {"field 3.1", why}, [&] { read_message<Message>(in_list); });
  }
}

TEST(TensorField, bytes_that_are_cut_or_changed_are_an_error_or_another_tensor) {
  const at::Tensor tensor = torch::tensor({true, false, true}).reshape({1, 3});
  const auto bytes = write_message(Message{1, tensor, {tensor}, tensor, "end"}).copy();
  int num_read = 0, num_refused = 0;
  const auto read = [&](std::span<const std::byte> damaged) {
    try {
      read_message<Message>(damaged);
      ++num_read;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
      ++num_refused;
    }
  };
  for (std::size_t size = 0; size < bytes.size(); ++size) read(std::span(bytes).first(size));
  EXPECT_EQ(num_read, 0);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      auto damaged = bytes;
      damaged[i] ^= static_cast<std::byte>(1 << bit);
      read(damaged);
    }
  }
  EXPECT_GT(num_read, 0);
  EXPECT_GT(num_refused, num_read);
}

}  // namespace
}  // namespace paceline::rpc::detail
