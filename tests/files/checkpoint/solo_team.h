#pragma once

// One process that saves like every training does, through a CheckpointTeam, here of one rank. The
// saved values follow from the step, so that a load can be checked without a copy of them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/files/checkpoint/checkpoint_team.h"

#include "tests/harness/load_checkpoint.h"

namespace paceline::testing {

// The tensors that are held at a step.
class Sample {
 public:
  explicit Sample(std::int64_t step, std::int64_t elements = 96)
      : weights_(static_cast<std::size_t>(elements)), position_(step) {
    for (std::size_t i = 0; i < weights_.size(); ++i)
      weights_[i] = static_cast<float>(step) + static_cast<float>(i) / 128.0F;
    hold("model.weight", Dtype::kFloat32, {elements / 8, 8}, weights_.data());
    hold("sampler.position", Dtype::kInt64, {}, &position_);
    hold("random.state", Dtype::kUint8, {3}, random_.data());
  }
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  const std::vector<HeldMemory>& held() const { return held_; }
  CheckpointMetadata words(const std::string& run = "") const {
    return {.run = run, .metadata = {{"epoch", std::to_string(position_ / 10)}, {"note", "naïve"}}};
  }

 private:
  void hold(const std::string& name, Dtype dtype, const std::vector<std::int64_t>& shape,
            void* data) {
    held_.push_back({{name, dtype, shape, whole_box(shape)},
                     {static_cast<std::byte*>(data), row_major_strides(shape)}});
  }

  std::vector<float> weights_;
  std::int64_t position_;
  std::vector<std::uint8_t> random_ = {1, 2, 3};
  std::vector<HeldMemory> held_;
};

inline void expect_sample(const harness::Loaded& loaded, std::int64_t elements = 96) {
  const Sample expected(loaded.manifest.step, elements);
  EXPECT_EQ(loaded.manifest.metadata, expected.words().metadata);
  EXPECT_EQ(loaded.manifest.world_size, 1);
  ASSERT_EQ(loaded.tensors.size(), expected.held().size());
  for (const auto& [held, place, must_be_finite] : expected.held()) {
    const StoredTensor* const stored = loaded.manifest.find(held.name);
    ASSERT_NE(stored, nullptr) << held.name;
    EXPECT_EQ(stored->dtype, held.dtype);
    EXPECT_EQ(stored->shape, held.shape);
    const std::span<const std::byte> bytes(place.data, stored->bytes());
    EXPECT_TRUE(std::ranges::equal(loaded.tensors.at(held.name), bytes)) << held.name;
  }
}

// A process that will be killed or frozen makes its own SoloTeam after fork().
class SoloTeam {
 public:
  explicit SoloTeam(const std::string& path, const CheckpointDirectoryOptions& options = {},
                    FileSystem& files = FileSystem::real())
      : team_(group_of_one(), path, options, files) {}

  // Returns when the checkpoint is on the disk; throws the error that finish() returns.
  void save(std::int64_t step, const std::string& run = "", std::int64_t elements = 96) {
    const Sample sample(step, elements);
    save(step, sample.held(), sample.words(run));
  }
  void save(std::int64_t step, const std::vector<HeldMemory>& held,
            const CheckpointMetadata& words) {
    team_.save(step, held, words);
    if (const auto error = team_.finish()) throw *error;
  }
  // Returns when the previous checkpoint is on the disk.
  void begin_save(std::int64_t step) {
    const Sample sample(step);
    team_.save(step, sample.held(), sample.words());
  }

  CheckpointDirectory& directory() { return *team_.directory(); }

 private:
  static std::shared_ptr<ProcessGroup> group_of_one() {
    LaunchEnvironment environment;
    environment.world_size = environment.local_world_size = 1;
    return std::make_shared<EngineGroup>(
        Rendezvous{environment, std::make_shared<MemoryStore>(), Secret::generate()}, "world",
        std::vector<int>{0}, GroupOptions{});
  }

  CheckpointTeam team_;
};

}  // namespace paceline::testing
