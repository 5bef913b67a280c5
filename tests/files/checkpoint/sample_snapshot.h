#pragma once

// A snapshot whose every byte follows from its step, so that a load can be checked without keeping
// what was saved.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"
#include "paceline/files/checkpoint/checkpoint_directory.h"

namespace paceline::testing {

class SampleSnapshot {
 public:
  explicit SampleSnapshot(std::int64_t step, std::int64_t elements = 96)
      : weights_(static_cast<std::size_t>(elements)), position_{step} {
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      weights_[i] = static_cast<float>(step) + static_cast<float>(i) / 128.0F;
    }
    snapshot_ = {
        .tensors = {{"model.weight",
                     Dtype::kFloat32,
                     {elements / 8, 8},
                     std::as_bytes(std::span(weights_))},
                    {"sampler.position", Dtype::kInt64, {}, std::as_bytes(std::span(position_))},
                    {"random.state", Dtype::kUint8, {3}, std::as_bytes(std::span(random_))}},
        .metadata = {{"epoch", std::to_string(step / 10)}, {"note", "naïve"}},
        .world_size = 2};
  }
  SampleSnapshot(const SampleSnapshot&) = delete;

  const Snapshot& operator*() const { return snapshot_; }

 private:
  std::vector<float> weights_;
  std::vector<std::int64_t> position_;
  std::vector<std::uint8_t> random_ = {1, 2, 3};
  Snapshot snapshot_;
};

inline void expect_sample(const LoadedCheckpoint& loaded, std::int64_t elements = 96) {
  const SampleSnapshot sample(loaded.step, elements);
  const Snapshot& expected = *sample;
  EXPECT_EQ(loaded.snapshot.metadata, expected.metadata);
  EXPECT_EQ(loaded.snapshot.world_size, expected.world_size);
  std::map<std::string, const NamedTensor*> found;
  for (const auto& tensor : loaded.snapshot.tensors) found[tensor.name] = &tensor;
  ASSERT_EQ(found.size(), expected.tensors.size());
  for (const auto& tensor : expected.tensors) {
    const auto* other = found[tensor.name];
    ASSERT_NE(other, nullptr) << tensor.name;
    EXPECT_EQ(other->dtype, tensor.dtype);
    EXPECT_EQ(other->shape, tensor.shape);
    EXPECT_TRUE(std::ranges::equal(other->bytes, tensor.bytes)) << tensor.name;
  }
}

inline void save_sample(CheckpointDirectory& directory, std::int64_t step,
                        const std::string& run = "") {
  const SampleSnapshot sample(step);
  Snapshot snapshot = *sample;
  snapshot.run = run;
  directory.save(step, snapshot);
}

// The Error that `call` throws; a failure when it throws none.
template <class Call>
Error error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return Error(ErrorCode::kInvalid, "");
}

}  // namespace paceline::testing
