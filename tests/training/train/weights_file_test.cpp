#include "paceline/training/train/checkpoints/weights_file.h"

#include <thread>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/models/layers.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"

namespace paceline {
namespace {

TEST(WeightsFile, tensors_of_every_type_and_order_come_back) {
  const FreshDirectory folder;
  StateDict tensors;
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16,
                          torch::kLong, torch::kInt, torch::kByte}) {
    tensors.emplace(c10::toString(type), (torch::rand({2, 3}) * 100).to(type));
  }
  tensors.emplace("scalar", torch::tensor(3.5));
  tensors.emplace("none", torch::empty({0, 4}));
  tensors.emplace("turned", torch::rand({3, 5}).t());
  tensors.emplace("channels_last", torch::rand({2, 3, 4, 5}).to(torch::MemoryFormat::ChannelsLast));
  const std::string file = folder.file("weights.safetensors");
  write_weights(file, tensors);
  const StateDict found = read_weights(file);
  ASSERT_EQ(found.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(found.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(torch::equal(found.at(name), tensor)) << name;
  }
}

TEST(WeightsFile, a_module_has_parameters_and_buffers) {
  torch::nn::Sequential module(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3));
  const StateDict weights = weights_of(*module);
  EXPECT_EQ(weights.size(), 7U);
  EXPECT_TRUE(torch::equal(weights.at("0.weight"), module->parameters()[0]));
  EXPECT_EQ(weights.count("1.running_mean"), 1U);
  EXPECT_FALSE(weights.at("0.weight").requires_grad());
}

TEST(WeightsFile, weights_are_loaded_or_every_difference_is_listed) {
  const auto make = [](std::int64_t width) {
    return torch::nn::Sequential(torch::nn::Linear(2, width), torch::nn::BatchNorm1d(width));
  };
  auto from = make(3), to = make(3), other = make(4);
  load_weights(*to, weights_of(*from));
  load_weights(to, weights_of(from));  // module holders as they are
  const at::Tensor input = torch::rand({5, 2});
  EXPECT_TRUE(torch::equal(from->forward(input), to->forward(input)));
  StateDict weights = weights_of(*other);
  weights.erase("0.bias");
  weights["1.bias"] = weights["1.bias"].to(torch::kDouble);
  weights["2.weight"] = torch::ones({7});
  const at::Tensor before = to->parameters()[0].clone();
  expect_error(
      ErrorCode::kInvalid,
      {"0.weight: Float [3, 2] here, given Float [4, 2]", "0.bias: Float [3] here, not given",
       "1.bias: Float [3] here, given Double [4]", "2.weight: given Float [7], not here"},
      [&] { load_weights(*to, weights); });
  EXPECT_TRUE(torch::equal(to->parameters()[0], before));
}

TEST(WeightsFile, a_file_is_replaced_whole) {
  const FreshDirectory folder;
  const std::string file = folder.write("weights.safetensors", "something else");
  write_weights(file, {{"a", torch::ones({3})}});
  EXPECT_TRUE(torch::equal(read_weights(file).at("a"), torch::ones({3})));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(WeightsFile, a_path_that_cannot_be_used_is_refused_with_the_reason) {
  const FreshDirectory folder;
  const std::string file = folder.write("file", "bytes");
  const auto write = [](const std::string& path) {
    return [path] { write_weights(path, {{"a", torch::ones({3})}}); };
  };
  const auto read = [](const std::string& path) { return [path] { read_weights(path); }; };
  const std::string missing = folder.file("missing") + "/net.safetensors";
  const std::string is_missing = "the folder " + folder.file("missing") + " does not exist";
  expect_error(ErrorCode::kSystem, {missing, "cannot create: " + is_missing}, write(missing));
  expect_error(ErrorCode::kCorrupt, {missing, is_missing}, read(missing));
  expect_error(ErrorCode::kSystem, {file + " is a file, not a folder"}, write(file + "/net"));
  expect_error(ErrorCode::kCorrupt, {file + " is a file, not a folder"}, read(file + "/net"));
  expect_error(ErrorCode::kInvalid, {folder.path(), "it is a folder"}, write(folder.path()));
}

TEST(WeightsFile, ranks_that_all_write_one_file_leave_one_whole) {
  const FreshDirectory folder;
  const std::string file = folder.file("weights.safetensors");
  std::vector<std::jthread> writers;
  for (int rank = 0; rank < 4; ++rank) {
    writers.emplace_back([&file, rank] {
      for (int round = 0; round < 20; ++round)
        write_weights(file, {{"a", torch::full({100'000}, rank)}});
    });
  }
  writers.clear();
  const at::Tensor found = read_weights(file).at("a");
  EXPECT_TRUE(torch::equal(found, torch::full_like(found, found[0].item<double>())));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(WeightsFile, what_cannot_be_read_or_written_is_said_by_name) {
  const FreshDirectory folder;
  expect_error(ErrorCode::kCorrupt, {"missing.safetensors"},
               [&] { read_weights(folder.file("missing.safetensors")); });
  expect_error(ErrorCode::kCorrupt, {"bad.safetensors"},
               [&] { read_weights(folder.write("bad.safetensors", "12345678{")); });
  expect_error(ErrorCode::kSystem, {"nowhere/weights"}, [&] {
    write_weights(folder.file("nowhere/weights"), {{"a", torch::ones({3})}});
  });
  expect_error(ErrorCode::kUnsupported, {"Complex"}, [&] {
    write_weights(folder.file("complex"), {{"a", torch::ones({3}, torch::kComplexFloat)}});
  });
}

}  // namespace
}  // namespace paceline
