// Replicas in CUDA memory: the checks that also work on a LibTorch without CUDA.

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/parallel/replica_guard.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/thread_ranks.h"
#include "tests/training/tensor/cuda_tensors.h"

namespace paceline {
namespace {

struct OneWeight : torch::nn::Module {
  explicit OneWeight(bool is_on_gpu) {
    const at::Tensor weight = is_on_gpu ? cuda_tensor(memory) : torch::zeros({10});
    register_parameter("weight", weight);
  }
  std::vector<float> memory = std::vector<float>(10);
};

TEST(DeviceReplica, is_on_one_device_that_libtorch_knows) {
  std::vector<float> data(10);
  const NamedParameter host{"host", at::zeros({3})};
  const NamedParameter first{"first", cuda_tensor(data, 0)};
  const NamedParameter second{"second", cuda_tensor(data, 1)};
  EXPECT_EQ(one_device_of({host, host}, 0), c10::Device(c10::kCPU));
  expect_error(ErrorCode::kInvalid,
               {"rank 3: parameter host is on cpu and parameter first on cuda:0"}, [&] {
                 one_device_of({host, first}, 3);
               });
  expect_error(ErrorCode::kInvalid, {"parameter first is on cuda:0 and parameter second on cuda:1"},
               [&] {
                 one_device_of({first, second}, 3);
               });
  expect_error(
      ErrorCode::kUnsupported,
      {"rank 3: parameter second is on cuda:1, but the LibTorch of this program does not support "
       "such devices"},
      [&] { one_device_of({second}, 3); });
}

TEST(DeviceReplica, on_a_device_that_libtorch_does_not_know_is_an_error_when_it_is_made) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    const std::shared_ptr<ProcessGroup> shared(&group, [](ProcessGroup*) {});
    expect_error(ErrorCode::kUnsupported, {"parameter weight is on cuda:0"}, [&] {
      DistributedDataParallel<OneWeight> model(std::make_shared<OneWeight>(true), shared);
    });
    EXPECT_EQ(all_reduce_value(group, 1), 2) << "as good as before";
  });
}

TEST(DeviceReplica, on_another_kind_of_device_than_rank_0s_is_an_error_on_every_rank) {
  harness::run_ranks_ok(2, [](ProcessGroup& group) {
    const std::shared_ptr<ProcessGroup> shared(&group, [](ProcessGroup*) {});
    expect_error(ErrorCode::kInvalid, {"strides [1] on cuda' on rank 1"}, [&] {
      DistributedDataParallel<OneWeight> model(std::make_shared<OneWeight>(group.rank() == 1),
                                               shared);
    });
  });
}

}  // namespace
}  // namespace paceline
