// Backend nccl on the memory of one GPU, in a group of one rank: everything that one GPU can test.
// nccl_conformance_test.sh tests the rest, with one GPU per rank.

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/dtype_traits.h"

#include "tests/engine/collectives/nccl/gpus.h"
#include "tests/engine/collectives/sample_values.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::Says;

constexpr std::size_t kCount = 1003;

// A buffer on the current GPU.
class OnDevice {
 public:
  explicit OnDevice(std::size_t bytes) : bytes_(bytes) {
    require_cuda(cudaMalloc(&data_, bytes), "cudaMalloc");
    require_cuda(cudaMemset(data_, 0, bytes), "cudaMemset");
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(data_); }

  Buffer buffer(Dtype dtype) const {
    return {data_, bytes_ / size_of(dtype), dtype, Device::kCuda};
  }
  void write(const std::vector<std::byte>& values) {
    require_cuda(cudaMemcpy(data_, values.data(), bytes_, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  std::vector<std::byte> read() const {
    std::vector<std::byte> values(bytes_);
    require_cuda(cudaMemcpy(values.data(), data_, bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }

 private:
  const std::size_t bytes_;
  void* data_ = nullptr;
};

class NcclDevice : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = why_no_gpus(1);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  static void run(const harness::RankBody& body) {
    harness::run_ranks_ok(1, body, {.backend = "nccl"});
  }
};

TEST_F(NcclDevice, every_reduction_of_one_rank_is_its_own_values) {
  run([](ProcessGroup& group) {
    int num_reductions = 0;
    for (const Dtype dtype : kAllDtypes) {
      const auto values = values_of(dtype, 0, kCount);
      for (int op = 0; op <= static_cast<int>(ReduceOp::kBitXor); ++op) {
        const auto reduce_op = static_cast<ReduceOp>(op);
        if (!group.supports(Op::kAllReduce, dtype, reduce_op, Device::kCuda)) continue;
        SCOPED_TRACE(std::string(name_of(dtype)) + " " + std::string(name_of(reduce_op)));
        OnDevice input(values.size()), output(values.size());
        input.write(values);
        group.reduce_scatter(output.buffer(dtype), input.buffer(dtype), reduce_op);
        EXPECT_EQ(output.read(), values);
        group.reduce(input.buffer(dtype), 0, reduce_op);
        group.all_reduce(input.buffer(dtype), reduce_op);
        EXPECT_EQ(input.read(), values);
        ++num_reductions;
      }
    }
    EXPECT_GT(num_reductions, 30);
  });
}

TEST_F(NcclDevice, data_that_one_rank_moves_arrives) {
  run([](ProcessGroup& group) {
    const auto values = values_of(Dtype::kFloat32, 0, kCount);
    OnDevice input(values.size());
    input.write(values);
    const Buffer given = input.buffer(Dtype::kFloat32);
    const auto expect_arrival = [&](auto&& move) {
      OnDevice output(values.size());
      move(output.buffer(Dtype::kFloat32));
      EXPECT_EQ(output.read(), values);
    };
    expect_arrival([&](Buffer taken) { group.all_gather(taken, given); });
    expect_arrival([&](Buffer taken) { group.gather(taken, given, 0); });
    expect_arrival([&](Buffer taken) { group.scatter(taken, given, 0); });
    expect_arrival([&](Buffer taken) { group.all_to_all(taken, given); });
    group.broadcast(given, 0);
    EXPECT_EQ(input.read(), values);
  });
}

TEST_F(NcclDevice, memory_of_the_host_is_refused) {
  const auto results = harness::run_ranks(
      1,
      [](ProcessGroup& group) {
        std::vector<float> data(10, 1.0f);
        group.all_reduce(Buffer(data.data(), data.size(), Dtype::kFloat32, Device::kCuda));
      },
      {.backend = "nccl"});
  ASSERT_TRUE(results[0].error);
  EXPECT_EQ(results[0].error->code(), ErrorCode::kInvalid);
  EXPECT_THAT(results[0].error->what(), Says("library.not_on_device"));
}

}  // namespace
}  // namespace paceline
