#include "paceline/training/data/token_dataset.h"

#include <numeric>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/data/data_loader.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"

namespace paceline::data {
namespace {

std::vector<std::int32_t> count_up(std::int32_t count) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

TEST(TokenDataset, samples_follow_each_other_and_targets_come_next) {
  const TokenDataset dataset("text", torch::arange(23, torch::kInt), 5);
  EXPECT_EQ(dataset.size(), 4);
  const auto batch = dataset.batch(std::vector<std::int64_t>{0, 3}, 0);
  ASSERT_EQ(batch.size(), 2U);
  const auto wanted = torch::stack({torch::arange(0, 5), torch::arange(15, 20)});
  EXPECT_TRUE(torch::equal(batch[0], wanted));
  EXPECT_TRUE(torch::equal(batch[1], wanted + 1));
}

TEST(TokenDataset, the_last_sample_needs_the_token_behind_it) {
  for (const auto& [tokens, samples] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{6, 1}, {10, 1}, {11, 2}}) {
    EXPECT_EQ(TokenDataset("text", torch::zeros({tokens}, torch::kLong), 5).size(), samples);
  }
}

TEST(TokenDataset, a_file_is_mapped_in_both_widths) {
  const FreshDirectory folder;
  auto tokens = count_up(100);
  tokens[7] = 65'535;
  for (const auto type : {at::kShort, at::kInt}) {
    const std::string file = folder.file("text.bin");
    TokenDataset::write(file, tokens, type);
    EXPECT_EQ(std::filesystem::file_size(file), type == at::kShort ? 200U : 400U);
    const TokenDataset dataset(file, TokenDataset::map(file, type), 10);
    EXPECT_EQ(dataset.num_tokens(), 100);
    const at::Tensor row = dataset.batch(std::vector<std::int64_t>{0}, 0)[0][0];
    EXPECT_EQ(row[6].item<std::int64_t>(), 6);
    EXPECT_EQ(row[7].item<std::int64_t>(), 65'535);
  }
}

TEST(TokenDataset, a_file_stays_as_it_is_whatever_is_done_to_its_tokens) {
  const FreshDirectory folder;
  const std::string file = folder.file("text.bin");
  TokenDataset::write(file, count_up(20));
  TokenDataset::map(file).zero_();
  EXPECT_EQ(TokenDataset::map(file)[7].item<std::int64_t>(), 7);
}

TEST(TokenDataset, a_write_that_fails_leaves_the_old_file_and_nothing_else) {
  const FreshDirectory folder;
  const std::string file = folder.file("text.bin");
  TokenDataset::write(file, count_up(20));
  EXPECT_THROW(TokenDataset::write(file, std::vector<std::int32_t>{1, 65'536}), Error);
  EXPECT_EQ(TokenDataset::map(file).numel(), 20);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(TokenDataset, a_loader_makes_batches_of_it) {
  const auto dataset = std::make_shared<TokenDataset>("text", torch::arange(101, torch::kInt), 10);
  DataLoader loader(dataset, DistributedSampler(dataset->size(), 2, 1, {.shuffle = false}),
                    {.batch_size = 3});
  auto running = loader.epoch(0);
  const auto batch = running.next();
  ASSERT_TRUE(batch.has_value());
  EXPECT_EQ(batch->data.sizes(), torch::IntArrayRef({3, 10}));
  EXPECT_TRUE(torch::equal(batch->data[0], torch::arange(10, 20)));
  EXPECT_TRUE(torch::equal(batch->target[0], torch::arange(11, 21)));
}

TEST(TokenDataset, what_is_no_text_is_refused) {
  const FreshDirectory folder;
  expect_error(ErrorCode::kInvalid, {"5 tokens", "context of 5", "at least 6"},
               [] { TokenDataset("text", torch::zeros({5}, torch::kInt), 5); });
  expect_error(ErrorCode::kInvalid, {"context of 0"},
               [] { TokenDataset("text", torch::zeros({5}, torch::kInt), 0); });
  expect_error(ErrorCode::kInvalid, {"int16, int32"},
               [] { TokenDataset("text", torch::zeros({5}), 2); });
  expect_error(ErrorCode::kInvalid, {"65536", "16 bits"},
               [&] { TokenDataset::write(folder.file("a"), std::vector<std::int32_t>{65'536}); });
  expect_error(ErrorCode::kInvalid, {"-1"},
               [&] { TokenDataset::write(folder.file("a"), std::vector<std::int32_t>{-1}); });
  expect_error(ErrorCode::kSystem, {"nowhere"},
               [&] { TokenDataset::write(folder.file("nowhere/a"), count_up(3)); });
  expect_error(ErrorCode::kCorrupt, {"missing.bin"},
               [&] { TokenDataset::map(folder.file("missing.bin")); });
  expect_error(ErrorCode::kCorrupt, {"odd.bin", "3 bytes"},
               [&] { TokenDataset::map(folder.write("odd.bin", "abc")); });
  expect_error(ErrorCode::kCorrupt, {"empty.bin", "0 bytes"},
               [&] { TokenDataset::map(folder.write("empty.bin", "")); });
}

}  // namespace
}  // namespace paceline::data
